"""Measuring what batches of variants take: for the profile of a revision, and again by a worker on another device.

By the functions that answer requests, but that seeds which are drawn twice, out of a small split, are computed twice:
what is promised holds for different ones. Variants take turns, so that a machine whose speed drifts is unfair to none
of them.

A variant that is fast for stored nodes may be slow for nodes that a request brings along, since it has to make what is
stored of the others. These are measured with one overlay for the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import msgspec
import numpy as np

from gnnserve_api.files.profile import LatencyProfile, NewNodesLatency
from gnnserve_worker.graph.overlay import Overlay, OverlayArranger, overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of_one_type
from gnnserve_worker.inference.batch import Infer, Inference
from gnnserve_worker.models.network import Layer
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.batch_view import Part, view_of

# --- stored nodes


def measure_latencies(
    infer: Callable[[str, np.ndarray, int], Inference],
    variants: Collection[str],
    nodes: np.ndarray,
    seeds: int,
    *,
    budget_s: float,
    rounds: tuple[int, int],
) -> dict[str, LatencyProfile]:
    """By variant; of batches of `seeds` out of `nodes` (int64 ids). `infer`: of variant, seeds and key.

    For `budget_s`, over all variants; but `rounds` at least and at most.
    """
    draw = np.random.default_rng(seeds)
    runs: dict[str, list[Inference]] = {name: [] for name in variants}
    started = time.perf_counter()
    fewest, most = rounds
    for round_number in range(most):
        if round_number >= fewest and time.perf_counter() - started > budget_s:
            break
        batch = draw.choice(nodes, seeds, replace=len(nodes) < seeds)
        for name in variants:
            runs[name].append(infer(name, batch, round_number))
    return {name: _summarize(seeds, measured) for name, measured in runs.items()}


def _summarize(seeds: int, runs: list[Inference]) -> LatencyProfile:
    total = np.array([run.times.total_ms for run in runs])
    window = np.array([run.times.gather_ms + run.times.compute_ms for run in runs])
    return LatencyProfile(
        seeds=seeds,
        runs=len(runs),
        p50_ms=rounded_ms(np.percentile(total, 50)),
        p99_ms=rounded_ms(np.percentile(total, 99)),
        mean_ms=rounded_ms(total.mean()),
        std_ms=rounded_ms(total.std()),
        sample_ms=rounded_ms(np.median([run.times.sample_ms for run in runs])),
        gather_ms=rounded_ms(np.median([run.times.gather_ms for run in runs])),
        compute_ms=rounded_ms(np.median([run.times.compute_ms for run in runs])),
        gathered_bytes=round(np.mean([run.gathered_bytes for run in runs])),
        window_p50_ms=rounded_ms(np.percentile(window, 50)),
        window_mean_ms=rounded_ms(window.mean()),
        window_std_ms=rounded_ms(window.std()),
    )


def rounded_ms(duration_ms: float | np.floating) -> float:
    """Round to 0.1 µs: no clock here is finer."""
    return round(float(duration_ms), 4)


# --- new nodes


_MOST_NEIGHBOURS = 32
"""Most neighbours that a new node reads: a request that lists more is rare, and draws few more rows."""
_MEASURED_SLOTS = (1,)
"""Neighbour lists of a node of each type, in graphs that new nodes can be made up for."""
_MEASURED_LAYERS = {Layer}
"""Kinds of layers that new nodes can be made up for, of features and neighbours alone."""


def measured_with_new_nodes(revision: LoadedRevision) -> tuple[str, ...]:
    """Names of the variants whose batches of new nodes are measured: those that make rows, for layers over one
    relation. Over several, what new nodes cost is learnt in service, since it depends on their types; so is what nodes
    cost whose edges have features."""
    schema = revision.graph.schema
    return tuple(
        name
        for name, variant in revision.variants.items()
        if variant.rows is not None and _can_be_made_up_for(variant, schema.slots)
    )


def _can_be_made_up_for(variant: LoadedVariant, slots: tuple[int, ...]) -> bool:
    if slots != _MEASURED_SLOTS:
        return False
    layers = variant.network.layers
    if not layers:  # a program, which reads rows of nodes
        return not variant.reads_payload
    return type(layers[0]) in _MEASURED_LAYERS


def measure_new_nodes(
    infer: Infer, variants: Collection[str], revision: LoadedRevision, nodes: np.ndarray, seeds: int, *,
    budget_s: float, rounds: tuple[int, int],
) -> dict[str, NewNodesLatency]:  # fmt: skip
    """Latencies of batches of `seeds` new nodes, by variant; each of `variants` can answer requests with an overlay.
    Each new node reads what one of `nodes` (int64 ids) reads, and has features drawn at random.

    For `budget_s`, over all variants; but `rounds` at least and at most.
    """
    if not variants:
        return {}
    draw = np.random.default_rng(seeds)
    runs: dict[str, list[Inference]] = {name: [] for name in variants}
    edges: list[int] = []
    started = time.perf_counter()
    fewest, most = rounds
    arranger = overlay_arranger(revision.graph, places_of_one_type(revision.graph.nodes))
    for round_number in range(most):
        if round_number >= fewest and time.perf_counter() - started > budget_s:
            break
        like = draw.choice(nodes, seeds, replace=len(nodes) < seeds)
        features = draw.random((seeds, revision.new_nodes.features), dtype=np.float32)
        overlay, asked = _overlay_like(arranger, like, features)
        edges.append(overlay.edges)
        for name in variants:
            runs[name].append(_infer(infer, name, revision.graph.nodes, overlay, asked.copy(), round_number))
    feature_bytes = 4 * seeds * revision.new_nodes.features
    return {
        name: _summarize_new_nodes(seeds, round(np.mean(edges)), feature_bytes, found) for name, found in runs.items()
    }


def _overlay_like(arranger: OverlayArranger, like: np.ndarray, features: np.ndarray) -> tuple[Overlay, np.ndarray]:
    """One new node for each node of `like`, with the first of its neighbours; and the new nodes as seeds."""
    graph = arranger.graph
    new = graph.nodes + np.arange(len(like), dtype=np.int64)
    lists = [graph.list_of(node)[:_MOST_NEIGHBOURS] for node in like]
    readers = np.repeat(new, [len(neighbours) for neighbours in lists])
    edges = np.stack([np.concatenate(lists).astype(np.int64), readers], axis=1)
    return arranger.arrange(features, np.zeros(0, np.int64), edges, new)


def _infer(infer: Infer, variant: str, nodes: int, overlay: Overlay, seeds: np.ndarray, key: int) -> Inference:
    started = time.perf_counter()
    view = view_of(nodes, [Part(len(seeds), overlay, seed=None)], seeds)
    joined_ms = (time.perf_counter() - started) * 1e3
    inference = infer(variant, seeds, key, with_embeddings=False, view=view)
    return msgspec.structs.replace(inference, times=inference.times.after_overlay(joined_ms))


def _summarize_new_nodes(seeds: int, edges: int, feature_bytes: int, runs: list[Inference]) -> NewNodesLatency:
    total_ms = [run.times.total_ms for run in runs]
    return NewNodesLatency(
        seeds=seeds,
        edges=edges,
        feature_bytes=feature_bytes,
        runs=len(runs),
        p50_ms=rounded_ms(np.percentile(total_ms, 50)),
        p99_ms=rounded_ms(np.percentile(total_ms, 99)),
        overlay_ms=rounded_ms(np.median([run.times.overlay_ms for run in runs])),
    )
