"""Ids of nodes with their type, as requests about graphs of several types write them: `"paper/17"`, split at the first
slash, or `{"type": "paper", "id": 17}`. An id without a type is of the type that is classified, the only one that
answers are about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gnnserve_api.typed import TypedGraphManifest, TypeManifest
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.node_ids import POSSIBLE_IDS
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, shown_value

_MEMBERS = ("type", "id")


class TypedId(NamedTuple):
    type: str
    id: int | str
    """As the type has its ids: an integer, or a text."""


def ids_of_target(given: Sequence[Any], types: TypedGraphManifest, revision: ServedRevision) -> tuple[Any, ...]:
    """The ids of the nodes within the type that is classified, integers or texts as that type has them. `given`: what
    JSON has. RequestError names the first that is no id, or of another type."""
    if all(type(one) is int for one in given) and not revision.has_text_ids:  # most requests: nothing to look at
        return tuple(given)
    found = []
    for place, one in enumerate(given):
        where = f"nodes[{place}]"
        id_ = read_id(one, where, types, revision)
        if id_.type != types.target.name:
            raise not_asked_about(one, id_.type, where, types, revision)
        found.append(id_.id)
    return tuple(found)


def as_text(given: Any, where: str, revision: ServedRevision) -> str:
    """The id of a node of a graph whose ids are texts with their type, as where links join types: "user/17", or
    {"type": "user", "id": 17}."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict) and set(given) == set(_MEMBERS):
        name, id_ = given["type"], given["id"]
        if isinstance(name, str) and type(id_) in (int, str):
            return f"{name}/{id_}"
    example = revision.shown_ids(0, 1)[0]
    raise RequestError(
        ErrorCode.INVALID_TYPE, where, f"expected an id with its type, got {shown_value(given)}",
        f"name nodes as {shown_value(example)}",
    )  # fmt: skip


def as_texts(given: Sequence[Any], revision: ServedRevision) -> tuple[Any, ...]:
    """The same of nodes that are asked about."""
    if all(isinstance(one, str) for one in given):  # most requests: nothing to look at
        return tuple(given)
    return tuple(as_text(one, f"nodes[{place}]", revision) for place, one in enumerate(given))


def read_id(given: Any, where: str, types: TypedGraphManifest, revision: ServedRevision) -> TypedId:
    """An id with its type, that of the nodes that are classified where none is named. RequestError: it is no id."""
    name, id_ = _parted(given, where, types, revision)
    kind = next((one for one in types.types if one.name == (name or types.target.name)), None)
    if kind is None:
        there = ", ".join(one.name for one in types.types)
        problem = f"{shown_value(name)} is no type of nodes; types are {there}"
        raise RequestError(ErrorCode.UNKNOWN_NODE, where, problem, _remedy(revision, types.target))
    if kind.node_ids == "Strings":
        if isinstance(id_, str) and id_:
            return TypedId(kind.name, id_)
    elif type(id_) is int:
        return TypedId(kind.name, id_)
    elif isinstance(id_, str) and name is not None and _is_integer(id_):
        return TypedId(kind.name, int(id_))  # a text of digits behind a type
    said = "texts" if kind.node_ids == "Strings" else "integers"
    problem = f"ids of type {kind.name} are {said}, got {shown_value(id_)}"
    raise RequestError(ErrorCode.INVALID_TYPE, where, problem, _remedy(revision, kind))


def read_id_with_type(given: Any, where: str, types: TypedGraphManifest, revision: ServedRevision) -> TypedId:
    """As `read_id`, of an id that names its type."""
    name = given.partition("/")[0] if isinstance(given, str) and "/" in given else None
    if isinstance(given, dict) or name in {kind.name for kind in types.types}:
        return read_id(given, where, types, revision)
    there = ", ".join(one.name for one in types.types)
    said = f"{shown_value(given)} has no type" if name is None else f"{shown_value(name)} is no type of nodes"
    raise RequestError(
        ErrorCode.INVALID_TYPE if name is None else ErrorCode.UNKNOWN_NODE, where, f"{said}; types are {there}",
        _remedy(revision, types.target),
    )  # fmt: skip


def find_number(id_: TypedId, graph: TypedGraphManifest, revision: ServedRevision) -> int:
    """The number of a node of the graph; -1: there is no such node. `graph`: `numbered_types` of the revision."""
    kind = graph.place_of(id_.type)
    ids = revision.type_ids[id_.type]
    if ids is None:
        position = id_.id if isinstance(id_.id, int) and 0 <= id_.id < graph.types[kind].nodes else -1
    elif isinstance(id_.id, str):
        position = int(ids.find_texts([id_.id])[0])
    else:
        is_possible = id_.id in POSSIBLE_IDS
        position = int(ids.find_integers(np.array([id_.id], np.int64))[0]) if is_possible else -1
    return position if position < 0 else graph.first_nodes[kind] + position


def not_asked_about(
    given: Any, kind: str, where: str, types: TypedGraphManifest, revision: ServedRevision
) -> RequestError:
    problem = f"{shown_value(given)} is of type {kind}, and answers are about nodes of type {types.target.name}"
    return RequestError(ErrorCode.UNKNOWN_NODE, where, problem, _remedy(revision, types.target))


def _parted(given: Any, where: str, types: TypedGraphManifest, revision: ServedRevision) -> tuple[str | None, Any]:
    """The type, if it is named, and the id."""
    if isinstance(given, dict):
        if set(given) != set(_MEMBERS) or not isinstance(given["type"], str):
            problem = f"expected an object with type and id, got {shown_value(given)}"
            raise RequestError(ErrorCode.INVALID_TYPE, where, problem, _remedy(revision, types.target))
        return given["type"], given["id"]
    if isinstance(given, str) and "/" in given:
        name, _, id_ = given.partition("/")
        # A text id may have a slash of its own: what is before it is then no type, unless the id is written in full.
        if revision.has_text_ids and name not in {kind.name for kind in types.types}:
            return None, given
        return name, id_
    return None, given


_MOST_DIGITS = 20
_MOST_LOOKED_AT = 100
"""Nodes among which an example is looked for: the first ones may have left."""


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS


def _remedy(revision: ServedRevision, kind: TypeManifest) -> str:
    shown = next(iter(revision.shown_ids_of(kind, 0, _MOST_LOOKED_AT)), 0)
    forms = f'"{kind.name}/{shown}" or {{"type": "{kind.name}", "id": {shown_value(shown)}}}'
    return f"name nodes as {forms}"
