"""Question that the tensors of a request ask: the nodes that they name, and what they bring along."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.http.protocol import TypedNodeFeatures, TypedOverlay
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.edge_payload import PayloadArrays, PayloadFields
from gnnserve_worker.asking.overlay_arrays import TypeColumns
from gnnserve_worker.asking.overlay_ids import EdgeFields, OverlayRequestIds
from gnnserve_worker.asking.overlay_parts import Counts
from gnnserve_worker.asking.question import IN_PARAMETERS, ErrorCode, RequestError, counted
from gnnserve_worker.asking.tensors import Elements, GivenTensor
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.request import InferBody
from gnnserve_worker.serving.http.tensors.served import (
    EDGE_FEATURES,
    EDGE_RELATIONS,
    EDGE_TIMES,
    EDGES,
    NEW_FEATURES,
    NEW_NODES,
    OVERRIDE_FEATURES,
    OVERRIDES,
)
from gnnserve_worker.serving.requests import Arrange, Ask

EDGE_FIELDS = EdgeFields(f"{EDGES}[{{}}][0]", f"{EDGE_RELATIONS}[{{}}]", f"{EDGES}[{{}}][1]")


def to_ask(
    read: InferBody,
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> Ask:
    """What the request asks, with its elements. Raises RequestError."""
    items, tensors = revision.task.items_for(read.outputs), read.tensors
    name = items.tensors.items
    items.tensors.check_count(tensors[name].shape[0], max_nodes)
    if len(tensors) > 1:
        arrange = arrange_of(tensors, name, read_elements, revision, limits)
        if arrange is not None:
            return Ask(items, (), read.outputs, read.wishes, IN_PARAMETERS, arrange, read.form)
    ids = read_elements(tensors[name])
    return Ask(items, ids, read.outputs, read.wishes, IN_PARAMETERS, answer_form=read.form)


def arrange_of(
    tensors: Mapping[str, GivenTensor],
    items: str,
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    limits: OverlayLimits,
) -> Arrange | None:
    """What tensors of an overlay bring, beside the one of the items, whose name is given; None: they are empty."""
    sizes = {name: given.shape[0] for name, given in tensors.items()}
    if any(size for name, size in sizes.items() if name != items):  # what is empty is as absent
        return partial(_arrange, tensors, items, sizes, read_elements, revision, limits)
    for given in tensors.values():
        read_elements(given)  # the others are empty: an element in them is an error
    return None


def _arrange(
    tensors: Mapping[str, GivenTensor],
    items: str,
    sizes: Mapping[str, int],
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    limits: OverlayLimits,
) -> tuple[Overlay, np.ndarray]:
    """`sizes`: lengths of the request's tensors."""
    overlays = revision.compute.overlays.arrays(limits)
    new, edges, overrides = (sizes.get(name, 0) for name in (NEW_NODES, EDGES, OVERRIDES))
    overlays.check(Counts(sizes[items], new, edges, overrides), limits)
    if overlays.form.names_types:
        _check_relations(sizes.get(EDGE_RELATIONS, 0), edges)
    elements = {name: read_elements(given) for name, given in tensors.items()}
    ids, new_ids, ends, overridden, relations = (
        as_list(elements.get(name, [])) for name in (items, NEW_NODES, EDGES, OVERRIDES, EDGE_RELATIONS)
    )
    payload = {
        one.place: PayloadArrays(
            PayloadFields(f"{EDGE_FEATURES}{one.suffix}", f"{EDGE_TIMES}{one.suffix}"),
            np.asarray(elements.get(f"{EDGE_FEATURES}{one.suffix}", ()), np.float32),
            np.asarray(elements.get(f"{EDGE_TIMES}{one.suffix}", ()), np.int64),
        )
        for one in overlays.form.relations
    }
    types = overlays.form.types
    return overlays.arrange_named(
        OverlayRequestIds(ids, new_ids, ends, overridden, relations, EDGE_FIELDS),
        _rows(elements, NEW_FEATURES, types), _rows(elements, OVERRIDE_FEATURES, types), payload,
    )  # fmt: skip


def joining(tensors: Mapping[str, GivenTensor], read_elements: Callable[[GivenTensor], Elements]) -> TypedOverlay:
    """New nodes and edges of the tensors `JOINING`, as JSON has them. Raises RequestError."""
    elements = {name: as_list(read_elements(given)) for name, given in tensors.items()}
    new, ends, relations = (elements.get(name, []) for name in (NEW_NODES, EDGES, EDGE_RELATIONS))
    _check_relations(len(relations), len(ends) // 2)
    edges = zip(ends[::2], relations, ends[1::2], strict=True)
    return TypedOverlay(nodes=tuple(map(TypedNodeFeatures, new)), edges=tuple(edges))


def _check_relations(named: int, edges: int) -> None:
    if named != edges:
        problem = f"{counted(named, 'name')}, where {EDGES} has {counted(edges, 'edge')}"
        raise RequestError(ErrorCode.MISSING_FIELD, EDGE_RELATIONS, problem, "give the name of the relation of each")


def _rows(elements: Mapping[str, Elements], name: str, types: Sequence[TypeColumns]) -> dict[int, np.ndarray]:
    """Rows of features by the place of their type, float32. `name`: of their tensors, without its end."""
    return {
        one.place: np.asarray(elements.get(f"{name}{one.suffix}", ()), np.float32).reshape(-1, one.columns)
        for one in types
    }


def as_list(elements: Elements) -> list[Any]:
    return elements.tolist() if isinstance(elements, np.ndarray) else elements
