"""Ids of nodes with their type, as requests about graphs of several types write them: `"paper/17"`, split at the first
slash, or `{"type": "paper", "id": 17}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema, TypeManifest
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.live_accuracy import TypedNodeId
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds

_MEMBERS = ("type", "id")
_POSSIBLE = range(-(2**63), 2**63)
_MOST_DIGITS = 20
_MOST_LOOKED_AT = 100
"""Nodes among which an example is looked for: the first ones may have left."""


class QualifiedId(NamedTuple):
    type: str
    id: int | str
    """As the type has its ids: an integer, or a text."""


def listed_ids(ids: NodeIds | LivingIds | None, start: int, end: int) -> list[int | str | None]:
    """Ids at positions start to end - 1, all of which are taken; None where a node has left. `ids`: None: positions."""
    if not isinstance(ids, LivingIds):
        return [*(range(start, end) if ids is None else ids.shown(start, end))]
    there: Iterator[int | str] = iter(ids.shown(start, end))
    return [None if is_gone else next(there) for is_gone in ids.is_gone[start:end].tolist()]


class QualifiedIds:
    """Ids of all types of a graph. Each names its type."""

    def __init__(
        self, types: GraphSchema, numbered: GraphSchema, of_type: Mapping[str, NodeIds | LivingIds | None]
    ) -> None:
        """`types`: as the revision has them. `numbered`: as nodes are numbered: where the graph changes, room for new
        nodes of each type is counted. `of_type`: ids of each type; None: positions within it."""
        self.types = types
        self.numbered = numbered
        self.of_type = of_type
        self._places = {kind.name: place for place, kind in enumerate(types.types)}
        self._first_nodes = numbered.first_nodes

    def read(self, given: Any, where: str) -> QualifiedId:
        """An id in JSON, of a node of whichever type. RequestError: it is none."""
        return self.read_named(given, where)

    def read_named(self, given: Any, where: str) -> QualifiedId:
        """An id that names its type."""
        name = given.partition("/")[0] if isinstance(given, str) and "/" in given else None
        if isinstance(given, dict) or name in self._places:
            return self._read(given, where)
        there = ", ".join(one.name for one in self.types.types)
        said = f"{shown_value(given)} has no type" if name is None else f"{shown_value(name)} is no type of nodes"
        raise RequestError(
            ErrorCode.INVALID_TYPE if name is None else ErrorCode.UNKNOWN_NODE, where, f"{said}; types are {there}",
            self._remedy(self.types.target),
        )  # fmt: skip

    def read_asked(self, given: Any, where: str) -> QualifiedId:
        """The id of a node that is asked about."""
        return self.read(given, where)

    def place_of(self, name: str) -> int:
        """The place of a type; -1: there is no such type."""
        return self._places.get(name, -1)

    def number(self, id_: QualifiedId) -> int:
        """The number of a node of the graph; -1: there is no such node."""
        kind, ids = self.numbered.place_of(id_.type), self.of_type[id_.type]
        if ids is None:
            position = id_.id if isinstance(id_.id, int) and 0 <= id_.id < self.numbered.types[kind].nodes else -1
        elif isinstance(id_.id, str):
            position = int(ids.find_texts([id_.id])[0])
        else:
            position = int(ids.find_integers(np.array([id_.id], np.int64))[0]) if id_.id in _POSSIBLE else -1
        return position if position < 0 else self._first_nodes[kind] + position

    def shown(self, kind: TypeManifest, start: int, end: int) -> list[int | str]:
        """Ids of the nodes of a type at positions start to end - 1 within it, as far as they exist."""
        return [one for one in self.listed(kind, start, end) if one is not None]

    def listed(self, kind: TypeManifest, start: int, end: int) -> list[int | str | None]:
        """The same, of each position that is taken; None: its node has left."""
        end = min(end, self.taken_of(kind))
        return [] if start >= end else listed_ids(self.of_type[kind.name], start, end)

    def shown_number(self, number: int) -> str | None:
        """The id of a node with its type; None: it has left."""
        kind = int(np.searchsorted(self._first_nodes, number, side="right")) - 1
        position, described = number - self._first_nodes[kind], self.types.types[kind]
        shown = self.shown(described, position, position + 1)
        return f"{described.name}/{shown[0]}" if shown else None

    def nodes_of(self, kind: TypeManifest) -> int:
        """How many nodes of a type the graph has."""
        ids = self.of_type[kind.name]
        return ids.nodes if isinstance(ids, LivingIds) else kind.nodes

    def taken_of(self, kind: TypeManifest) -> int:
        """Positions within a type that are taken, those of nodes that have left among them."""
        ids = self.of_type[kind.name]
        return ids.count if isinstance(ids, LivingIds) else kind.nodes

    def kind_of(self, kind: TypeManifest) -> NodeIdKind:
        """What nodes of a type are called by."""
        ids = self.of_type[kind.name]
        return ids.kind if isinstance(ids, LivingIds) else NodeIdKind(kind.node_ids)

    def alone(self, given: int | str | TypedNodeId) -> int | str | TypedNodeId:
        """The id within the type that is answered for, of one that may name it; one of another type stays an object,
        which no id within that type is."""
        name, slash, id_ = given.partition("/") if isinstance(given, str) else ("", "", "")
        if not slash or name not in self._places:
            return given  # an id alone, which may have a slash of its own
        if name != self.types.target.name:
            return TypedNodeId(name, id_)
        are_texts = self.types.target.node_ids == "Strings"
        return int(id_) if _is_integer(id_) and not are_texts else id_

    def within_target(self, given: Any, where: str) -> int | str:
        """The id within the type that is answered for."""
        id_ = self.read(given, where)
        if id_.type != self.types.target.name:
            raise self._not_asked_about(given, id_.type, where)
        return id_.id

    def _read(self, given: Any, where: str) -> QualifiedId:
        name, id_ = self._parted(given, where)
        target = self.types.target
        kind = next((one for one in self.types.types if one.name == (name or target.name)), None)
        if kind is None:
            there = ", ".join(one.name for one in self.types.types)
            problem = f"{shown_value(name)} is no type of nodes; types are {there}"
            raise RequestError(ErrorCode.UNKNOWN_NODE, where, problem, self._remedy(target))
        if kind.node_ids == "Strings":
            if isinstance(id_, str) and id_:
                return QualifiedId(kind.name, id_)
        elif type(id_) is int:
            return QualifiedId(kind.name, id_)
        elif isinstance(id_, str) and name is not None and _is_integer(id_):
            return QualifiedId(kind.name, int(id_))  # a text of digits behind a type
        said = "texts" if kind.node_ids == "Strings" else "integers"
        problem = f"ids of type {kind.name} are {said}, got {shown_value(id_)}"
        raise RequestError(ErrorCode.INVALID_TYPE, where, problem, self._remedy(kind))

    def _parted(self, given: Any, where: str) -> tuple[str | None, Any]:
        """The type, if it is named, and the id."""
        if isinstance(given, dict):
            if set(given) != set(_MEMBERS) or not isinstance(given["type"], str):
                problem = f"expected an object with type and id, got {shown_value(given)}"
                raise RequestError(ErrorCode.INVALID_TYPE, where, problem, self._remedy(self.types.target))
            return given["type"], given["id"]
        if isinstance(given, str) and "/" in given:
            name, _, id_ = given.partition("/")
            # A text id may have a slash of its own: what is before it is then no type, unless the id is written in
            # full.
            if self.types.target.node_ids == "Strings" and name not in self._places:
                return None, given
            return name, id_
        return None, given

    def _not_asked_about(self, given: Any, kind: str, where: str) -> RequestError:
        name = self.types.target.name
        problem = f"{shown_value(given)} is of type {kind}, and answers are about nodes of type {name}"
        return RequestError(ErrorCode.UNKNOWN_NODE, where, problem, self._remedy(self.types.target))

    def _remedy(self, kind: TypeManifest) -> str:
        shown = next(iter(self.shown(kind, 0, _MOST_LOOKED_AT)), 0)
        forms = f'"{kind.name}/{shown}" or {{"type": "{kind.name}", "id": {shown_value(shown)}}}'
        return f"name nodes as {forms}"


class LivingNames:
    """Texts that name the type of each node, `user/17`, in a graph of several types that changes. It answers as
    `NodeIds` does, by the numbers of nodes."""

    kind = NodeIdKind.STRINGS

    def __init__(self, stored: NodeIds, published: GraphSchema, ids: QualifiedIds, living: Sequence[LivingIds]) -> None:
        """`stored`: those of the revision, by its own numbering, which is `published`. `living`: ids of each type."""
        self._stored = stored
        self._ids = ids
        self._living = living
        self._published = np.array(published.first_nodes, np.int64)
        self._firsts = np.array(ids.numbered.first_nodes, np.int64)

    def find_texts(self, wanted: Sequence[str]) -> np.ndarray:
        """Numbers int64 of nodes; -1 where there is no such node."""
        positions = self._stored.find_texts(wanted)
        kinds = np.searchsorted(self._published, positions, side="right") - 1
        for kind, living in enumerate(self._living):
            own = np.flatnonzero((kinds == kind) & (positions >= 0))
            within = positions[own] - self._published[kind]
            positions[own] = np.where(living.is_gone[within], -1, within + self._firsts[kind])
        for place in np.flatnonzero(positions < 0).tolist():
            positions[place] = self._number_of(wanted[place])
        return positions

    def listed(self, start: int, end: int) -> list[str | None]:
        """The texts of the nodes of these numbers, start to end - 1, but for room of types; None: a node has left."""
        listed: list[str | None] = []
        for first, kind in zip(self._firsts.tolist(), self._ids.types.types, strict=False):
            own = self._ids.listed(kind, max(0, start - first), end - first)
            listed += (None if one is None else f"{kind.name}/{one}" for one in own)
        return listed

    def _number_of(self, text: str) -> int:
        """The number of a node that has come since; -1: there is none."""
        name, _, id_ = text.partition("/")
        kind = self._ids.place_of(name)
        if kind < 0:
            return -1
        if self._ids.types.types[kind].node_ids == "Strings":
            return self._ids.number(QualifiedId(name, id_)) if id_ else -1
        # Only as ids are written: 7 is not called 07.
        is_written = _is_integer(id_) and str(int(id_)) == id_
        return self._ids.number(QualifiedId(name, int(id_))) if is_written else -1


class TargetIds(QualifiedIds):
    """Ids of which those without a type are of the type that is answered for, the only one that answers are about."""

    def read(self, given: Any, where: str) -> QualifiedId:
        return self._read(given, where)

    def read_asked(self, given: Any, where: str) -> QualifiedId:
        id_ = self._read(given, where)
        if id_.type != self.types.target.name:
            raise self._not_asked_about(given, id_.type, where)
        return id_


def as_text(given: Any, where: str, examples: Sequence[int | str]) -> str:
    """The id of a node of a graph whose ids are texts with their type: "user/17", or {"type": "user", "id": 17}.
    `examples`: ids of the graph, of which the first is told; empty: the node there has left."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict) and set(given) == set(_MEMBERS):
        name, id_ = given["type"], given["id"]
        if isinstance(name, str) and type(id_) in (int, str):
            return f"{name}/{id_}"
    raise RequestError(
        ErrorCode.INVALID_TYPE, where, f"expected an id with its type, got {shown_value(given)}",
        f"name nodes as {shown_value(next(iter(examples), 'type/id'))}",
    )  # fmt: skip


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
