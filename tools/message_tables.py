"""Tables of the fields of messages over HTTP, for pages: names, types, defaults and meanings as the types tell them.

A field has its meaning in `Meta(description=…)`, which `/openapi.json` shows too, or in a docstring below it.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Meta

from gnnserve_api.docstrings import attribute_docstrings
from gnnserve_api.families import POINTS
from gnnserve_api.files.embeddings import IndexState
from gnnserve_api.files.profile import (
    CascadeProfile,
    LatencyProfile,
    LinkScores,
    NewNodesLatency,
    Profile,
    StaleChanges,
    StaleLayerProfile,
    StalePoint,
    VariantProfile,
    WholeNeighbours,
)
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.http.changes import ChangeRecord, ChangesAnswer, ChangesPage, ChangesRequest
from gnnserve_api.http.explain import ExplainRequest
from gnnserve_api.http.live_accuracy import (
    AccuracyAnswer,
    InputDrift,
    LabelsRequest,
    ObservedShare,
    VariantAccuracy,
)
from gnnserve_api.http.pairs import PairsRequest
from gnnserve_api.http.protocol import (
    AccuracyTier,
    NodeFeatures,
    NodeTypeAnswer,
    PredictAnswer,
    PredictRequest,
    RelationAnswer,
    RequestOverlay,
    StaleLayerAnswer,
    VariantsAnswer,
)
from gnnserve_api.http.recommend import ColumnCondition, RecommendAnswer, RecommendRequest
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Route, VariantRoute

_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "boolean", "object": "object"}


@dataclass(frozen=True, slots=True)
class Part:
    """A message of a table, whose fields are listed with a prefix, as `objective.` of a request."""

    of: type[msgspec.Struct]
    prefix: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """Where a field, by its name, is told of at length."""
    without: frozenset[str] = frozenset()
    """Fields that another table has."""


@dataclass(frozen=True, slots=True)
class MessageTable:
    parts: tuple[Part, ...]
    is_request: bool = False
    """Whether types and defaults are listed: who sends a message has to know them."""

    @property
    def head(self) -> tuple[str, ...]:
        return ("field", "type", "default", "meaning") if self.is_request else ("field", "meaning")

    def rows(self) -> Iterator[tuple[str, ...]]:
        for part in self.parts:
            texts, schema = message_texts(part.of), _schema(part.of) if self.is_request else {}
            for each in msgspec.structs.fields(part.of):
                name = each.encode_name
                if name in part.without:
                    continue
                shown = f"`{part.prefix}{name}`"
                linked = f"[{shown}]({part.links[name]})" if name in part.links else shown
                told = texts[each.name]
                if self.is_request:
                    yield linked, _type(schema["properties"][name]), _default(name, schema), told
                else:
                    yield linked, told


def message_texts(message: type[msgspec.Struct]) -> dict[str, str]:
    """Meanings of fields, by their attributes' names."""
    hints = typing.get_type_hints(message, include_extras=True)
    described = {name: text for name, hint in hints.items() if (text := _described(hint))}
    # Docstrings are for those who read the type: they name attributes, and None.
    as_sent = {f"`{each.name}`": f"`{each.encode_name}`" for each in msgspec.structs.fields(message)} | {"None": "null"}
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in as_sent))
    below = {
        name: pattern.sub(lambda found: as_sent[found[0]], text) for name, text in attribute_docstrings(message).items()
    }
    return {name: " ".join(text.split()) for name, text in (below | described).items()}


