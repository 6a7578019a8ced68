"""`GET /v1/nodes`: the ids by which requests name nodes, a page at a time, for people and load generators."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from gnnserve_api.protocol import NodesAnswer
from gnnserve_api.typed import TypedGraphManifest, TypeManifest
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, cut

NODES_OF_A_PAGE = 100
MOST_NODES_OF_A_PAGE = 10_000
"""Most nodes of a page: a few milliseconds of work, during which the event loop answers nothing else."""
_MOST_DIGITS = 18
MOST_START = 10**_MOST_DIGITS - 1
"""Largest `start`, far beyond any graph; a number with more digits is not parsed."""


def list_nodes(query: bytes, revision: ServedRevision) -> NodesAnswer:
    """A page of node ids. Raises RequestError."""
    start, count, kind = 0, NODES_OF_A_PAGE, None
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        match name:
            case "start":
                start = _read_number(name, value, 0, None)
            case "count":
                count = _read_number(name, value, 1, MOST_NODES_OF_A_PAGE)
            case "type" if revision.types is not None:
                kind = _read_type(value, revision.types)
            case _:
                known = "start, count" if revision.types is None else "start, count, type"
                raise RequestError(ErrorCode.UNKNOWN_FIELD, cut(name), "there is no such field", f"known are {known}")
    if revision.types is not None:
        shown = kind or revision.types.target
        ids = revision.shown_ids_of(shown, start, start + count)
        return NodesAnswer(ids, start, revision.nodes_of(shown), revision.ids_of(shown), shown.name)
    return NodesAnswer(revision.shown_ids(start, start + count), start, revision.node_count, revision.node_ids)


def _read_type(value: str, types: TypedGraphManifest) -> TypeManifest:
    found = next((kind for kind in types.types if kind.name == value), None)
    if found is None:
        there = ", ".join(kind.name for kind in types.types)
        raise RequestError(ErrorCode.INVALID_VALUE, "type", f"{cut(value)!r} is no type of nodes", f"types are {there}")
    return found


def _read_number(name: str, value: str, least: int, most: int | None) -> int:
    number = int(value) if re.fullmatch(rf"[0-9]{{1,{_MOST_DIGITS}}}", value) else -1
    if number < least or (most is not None and number > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most:,}"
        raise RequestError(
            ErrorCode.INVALID_VALUE, name, f"{cut(value)!r} is not possible here", f"give a whole number {bounds}"
        )
    return number
