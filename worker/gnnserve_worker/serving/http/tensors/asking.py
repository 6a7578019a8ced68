"""Question that the tensors of a request ask: the nodes that they name, and what they bring along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_worker.asking.edge_payload import PayloadFields
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.overlay import OverlaySupport, check_edge_bytes, check_finite, check_sizes
from gnnserve_worker.asking.overlay_ids import NamedIds, place_ids
from gnnserve_worker.asking.question import IN_PARAMETERS, ErrorCode, RequestError, counted
from gnnserve_worker.asking.tensors import Elements, GivenTensor
from gnnserve_worker.graph.overlay import ALL_OF_FIRST, Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.request import InferBody
from gnnserve_worker.serving.http.tensors.served import (
    EDGE_FEATURES,
    EDGE_TIMES,
    EDGES,
    NEW_FEATURES,
    NEW_NODES,
    OVERRIDE_FEATURES,
    OVERRIDES,
)
from gnnserve_worker.serving.requests import Arrange, Ask

_PAYLOAD = PayloadFields(EDGE_FEATURES, EDGE_TIMES)


def to_ask(
    read: InferBody,
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> Ask:
    """What the request asks, with its elements. Raises RequestError."""
    task, tensors = revision.task, read.tensors
    items = task.tensors.items
    task.tensors.check_count(tensors[items].shape[0], max_nodes)
    if len(tensors) > 1:
        arrange = arrange_of(tensors, items, read_elements, revision, limits)
        if arrange is not None:
            return Ask(task, (), read.outputs, read.wishes, IN_PARAMETERS, arrange, read.form)
    ids = read_elements(tensors[items])
    return Ask(task, ids, read.outputs, read.wishes, IN_PARAMETERS, answer_form=read.form)


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
    support = revision.compute.overlays.support(limits)
    _check_overlay(sizes, support, limits)
    elements = {name: read_elements(given) for name, given in tensors.items()}
    return _arrange_elements(elements[items], elements, sizes.get(EDGES, 0), revision.graph.naming, support)


def _check_overlay(sizes: Mapping[str, int], support: OverlaySupport, limits: OverlayLimits) -> None:
    """`sizes`: lengths of the request's tensors."""
    new, overrides = sizes.get(NEW_NODES, 0), sizes.get(OVERRIDES, 0)
    check_sizes(new, overrides, sizes.get(EDGES, 0), support.columns.features, limits)
    for ids, features in ((NEW_NODES, NEW_FEATURES), (OVERRIDES, OVERRIDE_FEATURES)):
        rows, nodes = sizes.get(features, 0), sizes.get(ids, 0)
        if rows != nodes:
            problem = f"{counted(rows, 'row')}, where {ids} has {counted(nodes, 'node')}"
            raise RequestError(ErrorCode.WRONG_FEATURES, features, problem, "give a row of all features for each")


def _arrange_elements(
    items: Elements, elements: Mapping[str, Elements], edges: int, naming: NodeNaming, support: OverlaySupport
) -> tuple[Overlay, np.ndarray]:
    brought = (elements.get(name, []) for name in (NEW_NODES, EDGES, OVERRIDES))
    ids = NamedIds(*(as_list(one) for one in (items, *brought)))
    placed = place_ids(ids, naming)
    rows = [np.asarray(elements.get(name, ()), np.float32) for name in (NEW_FEATURES, OVERRIDE_FEATURES)]
    features = np.concatenate(rows).reshape(-1, support.columns.features)
    check_finite(features, len(ids.new))
    payloads, payload = support.payloads, None
    if payloads.takes_any:
        check_edge_bytes(edges, payloads.width)
        own_features = np.asarray(elements.get(EDGE_FEATURES, ()), np.float32)
        own_times = np.asarray(elements.get(EDGE_TIMES, ()), np.int64)
        payload = payloads.read_arrays(own_features, own_times, edges, _PAYLOAD)
    return support.arrange(features, placed.overridden, placed.edges, placed.asked, ALL_OF_FIRST, ALL_OF_FIRST, payload)


def as_list(elements: Elements) -> list[Any]:
    return elements.tolist() if isinstance(elements, np.ndarray) else elements
