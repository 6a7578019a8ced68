"""The description of the HTTP interface at `/openapi.json`.

FastAPI describes its own routes; the predict path bypasses it, so its part is made here, from the same msgspec types
that parse and encode, and for the graph that is served, whose nodes are called by integers or by texts. OpenAPI 3.0,
because the Swagger UI that is packaged for offline use reads no 3.1.
"""

from __future__ import annotations

from typing import Any

from gnnserve_api.http.changes import OFFSET_HEADER
from gnnserve_worker.asking.question import (
    LATENCY_BOUNDS,
    LATENCY_HEADER,
    MIN_OFFSET,
    PREDICT_PATH,
    RECOMMEND_PATH,
    STRICT_HEADER,
    TIMING_HEADER,
    TOLERANCE_BOUNDS,
    TOLERANCE_HEADER,
    VARIANT,
    WISHES,
    Wish,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.description import describe_post
from gnnserve_worker.serving.http.changes.endpoint import CHANGES_PATH
from gnnserve_worker.serving.http.codecs.registry import CODECS
from gnnserve_worker.serving.http.nodes import MOST_NODES_OF_A_PAGE, MOST_START, NODES_OF_A_PAGE
from gnnserve_worker.serving.http.open_inference.description import describe_open_inference
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, error_response, header, query_number, told
from gnnserve_worker.serving.http.openapi_schemas import DescribedService, component_schemas, described
from gnnserve_worker.serving.http.recommend_description import describe_recommend
from gnnserve_worker.serving.security.access import WRITES, is_open

OPENAPI_VERSION = "3.0.3"

_EXAMPLE_WISHES = {
    "objective": {"latencyMs": 5, "accuracyTolerancePermille": 10},
    "strict": False,
}
_EXAMPLE_ANSWER = {
    "variant": "x4",
    "revision": "1db9abf53c03",
    "objectiveMet": True,
    "tierPermille": 10,
}
_OVERLAYS = (
    " `overlay` brings nodes that the graph does not have, edges and new features, for the request alone: "
    '`{"nodes": ["order-9"], "overlay": {"nodes": [{"id": "order-9", "features": {"amount": 12.5}}], '
    '"edges": [["user-17", "order-9"]]}}`. `application/vnd.gnnserve.overlay` is its binary form: int64 '
    "counts of nodes, new nodes, edges and overrides; the ids of nodes, of edges (source, target) and of "
    "overrides as int64, where -1 - k is the k-th new node; float32 features of new nodes and overrides. Of a graph of "
    "several types, JSON behind the counts says of which types and relations they are."
)
"""What the description says besides where requests may bring an overlay."""
_TOKEN = "token"  # noqa: S105 - the name of the scheme
_CHALLENGE = {"WWW-Authenticate": {"description": "What to send.", "schema": {"type": "string"}}}
_ALL = {"enum": ["all"]}


def complete(
    service: str, document: dict[str, Any], revision: ServedRevision | None, *, needs_token: bool = False
) -> dict[str, Any]:
    """FastAPI's description with what it does not know."""
    components = document.get("components", {})
    of = described(revision)
    schemas = {**components.get("schemas", {}), **component_schemas(of)}
    changes = {CHANGES_PATH: {"post": describe_post(revision), **document["paths"].get(CHANGES_PATH, {})}}
    protocol = describe_open_inference(service, revision)
    paths = {
        PREDICT_PATH: _predict_path(of, revision),
        RECOMMEND_PATH: describe_recommend(revision),
        **document["paths"],
        **changes,
        **protocol,
    }
    whole = {**document, "paths": paths, "components": {**components, "schemas": schemas}}
    return _with_tokens(whole, needs_token=needs_token)


def _with_tokens(description: dict[str, Any], *, needs_token: bool) -> dict[str, Any]:
    """Says which operations want a token, so that /docs asks for it: to write always, otherwise by `needs_token`."""
    refused = error_response("The token is missing, or is none that the service accepts.", _CHALLENGE)

    def secured(operation: dict[str, Any]) -> dict[str, Any]:
        return {**operation, "security": [{_TOKEN: []}], "responses": {**operation["responses"], "401": refused}}

    def is_secured(method: str, path: str) -> bool:
        return (method.upper(), path) in WRITES or (needs_token and not is_open(path))

    paths = {
        path: {
            method: secured(operation) if is_secured(method, path) else operation for method, operation in item.items()
        }
        for path, item in description["paths"].items()
    }
    schemes = {_TOKEN: {"type": "http", "scheme": "bearer"}}
    return {**description, "paths": paths, "components": {**description["components"], "securitySchemes": schemes}}


def nodes_parameters() -> list[dict[str, Any]]:
    return [
        query_number("start", "Position of the first one.", default=0, minimum=0, maximum=MOST_START),
        query_number("count", "How many, at most.", default=NODES_OF_A_PAGE, minimum=1, maximum=MOST_NODES_OF_A_PAGE),
        {
            "name": "contains",
            "in": "query",
            "description": f"Only ids that contain this text in any case, among {MOST_NODES_OF_A_PAGE:,}; "
            "`next` tells where to go on.",
            "schema": {"type": "string"},
        },
    ]


def _predict_path(of: DescribedService, revision: ServedRevision | None) -> dict[str, Any]:
    """The path of predictions, with ids and labels that the served graph has."""
    task = of.task
    example_request = {**task.example_items, **_EXAMPLE_WISHES, "return": [*task.example_outputs]}
    example_answer = {**task.example_outputs, **_EXAMPLE_ANSWER}
    codecs = [codec for codec in CODECS if codec.path == PREDICT_PATH]
    requests = {codec.content_type: codec.describe_request(revision, example_request) for codec in codecs}
    answers = {codec.content_type: codec.describe_answer(revision, example_answer) for codec in codecs}
    return {
        "post": {
            "tags": ["predict"],
            "summary": task.summary,
            "description": (
                "Answers with the variant that the objective calls for: a latency alone, the most accurate within it; "
                "a tolerance alone, the fastest within it; both, the most accurate within the latency and never below "
                "the tolerance; nothing, the service's own objective or else the most accurate variant. "
                "Nodes and labels are called as in the graph's source: by integers, or by texts. For multi-label "
                "graphs labels are a list per node of the classes whose score is above 0, or above the variant's "
                "threshold. Scores are raw network outputs, before softmax or sigmoid. With "
                "`Content-Type: application/octet-stream` the body is int64 "
                "node ids, little-endian, and so is the answer: float32 [nodes, width], or int64 [nodes] for labels; "
                "graphs whose node ids are texts have no such form. A service that scores links takes pairs, int64 "
                "[pairs, 2], and answers float32 [pairs]. Errors are JSON in either form."
                + (_OVERLAYS if of.takes_arrays else "")
            ),
            "operationId": "predict",
            "parameters": _predict_parameters(of),
            "requestBody": {"required": True, "content": _possible(requests)},
            "responses": _predict_responses(of, _possible(answers)),
        }
    }


def _predict_parameters(of: DescribedService) -> list[dict[str, Any]]:
    return [
        {
            "name": "return",
            "in": "query",
            "description": "Binary form only: the one output to return. JSON names its outputs in the body.",
            "schema": {"type": "string", "enum": [*of.task.outputs], "default": of.task.outputs[0]},
        },
        header(
            LATENCY_HEADER.decode(),
            "As objective.latencyMs; an objective in the body goes first.",
            "number",
            LATENCY_BOUNDS,
        ),
        header(
            TOLERANCE_HEADER.decode(),
            "As objective.accuracyTolerancePermille; an objective in the body goes first.",
            "number",
            TOLERANCE_BOUNDS,
        ),
        header(STRICT_HEADER.decode(), "As strict; the body's goes first.", "boolean"),
        *(_header_of(wish, of) for wish in WISHES if wish is not MIN_OFFSET),
        header(TIMING_HEADER.decode(), "Tell reading and writing too, in Server-Timing.", "string", _ALL),
        *([_header_of(MIN_OFFSET, of)] if of.changes else []),
    ]


def _predict_responses(of: DescribedService, content: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`content`: of answers, by media type."""
    return {
        "200": {
            "description": f"One entry per {of.task.item}, in the order asked.",
            "headers": {
                "Server-Timing": {
                    "description": "Milliseconds in queue, overlay (if any), sample, gather and compute; with "
                    f"{TIMING_HEADER.decode()} in receive and send too.",
                    "schema": {"type": "string"},
                    "example": "queue;dur=0.052, sample;dur=0.081, gather;dur=0.120, compute;dur=0.210",
                },
                "gnnserve-variant": told("Binary form: the variant that answered.", "x4"),
                "gnnserve-revision": told("Binary form: the revision that it belongs to.", "1db9abf53c03"),
                "gnnserve-objective-met": told("Binary form: as objectiveMet, true or false.", "true"),
                "gnnserve-shape": told("Binary form: lengths of the array's axes.", "1024,40"),
                **({OFFSET_HEADER: told("Binary form: as offset.", "345")} if of.changes else {}),
            },
            "content": content,
        },
        "400": error_response(
            "The request is malformed, has a field or parameter that does not exist, names a node that the "
            "graph lacks, or brings what cannot be."
        ),
        "405": error_response("Another method than POST."),
        "413": error_response("The body or the overlay is too large: split the request."),
        "415": error_response("The body is compressed otherwise than by gzip or deflate."),
        "417": error_response("Another Expect than 100-continue."),
        "431": error_response("Address and headers are too long, or too many: send less."),
        "501": error_response("Another transfer coding than chunked."),
        "505": error_response("Another version than HTTP/1.0 or 1.1."),
        "422": error_response("The request is strict, and no variant can meet its objective."),
        "429": error_response("The queue is full, or the deadline is out of reach now.", RETRY_AFTER),
        "500": error_response("An error of the worker; the log has the id that the message names."),
        "503": error_response(
            "The worker is loading or about to stop, or did not reach minOffset in time.", RETRY_AFTER
        ),
        "504": error_response("The request's own timeoutMs has passed."),
    }


def _header_of(wish: Wish, of: DescribedService) -> dict[str, Any]:
    bounds = {"enum": [*of.variants]} if wish is VARIANT and of.variants is not None else {**wish.bounds}
    return header(wish.header.decode(), f"As {wish.member}; the body's goes first.", wish.type, bounds)


def _possible(media: dict[str, dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The content without media types that have no form for the served graph."""
    return {content_type: described for content_type, described in media.items() if described is not None}
