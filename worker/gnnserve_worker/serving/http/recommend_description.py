"""`POST /v1/recommend` in OpenAPI: made of the same msgspec types that read and write it."""

from __future__ import annotations

from typing import Any

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.recommend import RecommendCodec
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, error_response


def describe_recommend(revision: ServedRevision | None) -> dict[str, Any]:
    """The path, with an id that the served graph has."""
    codec = RecommendCodec()
    node: int | str = 3
    if revision is not None:
        first = revision.task.recommending.example
        (node,) = revision.graph.naming.shown(first, first + 1)
    request = codec.describe_request(revision, {"node": node, "count": 10})
    return {
        "post": {
            "tags": ["predict"],
            "summary": "Recommend nodes",
            "description": (
                "The nodes whose embeddings point most in the direction of one node's, by cosine similarity; where "
                "links are scored, the nodes that make the best pairs with it. The "
                "node's own embedding is computed now, so it may be a new one of `overlay`; the others come from the "
                "index that was made of the revision, whose age is told in the answer."
            ),
            "operationId": "recommend",
            "requestBody": {"required": True, "content": {codec.content_type: request}},
            "responses": {
                "200": {
                    "description": "The nodes, the nearest first.",
                    "content": {codec.content_type: codec.describe_answer(revision, None)},
                },
                "400": error_response(
                    "The request is malformed, names what the graph lacks, or the service has no recommendations."
                ),
                "405": error_response("Another method than POST."),
                "409": error_response("minOffset is asked for, and the graph does not change."),
                "413": error_response("The body or the overlay is too large."),
                "415": error_response("The body is compressed otherwise than by gzip or deflate."),
                "417": error_response("Another Expect than 100-continue."),
                "422": error_response("The request is strict, and no variant can meet its objective."),
                "429": error_response("The queue is full, or the deadline is out of reach now.", RETRY_AFTER),
                "431": error_response("Address and headers are too long, or too many: send less."),
                "500": error_response("An error of the worker; the log has the id that the message names."),
                "501": error_response("Another transfer coding than chunked."),
                "505": error_response("Another version than HTTP/1.0 or 1.1."),
                "503": error_response(
                    "The worker is loading or about to stop, has no index yet, or did not reach minOffset in time.",
                    RETRY_AFTER,
                ),
            },
        }
    }
