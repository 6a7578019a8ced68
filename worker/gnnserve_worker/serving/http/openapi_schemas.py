"""The component schemas of `/openapi.json`, from the msgspec types that parse and encode.

Each value of the served revision describes its own: the task its requests and answers, the naming of nodes its ids, the
overlays what requests bring along.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from gnnserve_api.http.changes import ChangesAnswer, ChangesPage, ChangesRequest, TypedChangesRequest
from gnnserve_api.http.explain import ExplainAnswer, ExplainRequest
from gnnserve_api.http.live_accuracy import AccuracyAnswer, LabelsAnswer, LabelsRequest, PairLabelsRequest
from gnnserve_api.http.load_history import HistoryAnswer
from gnnserve_api.http.protocol import ErrorAnswer, NodesAnswer, TypedOverlay, VariantsAnswer
from gnnserve_api.http.recommend import RecommendAnswer, RecommendRequest
from gnnserve_api.pods.routing import Route
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.id_schemas import AnyIds, IdSchemas
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.question import LATENCY_BOUNDS, TOLERANCE_BOUNDS
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.openapi_parts import REFERENCE, to_openapi_30
from gnnserve_worker.tasks.description import TaskDescription
from gnnserve_worker.tasks.serving import UNSERVED

_OF_CHANGES = {"ChangesRequest": "NewNode", "TypedChangesRequest": "TypedNewNode"}
"""Requests that change graphs, each with the schema that it alone refers to."""
_LOGGED = "ChangesContent"
"""The content of a record of the log: a request that changed the graph."""


@dataclass(frozen=True, slots=True)
class DescribedService:
    """The parts of a service by which requests and answers differ."""

    task: TaskDescription
    ids: IdSchemas
    overlays: OverlaySchemas
    takes_arrays: bool
    """Whether requests may bring anything along in forms of arrays."""
    variants: tuple[str, ...] | None
    """None: they are not known yet."""
    changes: bool
    """Whether the graph changes."""
    types: tuple[str, ...] = ()
    """Names of the types that nodes may be of which are asked about."""


def described(revision: ServedRevision | None) -> DescribedService:
    """Requests are those that the served graph takes; of any graph without types, where none is served."""
    if revision is None:
        return DescribedService(UNSERVED, AnyIds(), overlay_schemas.PLAIN, True, None, changes=True)
    task, overlays = revision.task, revision.compute.overlays
    return DescribedService(
        task.description, revision.graph.naming.schemas, overlays.schemas, overlays.array_form.are_taken,
        tuple(revision.capabilities), revision.changes.log.offset is not None, task.types,
    )  # fmt: skip


def component_schemas(of: DescribedService) -> dict[str, Any]:
    task, id_ = of.task, of.ids.type_
    _, components = msgspec.json.schema_components(
        [
            task.request[id_],
            task.answer,
            ErrorAnswer,
            VariantsAnswer,
            NodesAnswer,
            HistoryAnswer,
            Route,
            AccuracyAnswer,
            LabelsRequest,
            PairLabelsRequest,
            LabelsAnswer,
            ChangesRequest[id_],  # type: ignore[valid-type]
            ChangesAnswer,
            ChangesPage,
            TypedChangesRequest,
            TypedOverlay,
            RecommendRequest[id_],  # type: ignore[valid-type]
            RecommendAnswer,
            ExplainRequest[id_],  # type: ignore[valid-type]
            ExplainAnswer,
        ],
        ref_template=REFERENCE,
    )
    # Types with ids are named by the kind of ids as well: PredictRequest_int_, PredictRequest[int]. The content of a
    # record may have ids of either kind: the graph's is described.
    of_graph = {name: schema for name, schema in components.items() if not name.endswith("_Any_")}
    plain: dict[str, Any] = json.loads(re.sub(r"(?:_(?:int|str|Any)_|\[(?:int|str)\])(?=\")", "", json.dumps(of_graph)))
    schemas = {name: to_openapi_30(schema) for name, schema in _with_content(plain, of.ids.changes).items()}
    request, answer = task.request.__name__, task.answer.__name__
    bounded = task.tells_bounds and not of.takes_arrays
    of.ids.describe(schemas, task.lists_of(schemas), of.types, bounded=bounded)
    of.overlays.describe(schemas, request)
    asks, recommends = schemas[request]["properties"], schemas["RecommendRequest"]["properties"]
    if not of.changes:
        del asks["minOffset"], recommends["minOffset"], schemas["RecommendAnswer"]["properties"]["offset"]
        schemas[answer]["properties"].pop("offset", None)
    if of.variants is not None:
        named = {"enum": [*of.variants, None]}
        asks["variant"] |= named
        schemas["ExplainRequest"]["properties"]["variant"] |= named
    # Exactly one of both is given, which a type cannot say.
    schemas["ExplainRequest"]["oneOf"] = [{"required": ["node"]}, {"required": ["pair"]}]
    objective = schemas["Objective"]["properties"]
    objective["latencyMs"] |= LATENCY_BOUNDS
    objective["accuracyTolerancePermille"] |= TOLERANCE_BOUNDS
    return schemas


def _with_content(schemas: dict[str, Any], changes: str) -> dict[str, Any]:
    """Changes are those that the graph takes, in requests and in records of the log. `changes`: their schema."""
    left = {_LOGGED, *(name for request, own in _OF_CHANGES.items() if request != changes for name in (request, own))}
    text = json.dumps({name: schema for name, schema in schemas.items() if name not in left})
    found: dict[str, Any] = json.loads(text.replace(REFERENCE.format(name=_LOGGED), REFERENCE.format(name=changes)))
    return found
