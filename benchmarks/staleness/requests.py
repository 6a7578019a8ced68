"""Hidden nodes that requests bring, answered by a worker over a stored layer that may be stale: answers that differ
from exact, right answers and time, by the share of the rows that the requests change which is made anew.

The network of three layers is served over a graph that lacks the new nodes' edges. A request brings copies of such
nodes with their edges to nodes of the graph. Its own rows are always made; a share of the others that it changes is the
budget. Beside it the exact first stored layer, whole neighbourhoods, and drawn ones, in the same run.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from benchmarks.staleness.costs import NOTHING, ROOM_BYTES, SAMPLED, STORED, WHOLE, Effort
from benchmarks.staleness.networks import Edges
from benchmarks.staleness.rules import SHARES, Scene
from gnnserve_api.variants import fanouts_name, stored_layer_name
from gnnserve_worker.generation.played_changes import Edges as BroughtEdges
from gnnserve_worker.generation.played_changes import PlayedChanges
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.batch import Inference, draw_sample, warm_up
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch

FIRST = stored_layer_name(1)
TOGETHER = 64
"""Requests of a large batch. Each sees a graph of its own: whole neighbourhoods of many more take gigabytes."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Batches of so many requests, each of which brings one node, through one variant."""

    variant: str
    seeds: int
    share: float | None
    """Share of the rows that requests change which is made anew; None: all are that the variant reads."""
    rows_made: float
    """Rows of a batch that are made for it, beside those of nodes that requests bring: mean."""
    p50_us: float
    differing: float
    """Percent of the answers that differ from those over whole neighbourhoods."""
    right: float
    """Percent of the answers that are right."""


@dataclass(frozen=True, slots=True)
class RequestCosts:
    graph: str
    nodes: int
    hidden: int
    """Nodes that requests bring."""
    edges: float
    """Edges that come with one of them, mean."""
    costs: tuple[RequestCost, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    took_us: float
    classes: np.ndarray
    made: int


class HiddenNodes:
    """A revision that lacks the edges of some nodes, asked about copies of these that requests bring."""

    def __init__(self, repository: Repository, revision: str, edges: Edges, scene: Scene) -> None:
        self._loaded = load_revision(repository, revision, ROOM_BYTES)
        self._living = LivingRevision(self._loaded, ROOM_BYTES, refresh=NOTHING)
        within = served_revision(self._loaded, self._living).compute.infer_within
        assert within is not None  # noqa: S101 - layers follow changes
        self._infer, self._scratch = within(math.inf), Scratch()
        warm_up(self._loaded)
        played = PlayedChanges(self._loaded, self._living)
        is_own = scene.is_new_node[edges.targets] & ~scene.is_new_node[edges.sources]
        ends = np.stack((edges.sources[is_own], edges.targets[is_own]), axis=1)
        degrees = np.bincount(ends[:, 1], minlength=edges.nodes)
        self.nodes = scene.asked[degrees[scene.asked] > 0]
        """Hidden nodes that have edges to nodes of the graph, int64."""
        self.mean_edges = float(degrees[self.nodes].mean())
        brought = BroughtEdges(np.zeros(len(ends), np.int64), ends)
        self._brought = {node: played.brought(brought, np.array([node])) for node in self.nodes.tolist()}

    def ask(self, variant: str, nodes: np.ndarray, key: int, share: float | None = None) -> _Answer:
        """Answer one batch of a request for each node (int64). `share`: as of `RequestCost`."""
        view, seeds = self._view_of([self._brought[node] for node in nodes.tolist()])
        refreshing, first = self._living.refreshing, 0
        refreshing.budget = None
        if share is not None:
            first, others = self._changed(variant, view, seeds, key)
            refreshing.budget = replace(NOTHING, rows=first + math.ceil(share * others))
        began_s = time.perf_counter()
        found: Inference = self._infer(variant, seeds, key, with_embeddings=False, view=view)
        took_us = 1e6 * (time.perf_counter() - began_s)
        made = 0 if found.stale is None else found.stale.brought - first
        return _Answer(took_us, found.scores.argmax(1), made)

    def _view_of(self, brought: Sequence[tuple[Overlay, np.ndarray]]) -> tuple[BatchView, np.ndarray]:
        seeds = np.concatenate([own for _, own in brought])
        view = view_of(self._loaded.graph.nodes, [Part(len(own), one, seed=None) for one, own in brought], seeds)
        assert view is not None  # noqa: S101 - there are overlays
        return view, seeds

    def _changed(self, variant: str, view: BatchView, seeds: np.ndarray, key: int) -> tuple[int, int]:
        """Rows of nodes that requests bring which the batch reads, and others that they change."""
        opened = self._loaded.variants[variant]
        assert opened.rows is not None and opened.rows.reaching is not None  # noqa: S101 - it is behind the first
        sample = draw_sample(self._loaded, opened, seeds, key, view.sampling, self._scratch, share=True)
        is_first = opened.rows.reaching.reached(view, sample).is_first
        return int(is_first.sum()), int((~is_first).sum())


def measure_requests(
    name: str, repository: Repository, revision: str, edges: Edges, scene: Scene, labels: np.ndarray, effort: Effort
) -> RequestCosts:
    hidden, rng = HiddenNodes(repository, revision, edges, scene), np.random.default_rng(17)
    chosen = rng.permutation(hidden.nodes)
    single = [*chosen[: effort.requests, None]]
    many, found = [chosen[:TOGETHER]] * effort.repeats, list[RequestCost]()
    ways: list[tuple[str, float | None]] = [*((STORED, share) for share in SHARES)]
    ways += [(variant, None) for variant in (FIRST, WHOLE, fanouts_name(WHOLE, SAMPLED))]
    for batches in (single, many):
        exact = [hidden.ask(WHOLE, nodes, 0).classes for nodes in batches]
        for variant, share in ways:
            answers = [hidden.ask(variant, nodes, key, share) for key, nodes in enumerate(batches)]
            found.append(_cost(variant, share, batches, answers, exact, labels))
    return RequestCosts(name, edges.nodes, len(hidden.nodes), round(hidden.mean_edges, 1), tuple(found))


def _cost(
    variant: str, share: float | None, batches: Sequence[np.ndarray], answers: Sequence[_Answer],
    exact: Sequence[np.ndarray], labels: np.ndarray,
) -> RequestCost:  # fmt: skip
    classes = np.concatenate([one.classes for one in answers])
    return RequestCost(
        variant, len(batches[0]), share, round(statistics.fmean(one.made for one in answers), 1),
        round(statistics.median(one.took_us for one in answers), 1),
        round(100 * float((classes != np.concatenate(exact)).mean()), 3),
        round(100 * float((classes == labels[np.concatenate(batches)]).mean()), 3),
    )  # fmt: skip
