"""How good answers about nodes are that the graph has not seen.

A public graph is generated as usual; then its test nodes are hidden: no stored list has them any more, and they are
asked for as new nodes, with their features as the source has them and their edges. Once each alone, with its edges to
nodes that are not hidden, which is all that a client knows that brings one node: that is judged. And once all together,
with the edges among them, as the stored graph has them: how right the answers are where nothing is missing.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from tests.support.overlays.overlays import arrange_overlay

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of

DATASETS = Path(os.environ.get("GNNSERVE_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
# The public splits have too few training nodes for edges among them to train anything.
GRAPHS = {
    "cora": Scope.TRANSDUCTIVE,
    "citeseer": Scope.TRANSDUCTIVE,
    "amazon_photo": Scope.INDUCTIVE,
    "amazon_computers": Scope.INDUCTIVE,
    "coauthor_cs": Scope.INDUCTIVE,
}
_FACTORS = [1, 2, 4, 8]
_RUNS = 5
"""Keys over which accuracies are averaged, since neighbours are drawn."""
_AT_ONCE = 512
# Edges of a hidden node are listed one by one as its list has them, and so are those of the others.
_RULES = EdgeRules(Direction.DIRECTED, Duplicates.KEEP)


class HiddenAccuracy(msgspec.Struct, frozen=True, rename="camel"):
    graph: str
    variant: str
    stored: float
    """Test accuracy of the stored graph, as a fraction of 1."""
    unseen: float
    """The same for these nodes hidden, and asked for together."""
    alone: float
    """The same, each asked for without the other hidden ones."""


def measure_accuracy(graphs: int) -> list[HiddenAccuracy]:
    found = []
    for name in list(GRAPHS)[:graphs]:
        found += _of_graph(name)
    return found


def _of_graph(name: str) -> list[HiddenAccuracy]:
    source = GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))
    with tempfile.TemporaryDirectory(prefix="gnnserve-unseen-") as folder:
        repository = Repository(Path(folder), "benchmarks", name.replace("_", "-"))
        published = generate(_service(name, source, GRAPHS[name]), repository).revision
        loaded = load_revision(repository, published)
        features = load_source(source, Path(folder)).features
        hidden = Hidden(loaded, features)
        variants = [variant for variant, read in loaded.variants.items() if read.rows is not None]
        return [
            HiddenAccuracy(
                name, variant, hidden.stored(variant), hidden.together(variant), hidden.alone(variant)
            )
            for variant in variants
        ]  # fmt: skip


def _service(name: str, source: GraphSource, scope: Scope) -> GNNService:
    spec = {
        "graph": {"source": source.model_dump(by_alias=True, exclude_none=True, mode="json")},
        "model": {"architecture": "GraphSAGE", "training": {"scope": scope.value}},
        "variants": {"pruning": {"factors": _FACTORS, "wideTables": "Keep"}, "storage": ["float32"]},
    }
    metadata = {"name": name.replace("_", "-")}
    return GNNService.model_validate(
        {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": metadata, "spec": spec}
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """New nodes, in the order of `nodes`, and the edges that come with them."""

    nodes: np.ndarray
    edges: np.ndarray


class Hidden:
    """A revision whose test nodes no list has."""

    def __init__(self, loaded: LoadedRevision, features: Features, without: LoadedRevision | None = None) -> None:
        """`without`: a revision that was generated without the edges of test nodes. None: `loaded` with other lists,
        which is as good where no table knows of edges."""
        self._loaded = loaded
        self._features = features
        self._test = np.asarray(loaded.labels.splits.test)
        self.labels = np.asarray(loaded.labels.values)[self._test]
        kept = np.ones(loaded.graph.nodes, dtype=bool)
        kept[self._test] = False
        self._kept = kept
        self._revision = _without_lists(loaded, kept) if without is None else without

    def stored(self, variant: str) -> float:
        return self._mean(lambda key: infer_batch(self._loaded, variant, self._test, key).scores)

    def together(self, variant: str) -> float:
        asked = [self._ask(self._test)]
        return self._mean(lambda key: self._infer(variant, asked, key))

    def alone(self, variant: str) -> float:
        parts = self._parts_alone
        return self._mean(lambda key: np.concatenate([self._infer(variant, part, key) for part in parts]))

    def scores_alone(self, variant: str, key: int = 0) -> np.ndarray:
        """Scores of the test nodes, each brought by a request of its own."""
        return np.concatenate([self._infer(variant, part, key) for part in self._parts_alone])

    def scores_of_readers(self, variant: str, at_once: int, key: int = 0) -> np.ndarray:
        """Scores of the test nodes, brought by requests of so many, whose edges lead to them alone."""
        parts = [self._test[first : first + at_once] for first in range(0, len(self._test), at_once)]
        return np.concatenate([self._infer(variant, [self._ask_readers(part)], key) for part in parts])

    def p50_of_readers_ms(self, variants: Sequence[str], count: int, runs: int) -> dict[str, float]:
        """Time of a request that brings so many test nodes, whose edges lead to them alone; the variants take turns."""
        return self._p50_ms(variants, [self._ask_readers(self._test[:count])], runs)

    @cached_property
    def _parts_alone(self) -> list[list[_Asked]]:
        asked = [self._ask(np.array([node])) for node in self._test]
        return [asked[first : first + _AT_ONCE] for first in range(0, len(asked), _AT_ONCE)]

    def _mean(self, scores_by: Callable[[int], np.ndarray]) -> float:
        right = [(scores_by(key).argmax(axis=1) == self.labels).mean() for key in range(_RUNS)]
        return round(float(np.mean(right)), 4)

    def _ask(self, nodes: np.ndarray) -> _Asked:
        """The nodes as new ones: their lists, and the lists of stored nodes that had them."""
        full, first = self._loaded.graph, self._loaded.graph.nodes
        numbers = {int(node): first + k for k, node in enumerate(nodes)}
        seen = self._kept.copy()
        seen[nodes] = True
        edges = [
            (numbers.get(int(sender), int(sender)), numbers[node])
            for node in numbers
            for sender in _list_of(full, node)
            if seen[sender]
        ]
        for node, number in numbers.items():
            # The graphs are symmetric: who reads a node is in its own list.
            edges += [(number, int(reader)) for reader in _list_of(full, node) if self._kept[reader]]
        return _Asked(nodes, np.array(edges, np.int64).reshape(-1, 2))

    def _ask_readers(self, nodes: np.ndarray) -> _Asked:
        """The nodes as new ones which read stored nodes, and which no other node reads."""
        full, first = self._loaded.graph, self._loaded.graph.nodes
        lists = [[sender for sender in _list_of(full, node) if self._kept[sender]] for node in nodes]
        edges = [(sender, first + k) for k, senders in enumerate(lists) for sender in senders]
        return _Asked(nodes, np.array(edges, np.int64).reshape(-1, 2))

    def p50_alone_ms(self, variants: Sequence[str], count: int, runs: int) -> dict[str, float]:
        """Time of a batch of so many test nodes, each brought by a request of its own; the variants take turns."""
        return self._p50_ms(variants, [one for part in self._parts_alone for one in part][:count], runs)

    def _p50_ms(self, variants: Sequence[str], asked: list[_Asked], runs: int) -> dict[str, float]:
        parts, together = self._arrange(asked)
        took: dict[str, list[float]] = {variant: [] for variant in variants}
        for run in range(runs + 1):
            for variant in variants:
                seeds, started = together.copy(), time.perf_counter()
                view = view_of(self._revision.graph.nodes, parts, seeds)
                infer_batch(self._revision, variant, seeds, run, with_embeddings=False, view=view)
                took[variant].append(1e3 * (time.perf_counter() - started))
        return {variant: float(np.median(times[1:])) for variant, times in took.items()}

    def _infer(self, variant: str, asked: list[_Asked], key: int) -> np.ndarray:
        parts, together = self._arrange(asked)
        view = view_of(self._revision.graph.nodes, parts, together)
        return infer_batch(self._revision, variant, together, key, view=view).scores

    def _arrange(self, asked: list[_Asked]) -> tuple[list[Part], np.ndarray]:
        graph, parts, seeds = self._revision.graph, [], []
        for one in asked:
            features = self._features[one.nodes]
            dense = np.asarray(features if isinstance(features, np.ndarray) else features.toarray(), np.float32)
            new = np.arange(graph.nodes, graph.nodes + len(one.nodes))
            overlay, numbered = arrange_overlay(graph, _RULES, dense, np.zeros(0, np.int64), one.edges, new)
            parts.append(Part(len(numbered), overlay, None))
            seeds.append(numbered)
        return parts, np.concatenate(seeds)


def _without_lists(loaded: LoadedRevision, kept: np.ndarray) -> LoadedRevision:
    return loaded.over(loaded.graph.induced(kept))


def _list_of(graph: Graph, node: int) -> list[int]:
    listed: list[int] = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
    return listed