def _described(hint: Any) -> str:
    """The description of a type, or of the first part of a union that has one."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, Meta) and meta.description:
            return meta.description
    return next((text for part in typing.get_args(hint) if (text := _described(part))), "")


def _schema(message: Any) -> dict[str, Any]:
    of_any_ids = message[int | str] if typing.TypeVar in map(type, getattr(message, "__parameters__", ())) else message
    (reference,), components = msgspec.json.schema_components([of_any_ids], ref_template="{name}")
    return dict(components[reference["$ref"]])


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"anyOf": list(ways)}:
            return " or ".join(dict.fromkeys(_type(way) for way in ways if way != {"type": "null"}))
        case {"type": "array", "items": dict(items)} if items:
            return f"list of {_type(items)}"
        case {"type": "array"}:
            return "list"
        case {"type": str(name)}:
            return _TYPES[name]
        case {"enum": list(words)}:
            return " or ".join(f"`{word}`" for word in words)
    return "object"


def _default(name: str, schema: Mapping[str, Any]) -> str:
    if name in schema.get("required", ()):
        return "required"
    value = schema["properties"][name].get("default")
    return "" if value in (None, [], {}) else f"`{json.dumps(value)}`"


_WISHES = {
    "objective": "#objective", "overlay": "#what-the-graph-does-not-have",
    "minOffset": "updates.md#reading-your-own-writes",
}  # fmt: skip
_OF_PREDICTIONS = frozenset({"objective", "strict", "overlay", "seed", "minOffset"})

MESSAGES: Mapping[str, MessageTable] = {
    "fields of a prediction": MessageTable(
        (
            Part(
                PredictRequest,
                links=_WISHES
                | {
                    "nodes": "#node-ids-and-labels",
                    "variant": "#naming-a-variant",
                    "timeoutMs": "#timeouts",
                    "priority": "#priorities",
                },
            ),
            Part(Objective, "objective."),
        ),
        is_request=True,
    ),
    "fields of its answer": MessageTable((Part(PredictAnswer),)),
    "fields of an overlay": MessageTable((Part(RequestOverlay), Part(NodeFeatures, "nodes[]."))),
    "fields of the variants": MessageTable(
        (
            Part(
                VariantsAnswer,
                links={
                    "recipe": "repository.md",
                    "nodeIds": "#node-ids-and-labels",
                    "links": "#pairs",
                    "accuracy": "#accuracy-in-service",
                    "stale": "variants.md#stored-layers-that-may-be-stale",
                },
            ),
            Part(NodeTypeAnswer, "types[]."),
            Part(RelationAnswer, "relations[].", without=frozenset({"edgeFeatures", "edgeTime"})),
            Part(
                Profile,
                "profile.",
                links={
                    "search": "variants.md#searching-for-variants",
                    "staleLayers": "variants.md#stored-layers-that-may-be-stale",
                },
            ),
            Part(AccuracyTier, "tiers[]."),
            Part(StaleLayerAnswer, "stale[]."),
            Part(Provenance, "provenance.", links={"assumptions": "models.md#what-a-file-cannot-tell"}),
        )
    ),
    "fields of a profiled variant": MessageTable(
        (
            Part(VariantProfile, links={"table": "repository.md", "validationLinks": "links.md#how-good-it-is"}),
            Part(LatencyProfile, "latency[]."),
            Part(NewNodesLatency, "newNodes[]."),
            Part(CascadeProfile, "cascade."),
        )
    ),
    "fields of a stale layer": MessageTable(
        (
            Part(StaleLayerProfile),
            Part(WholeNeighbours, "whole."),
            Part(StaleChanges, "changes[]."),
            Part(StalePoint, "changes[].points[]."),
        )
    ),
    "fields of judged links": MessageTable((Part(LinkScores),)),
    "fields of labels": MessageTable((Part(LabelsRequest),)),
    "fields of accuracy": MessageTable(
        (
            Part(AccuracyAnswer),
            Part(VariantAccuracy, "variants[]."),
            Part(ObservedShare, "variants[].labels."),
            Part(InputDrift, "inputs[]."),
        )
    ),
    "fields of the route": MessageTable(
        (
            Part(
                Route,
                links={
                    "mode": "routing.md#modes",
                    "refresh": "variants.md#stored-layers-that-may-be-stale",
                    "needsToken": "#tls-and-tokens",
                    "device": "gpu.md",
                    "accuracy": "#accuracy-in-service",
                    "program": "programs.md",
                    "canary": "operator.md#a-second-revision-for-a-share-of-the-requests",
                },
            ),
            Part(VariantRoute, "variants[]."),
        )
    ),
    "fields of an explanation": MessageTable((Part(ExplainRequest),), is_request=True),
    "fields of a recommendation": MessageTable(
        (Part(RecommendRequest, without=_OF_PREDICTIONS, links={"filter": "#filters-by-columns"}),), is_request=True
    ),
    "fields of recommendations": MessageTable((Part(RecommendAnswer), Part(IndexState, "index."))),
    "fields of changes": MessageTable((Part(ChangesRequest),)),
    "fields of their answer": MessageTable((Part(ChangesAnswer),)),
    "fields of the log": MessageTable((Part(ChangesPage), Part(ChangeRecord, "records[]."))),
    "fields of pairs": MessageTable(
        (Part(PairsRequest, without=_OF_PREDICTIONS | {"variant", "timeoutMs", "priority"}),), is_request=True
    ),
    "conditions of columns": MessageTable((Part(ColumnCondition),)),
}


def families() -> Sequence[tuple[str, str]]:
    """Names of families, and what their variants save."""
    by_text = dict[str, list[str]]()
    for name, point in POINTS.items():
        by_text.setdefault(point.description, []).append(f"`{name}`")
    return [(", ".join(names), text) for text, names in by_text.items()]
