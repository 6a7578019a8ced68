"""`GET /v1/nodes`: the ids by which requests name nodes, a page at a time, for people and load generators; all of them,
or those that have a text in them."""

from __future__ import annotations

import re
from itertools import islice
from urllib.parse import parse_qsl

from msgspec import UNSET

from gnnserve_api.files.graph_schema import TypeManifest
from gnnserve_api.http.protocol import NodesAnswer
from gnnserve_worker.asking.described_types import NodesPage
from gnnserve_worker.asking.question import ErrorCode, RequestError, cut
from gnnserve_worker.inference.served import ServedRevision

NODES_OF_A_PAGE = 100
MOST_NODES_OF_A_PAGE = 10_000
"""Most nodes of a page, and most that one request searches: a few milliseconds of work, during which the event loop
answers nothing else."""
_MOST_DIGITS = 18
MOST_START = 10**_MOST_DIGITS - 1
"""Largest `start`, far beyond any graph; a number with more digits is not parsed."""


def list_nodes(query: bytes, revision: ServedRevision) -> NodesAnswer:
    """A page of node ids. Raises RequestError."""
    start, count, graph = 0, NODES_OF_A_PAGE, revision.graph
    kind, contained, fields = None, "", graph.described.fields
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in fields:
            known = ", ".join(fields)
            raise RequestError(ErrorCode.UNKNOWN_FIELD, cut(name), "there is no such field", f"known are {known}")
        match name:
            case "start":
                start = _read_number(name, value, 0, None)
            case "count":
                count = _read_number(name, value, 1, MOST_NODES_OF_A_PAGE)
            case "contains":
                contained = value
            case _:
                kind = _read_type(value, graph.described.types)

    def look(positions: int) -> NodesPage:
        return graph.described.page(graph.naming, graph.ids, graph.count(), kind, start, positions)

    # One more than may be shown, by which is told whether there is more.
    page = look(MOST_NODES_OF_A_PAGE + 1 if contained else count + 1)
    if not contained and None in page.listed:
        page = look(MOST_NODES_OF_A_PAGE + 1)
    return _answer(page, start, count, contained.casefold())


def _answer(page: NodesPage, start: int, count: int, text: str) -> NodesAnswer:
    """The first `count` ids of a page that contain this text, whatever their case."""
    looked_at = page.listed[:MOST_NODES_OF_A_PAGE]
    fitting = (at for at, one in enumerate(looked_at) if one is not None and text in str(one).casefold())
    hits = [*islice(fitting, count)]
    seen = hits[-1] + 1 if len(hits) == count else len(looked_at)
    return NodesAnswer(
        [one for at in hits if (one := page.listed[at]) is not None],
        start,
        page.total,
        page.kind,
        page.type,
        start + seen if seen < len(page.listed) else UNSET,
    )


def _read_type(value: str, kinds: tuple[TypeManifest, ...]) -> TypeManifest:
    found = next((kind for kind in kinds if kind.name == value), None)
    if found is None:
        there = ", ".join(kind.name for kind in kinds)
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
