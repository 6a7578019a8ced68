"""What OpenAPI says of graphs of several types: how requests name nodes, what they bring, which changes there are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.openapi_parts import REFERENCE


def describe_types(schemas: dict[str, Any], revision: ServedRevision | None, asks: str) -> None:
    """Ids and overlays of a graph of several types; of one type, what there is for several is left out."""
    properties, recommends = schemas[asks]["properties"], schemas["RecommendRequest"]["properties"]
    brought = {"$ref": REFERENCE.format(name="TypedOverlay")}
    takes = revision is not None and revision.compute.overlays.typed is not None
    joins = revision is not None and revision.graph.joins_types
    if takes:
        properties["overlay"] = brought
    if takes or joins:
        recommends["overlay"] = brought
    else:
        del schemas["TypedOverlay"], schemas["TypedNodeFeatures"]
    if revision is not None and revision.graph.typed is None and not joins:
        del recommends["type"]
    if revision is not None and revision.graph.typed is None:
        del schemas["ExplainAnswer"]["properties"]["relations"], schemas["Neighbour"]["properties"]["relation"]
        del schemas["ReadRelation"], schemas["TypedNodeId"]
        labelled = schemas["LabelsRequest"]["properties"]["nodes"]["items"]
        labelled["anyOf"] = [one for one in labelled["anyOf"] if "$ref" not in one]
    names: Sequence[str] = ()
    if revision is not None and revision.graph.typed is not None:
        names = [kind.name for kind in revision.graph.typed.types]
    elif joins and revision is not None and revision.task.links is not None:
        links = revision.task.links.manifest
        names = [*dict.fromkeys((links.first.type, links.second.type))]
    if names:
        named = {"type": {"type": "string", "enum": names}, "id": {}}
        of_type = {"type": "object", "properties": named, "required": ["type", "id"]}
        of_any: list[dict[str, Any]] = [{"type": "string"}, of_type]
        if joins:
            properties["pairs"]["items"]["items"] = {"anyOf": of_any}
        else:
            of_any = [{"type": "integer"}, *of_any]
            properties["nodes"]["items"] = {"anyOf": of_any}
        for node in (recommends["node"], schemas["ExplainRequest"]["properties"]["node"]):
            node.pop("type", None)
            node["anyOf"] = of_any


def with_content(schemas: dict[str, Any], revision: ServedRevision | None) -> dict[str, Any]:
    """Changes are those that the graph takes: of one type or of several, in requests and in records of the log."""
    left, right = ["TypedChangesRequest", "TypedNewNode"], "ChangesRequest"
    if revision is not None and revision.graph.typed is not None:
        left, right = ["ChangesRequest", "NewNode"], "TypedChangesRequest"
    text = json.dumps({name: schema for name, schema in schemas.items() if name not in {*left, "ChangesContent"}})
    named = text.replace(REFERENCE.format(name="ChangesContent"), REFERENCE.format(name=right))
    described: dict[str, Any] = json.loads(named)
    return described
