"""Parts of the arrays of a request in the binary form: of each type, or relation, one behind the other.

Where the graph has several types, a request says it in JSON, `{"nodes": [["user", 2]], "edges": [["user", "buys",
"item", 3]], "overrides": [["item", 1]]}`, by names, which a later revision may have in another order. A graph of one
type has one part of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_worker.asking.question import ErrorCode, RequestError, cut, shown_value

MOST_PARTS_BYTES = 64 * 1024
"""Bytes of that JSON: names of a thousand relations."""
LENGTH_BYTES = 8
"""Bytes of its length, an int64; the JSON has a multiple of them, so that what is behind it begins at a word."""
_EXAMPLE = '{"nodes": [["user", 2]], "edges": [["user", "buys", "item", 3]]}'


class Counts(msgspec.Struct, frozen=True):
    """Counts of what a request has, its first numbers."""

    asked: int
    new: int
    edges: int
    overrides: int

    @property
    def ids(self) -> int:
        return self.asked + 2 * self.edges + self.overrides


Part = tuple[int, int]
"""Place of a type or of a relation, and how many nodes or edges are of it."""


class OverlayParts(msgspec.Struct, frozen=True):
    """Types of new nodes, relations of edges and types of overrides, each once, in the order of the arrays."""

    nodes: Sequence[Part]
    edges: Sequence[Part]
    overrides: Sequence[Part]


class NamedParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts by the names of types and relations, each with how many there are."""

    nodes: tuple[tuple[str, int], ...] = ()
    edges: tuple[tuple[str, str, str, int], ...] = ()
    """Source, name and target of the relation."""
    overrides: tuple[tuple[str, int], ...] = ()


_decoder = decoding.decoder(NamedParts)


def parts_of_one_type(counts: Counts) -> OverlayParts:
    return OverlayParts(((0, counts.new),), ((0, counts.edges),), ((0, counts.overrides),))


def read_parts(
    text: bytes,
    counts: Counts,
    type_of: Callable[[str, str], int],
    relation_of: Callable[[str, str, str, str], int],
) -> OverlayParts:
    """`type_of`, `relation_of`: the place of a type or relation by its name, or by source, name and target; behind
    these stands where the request has it. Raises RequestError."""
    try:
        named: NamedParts = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_parts(cut(str(error))) from None
    nodes = [(type_of(name, f"parts.nodes[{i}]"), count) for i, (name, count) in enumerate(named.nodes)]
    overrides = [(type_of(name, f"parts.overrides[{i}]"), count) for i, (name, count) in enumerate(named.overrides)]
    edges = [
        (relation_of(source, name, target, f"parts.edges[{i}]"), count)
        for i, (source, name, target, count) in enumerate(named.edges)
    ]
    _check("nodes", nodes, counts.new)
    _check("edges", edges, counts.edges)
    _check("overrides", overrides, counts.overrides)
    return OverlayParts(nodes, edges, overrides)


def no_parts(why: str) -> RequestError:
    """There is nothing behind the counts that can be read."""
    problem = f"the graph has several types, and behind its counts is no JSON that names those of its arrays: {why}"
    remedy = f"put such as {_EXAMPLE} there, behind its length in {LENGTH_BYTES} bytes"
    return RequestError(ErrorCode.INVALID_BINARY, "body", problem, remedy)


def kinds_of(parts: Sequence[Part]) -> np.ndarray:
    """Places of the types of all nodes, or of the relations of all edges: int64 [nodes or edges]."""
    kinds, counts = np.array(parts, np.int64).reshape(-1, 2).T
    return np.repeat(kinds, counts)


def _check(field: str, parts: Sequence[Part], wanted: int) -> None:
    seen = set[int]()
    for i, (kind, count) in enumerate(parts):
        if count < 1:
            problem, remedy = f"{shown_value(count)} is out of range", "leave out what there is none of"
            raise RequestError(ErrorCode.INVALID_VALUE, f"parts.{field}[{i}]", problem, remedy)
        if kind in seen:
            problem, remedy = "it is there twice", f"give all of its {field} one behind the other"
            raise RequestError(ErrorCode.INVALID_VALUE, f"parts.{field}[{i}]", problem, remedy)
        seen.add(kind)
    found = sum(count for _, count in parts)
    if found != wanted:
        problem = f"{found:,} together, where the counts say {wanted:,}"
        raise RequestError(ErrorCode.INVALID_VALUE, f"parts.{field}", problem, "let both say how many there are")
