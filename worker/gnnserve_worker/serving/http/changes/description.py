"""The part of `/openapi.json` about changes: FastAPI does not know the POST, and what queries and headers mean."""

from __future__ import annotations

from typing import Any

from gnnserve_api.http.changes import (
    CHANGES_TYPE,
    CLIENT_HEADER,
    MOST_CLIENT_CHARACTERS,
    MOST_PAGE_RECORDS,
    MOST_WAIT_S,
    SEQUENCE_HEADER,
    ChangesAnswer,
    ChangesPage,
    ChangesRequest,
)
from gnnserve_api.http.protocol import MAX_OFFSET
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.endpoint import PAGE_RECORDS
from gnnserve_worker.serving.http.changes.reading import FORMS
from gnnserve_worker.serving.http.openapi_parts import (
    RETRY_AFTER,
    error_response,
    header,
    json_content,
    query_number,
)

_NO_UPDATES = "The graph of this service does not change: `spec.updates` turns that on, but where links are scored."


def describe_post(revision: ServedRevision | None) -> dict[str, Any]:
    """The operation `POST /v1/changes`, with ids that the served graph has."""
    content = _content_of(revision)
    return {
        "tags": ["changes"],
        "summary": "Change the graph",
        "description": (
            "Adds and removes nodes and edges, and sets features and labels, all of a batch or nothing of it. Within a "
            "batch the order is: new nodes, overrides, labels, new edges, removed edges, removed nodes. The answer "
            "comes when the batch is durable and this worker has applied it; other workers follow within milliseconds, "
            f"and `minOffset` of a prediction waits for them. A batch that is sent again with the same {CLIENT_HEADER} "
            f"and {SEQUENCE_HEADER} is applied once. `{CHANGES_TYPE}` is the binary form of a batch."
        ),
        "operationId": "change",
        "parameters": [
            header(
                CLIENT_HEADER,
                "Name of the client, whose batches are numbered.",
                "string",
                {"minLength": 1, "maxLength": MOST_CLIENT_CHARACTERS, "pattern": "^[!-~]+$"},
            ),
            header(
                SEQUENCE_HEADER,
                f"Number of the batch, ascending; it goes with {CLIENT_HEADER}.",
                "integer",
                {"minimum": 0, "maximum": MAX_OFFSET},
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {**content, CHANGES_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        "responses": {
            "200": {
                "description": "The batch lasts.",
                "content": json_content(
                    ChangesAnswer, {"offset": 345, "changes": 1, "unchanged": 0, "repeated": False}
                ),
            },
            "400": error_response(
                "The batch is malformed, or cannot be applied to the graph as it is; nothing of it is."
            ),
            "401": error_response("The token is missing, or is none that may write."),
            "403": error_response("No request may write to this worker."),
            "409": error_response(f"{_NO_UPDATES} Or the log is not this service's, or has passed this sequence."),
            "413": error_response("The batch is too large: split it."),
            "500": error_response("An error of the worker; the log has the id that the message names."),
            "503": error_response(
                "The worker is loading or about to stop, the log cannot be written, or there is no room.", RETRY_AFTER
            ),
        },
    }


def _content_of(revision: ServedRevision | None) -> dict[str, Any]:
    if revision is None:
        return json_content(ChangesRequest, {"edges": [[3, 7]]})
    ids = FORMS[revision.graph.naming.form].ids
    return json_content(ids.request, ids.example(revision))


def list_parameters() -> list[dict[str, Any]]:
    """Parameters of `GET /v1/changes`."""
    return [
        query_number(
            "after", "Records behind this offset; absent: all that the log still has.", minimum=0, maximum=MAX_OFFSET
        ),
        query_number("limit", "How many, at most.", default=PAGE_RECORDS, minimum=1, maximum=MOST_PAGE_RECORDS),
        {
            "name": "content",
            "in": "query",
            "description": "With the changes themselves.",
            "schema": {"type": "string", "enum": ["true", "false"], "default": "false"},
        },
        query_number(
            "wait", "Seconds to wait for a record, where there is none yet.", default=0, minimum=0, maximum=MOST_WAIT_S
        ),
    ]


def list_responses() -> dict[int | str, dict[str, Any]]:
    return {
        200: {"content": json_content(ChangesPage)},
        400: error_response("A parameter is unknown or out of range."),
        409: error_response(f"{_NO_UPDATES} Or the log does not have these records any more."),
        503: error_response("There is no revision to answer from yet, or the log cannot be read.", RETRY_AFTER),
    }
