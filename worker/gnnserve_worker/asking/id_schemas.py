"""Ids of nodes in OpenAPI: how each naming describes them, and what it leaves out of requests and answers.

The namings are in `naming.py`. Schemas are those of OpenAPI 3.0, by name; they are changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Schemas = dict[str, Any]
POSSIBLE_IDS = range(-(2**63), 2**63)
"""Integers that a node of some graph may have as its id: those of 64 bits with a sign."""
_INTEGER, _TEXT = {"type": "integer"}, {"type": "string"}
_TYPE_OF_OTHERS = ("RecommendRequest", "properties", "type")
_ID_OF_TYPE = ("TypedNodeId",)
_OF_TYPES = (
    ("ExplainAnswer", "properties", "relations"),
    ("Neighbour", "properties", "relation"),
    ("ReadRelation",),
    _ID_OF_TYPE,
)


class IdSchemas(Protocol):
    @property
    def type_(self) -> type:
        """The type that requests are generic by."""

    @property
    def changes(self) -> str:
        """Schema of the changes that the graph takes."""

    def describe(self, schemas: Schemas, lists: Sequence[Schemas], types: Sequence[str], *, bounded: bool) -> None:
        """`lists`: schemas of lists of ids that are asked about. `types`: names of the types that may be.
        `bounded`: no other ids may stand there than those of the graph."""


@dataclass(frozen=True, slots=True)
class AnyIds:
    """No graph is served yet: ids of any graph whose nodes are called without a type."""

    type_: type = int
    changes: str = "ChangesRequest"

    def describe(self, schemas: Schemas, lists: Sequence[Schemas], types: Sequence[str], *, bounded: bool) -> None:
        either = {"anyOf": [_INTEGER, _TEXT]}
        for asked in (*lists, schemas["RequestOverlay"]["properties"]["edges"]["items"]):
            asked["items"] = either
        for name in ("NodeFeatures", "NewNode", "NodeLabel"):
            schemas[name]["properties"]["id"] = either
        for name in ("RecommendRequest", "ExplainRequest"):
            schemas[name]["properties"]["node"] |= either
            schemas[name]["properties"]["node"].pop("type", None)
        schemas["ExplainRequest"]["properties"]["pair"]["items"] = _filtered(schemas)["items"] = either
        changed = schemas["ChangesRequest"]["properties"]
        changed["removedNodes"]["items"] = either
        for name in ("edges", "removedEdges"):
            changed[name]["items"]["items"] = either


@dataclass(frozen=True, slots=True)
class PlainIds:
    """Ids without a type."""

    type_: type
    bounds: Mapping[str, int] = field(default_factory=dict)
    """Bounds of all ids of the graph; empty: they have none."""
    changes: str = "ChangesRequest"

    def describe(self, schemas: Schemas, lists: Sequence[Schemas], types: Sequence[str], *, bounded: bool) -> None:
        if bounded:
            for one in lists:
                one["items"] |= self.bounds
        if self.type_ is int:
            schemas["NewNode"]["properties"]["id"] |= {"minimum": POSSIBLE_IDS[0], "maximum": POSSIBLE_IDS[-1]}
        _filtered(schemas)["items"] = _INTEGER if self.type_ is int else _TEXT
        _leave_out(schemas, (_TYPE_OF_OTHERS, *_OF_TYPES))
        _name_without_types(schemas)


@dataclass(frozen=True, slots=True)
class TextsWithTypes:
    """Texts that name the type of each node, or objects of both."""

    type_: type = str
    changes: str = "ChangesRequest"

    def describe(self, schemas: Schemas, lists: Sequence[Schemas], types: Sequence[str], *, bounded: bool) -> None:
        _leave_out(schemas, (_ID_OF_TYPE,))
        _name_without_types(schemas)
        _name_with_types(schemas, lists, [_TEXT, _of_type(types)])


@dataclass(frozen=True, slots=True)
class IdsOfTarget:
    """Ids of nodes of any type, of which those without one are of the type that is answered for."""

    type_: type
    changes: str = "TypedChangesRequest"

    def describe(self, schemas: Schemas, lists: Sequence[Schemas], types: Sequence[str], *, bounded: bool) -> None:
        _name_with_types(schemas, lists, [_INTEGER, _TEXT, _of_type(types)])


def _filtered(schemas: Schemas) -> Schemas:
    """The list of nodes that recommendations are chosen from."""
    given = schemas["RecommendRequest"]["properties"]["filter"]
    (found,) = (one for one in given.get("anyOf", [given]) if "properties" in one)
    nodes: Schemas = found["properties"]["nodes"]
    return nodes


def _leave_out(schemas: Schemas, paths: Sequence[Sequence[str]]) -> None:
    for *within, name in paths:
        found = schemas
        for part in within:
            found = found[part]
        del found[name]


def _name_without_types(schemas: Schemas) -> None:
    node = schemas["LabelsRequest"]["properties"]["nodes"]["items"]
    end = schemas["PairLabelsRequest"]["properties"]["pairs"]["items"]["items"]
    for labelled in (node, end):
        labelled["anyOf"] = [one for one in labelled["anyOf"] if "$ref" not in one]


def _name_with_types(schemas: Schemas, lists: Sequence[Schemas], of_any: list[Schemas]) -> None:
    for one in (*lists, _filtered(schemas), schemas["ExplainRequest"]["properties"]["pair"]):
        one["items"] = {"anyOf": of_any}
    for name in ("RecommendRequest", "ExplainRequest"):
        node = schemas[name]["properties"]["node"]
        node.pop("type", None)
        node["anyOf"] = of_any


def _of_type(types: Sequence[str]) -> Schemas:
    named = {"type": {"type": "string", "enum": [*types]}, "id": {}}
    return {"type": "object", "properties": named, "required": ["type", "id"]}
