"""From the tensors of a request to a question: the nodes that it names, and what it brings along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_worker.asking.edge_payload import PayloadFields
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.overlay import OverlaySupport, check_edge_bytes, check_finite, check_sizes
from gnnserve_worker.asking.overlay_ids import NamedIds, place_ids
from gnnserve_worker.asking.question import ErrorCode, Question, RequestError, counted
from gnnserve_worker.asking.tensors import Elements, GivenTensor
from gnnserve_worker.graph.overlay import ALL_OF_FIRST, Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.question import check_variant, require_offset
from gnnserve_worker.serving.http.tensors.request import InferBody
from gnnserve_worker.serving.http.tensors.served import (
    EDGE_FEATURES,
    EDGE_TIMES,
    EDGES,
    NEW_FEATURES,
    NEW_NODES,
    NODES,
    OVERRIDE_FEATURES,
    OVERRIDES,
)
from gnnserve_worker.serving.http.wishes import VARIANT_HEADER

_PAYLOAD = PayloadFields(EDGE_FEATURES, EDGE_TIMES)


def to_question(
    read: InferBody,
    version: str | None,
    read_elements: Callable[[GivenTensor], Elements],
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> Question:
    """`version`: the variant that the request's place names. Raises RequestError, and BehindError before any id is
    looked up, which the changes may bring."""
    wanted, tensors = read.wishes, read.tensors
    revision.task.tensors.check_count(tensors[NODES].shape[0], max_nodes)
    if wanted.min_offset is not None:
        require_offset(wanted.min_offset, wanted.objective, wanted.timeout_ms, revision, read.offset_field)
    sizes: Mapping[str, int] = {}
    brings = False
    if len(tensors) > 1:
        sizes = {name: given.shape[0] for name, given in tensors.items()}
        brings = any(size for name, size in sizes.items() if name != NODES)  # what is empty is as absent
    variant = version or wanted.variant
    if variant is not None:
        where = "version" if version else VARIANT_HEADER.decode()
        check_variant(variant, read.outputs, brings, revision, where)
    support, overlays, naming = None, revision.compute.overlays, revision.graph.naming
    if brings:
        support = overlays.support(limits)
        _check_overlay(sizes, support, limits)
    if support is None:
        otherwise = overlays.hint if limits.max_nodes else ""
        overlay, elements = None, read_elements(tensors[NODES])
        if isinstance(elements, np.ndarray):
            seeds = naming.find_integers(elements, otherwise)
        else:
            seeds = naming.find(elements, otherwise)
        for name in sizes:
            read_elements(tensors[name])  # the others are empty: an element in them is an error
    else:
        brought = {name: read_elements(given) for name, given in tensors.items()}
        overlay, seeds = _arrange(brought, sizes.get(EDGES, 0), naming, support)
    return Question(
        seeds,
        wanted.objective,
        wanted.strict,
        read.outputs,
        overlay,
        wanted.seed,
        variant,
        read.form,
        wanted.timeout_ms,
        wanted.priority,
    )


def _check_overlay(sizes: Mapping[str, int], support: OverlaySupport, limits: OverlayLimits) -> None:
    """`sizes`: lengths of the request's tensors."""
    new, overrides = sizes.get(NEW_NODES, 0), sizes.get(OVERRIDES, 0)
    check_sizes(new, overrides, sizes.get(EDGES, 0), support.columns.features, limits)
    for ids, features in ((NEW_NODES, NEW_FEATURES), (OVERRIDES, OVERRIDE_FEATURES)):
        rows, nodes = sizes.get(features, 0), sizes.get(ids, 0)
        if rows != nodes:
            problem = f"{counted(rows, 'row')}, where {ids} has {counted(nodes, 'node')}"
            raise RequestError(ErrorCode.WRONG_FEATURES, features, problem, "give a row of all features for each")


def _arrange(
    elements: Mapping[str, Elements], edges: int, naming: NodeNaming, support: OverlaySupport
) -> tuple[Overlay, np.ndarray]:
    ids = NamedIds(*(_listed(elements.get(name, [])) for name in (NODES, NEW_NODES, EDGES, OVERRIDES)))
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


def _listed(elements: Elements) -> list[Any]:
    return elements.tolist() if isinstance(elements, np.ndarray) else elements
