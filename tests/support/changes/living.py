"""Graphs that change, beside a plain model of what changes mean: lists in Python, from which a graph is built anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.support.generation.generated import generate_over
from tests.support.generation.learning import labels_of
from tests.support.graphs.graphs import Tensors, dense_features, random_tensors

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.generation import one_relation
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeCounts, encode_batch
from gnnserve_worker.graph.change_ids import ChangeIds, IntegerIds, TextIds
from gnnserve_worker.graph.ids import NodeIds, integer_ids, lay_out, string_ids
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

FEATURES = 12
ROOM_BYTES = 1 << 26
MODELS = {
    "GraphSAGE": {"architecture": "GraphSAGE"},
    "GIN": {"architecture": "GIN"},
    "GCN": {"architecture": "GCN"},
    "GAT": {"architecture": "GAT", "heads": 2, "outputHeads": 2},
}
VARIANTS = {"pruning": {"factors": [1, 2]}, "stored": [1]}
DEEPER = {"pruning": {"factors": [1]}, "stored": [1, 2], "storedFollowChanges": True, "storage": ["float32", "int8"]}


class RandomModels:
    """The same weights for every graph."""

    runs = ()
    decoder: Mapping[str, np.ndarray] = {}

    def __init__(self, network: NetworkManifest, features: int = FEATURES) -> None:
        self._network, self._features = network, features

    def master(self, name: str) -> Tensors:
        return random_tensors(self._network, self._features, seed=1)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return random_tensors(self._network, len(columns), seed=2)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        raise AssertionError(name)

    def another_master(self, seed: int, name: str) -> Tensors:
        raise AssertionError(name)


def generated(
    root: Path,
    digest: str,
    architecture: str,
    data: tuple[Graph, np.ndarray, EdgeRules],
    *,
    ids: NodeIds | None = None,
    variants: dict[str, object] = VARIANTS,
    max_delta_bytes: int | None = None,
    layers: int | None = None,
) -> LoadedRevision:
    """A revision as generation makes it, over all neighbours; features are not scaled. With `max_delta_bytes` it is
    opened for changes. `layers`: those of the network; None: as many as are stored, and two at least."""
    graph, features, rules = data
    stored: Any = variants["stored"]
    layers = layers or max(2, *stored)
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}, "normalization": "Disabled"},
            "model": {"fanouts": [-1] * layers, "hidden": 8, **MODELS[architecture]},
            "variants": variants,
        }
    )
    nodes = len(features)
    given = GraphData.of_one_type(
        source="made up", digest=digest, graph=graph, features=features, labels=np.zeros(nodes, np.int64),
        classes=(0, 1, 2), splits=Splits(*(np.arange(start, nodes, 3) for start in range(3))), edge_rules=rules,
        ids=ids,
    )  # fmt: skip
    repository = Repository(root, "tests", digest)
    models = RandomModels(spec.model.network(3), features.shape[1])
    # All variants are kept, also those that others happen to be as accurate and as fast as.
    with patch.object(one_relation, "worth_keeping", tuple):
        made = generate_over(spec, given, labels_of(given), repository, lambda data, features: models)
    return load_revision(repository, made.revision, max_delta_bytes)


class PlainGraph:
    """What a graph is after changes, by its clients' ids."""

    def __init__(self, nodes: int, seed: int, rules: EdgeRules, ids: list[int] | list[str] | None = None) -> None:
        draw = np.random.default_rng(seed)
        self.rules = rules
        features = dense_features(nodes, FEATURES, seed)
        self.first_ids = [*(ids or range(nodes))]
        self.features = {id_: features[i] for i, id_ in enumerate(self.first_ids)}
        self.lists: dict[int | str, list[int | str]] = {id_: [] for id_ in self.first_ids}
        for source, target in draw.integers(0, nodes, (3 * nodes, 2)).tolist():
            self.add_edge(self.first_ids[source], self.first_ids[target])

    def _entries(self, source: int | str, target: int | str) -> list[tuple[int | str, int | str]]:
        if source == target and self.rules.self_loops is SelfLoops.REMOVE:
            return []
        reader, sender = (source, target) if self.rules.direction is Direction.REVERSED else (target, source)
        both = self.rules.direction is Direction.UNDIRECTED and source != target
        return [(reader, sender), (sender, reader)] if both else [(reader, sender)]

    def add_edge(self, source: int | str, target: int | str) -> bool:
        """Whether it changed anything."""
        changed = False
        for reader, sender in self._entries(source, target):
            if self.rules.duplicates is Duplicates.KEEP or sender not in self.lists[reader]:
                self.lists[reader].append(sender)
                changed = True
        return changed

    def remove_edge(self, source: int | str, target: int | str) -> bool:
        changed = False
        for reader, sender in self._entries(source, target):
            if sender in self.lists[reader]:
                self.lists[reader].remove(sender)
                changed = True
        return changed

    def remove_node(self, id_: int | str) -> None:
        del self.lists[id_], self.features[id_]
        for listed in self.lists.values():
            listed[:] = [other for other in listed if other != id_]

    def built(self) -> tuple[Graph, np.ndarray, EdgeRules]:
        """The graph built anew, its nodes in the order of `lists`."""
        places = {id_: place for place, id_ in enumerate(self.lists)}
        rows = [sorted(places[other] for other in listed) for listed in self.lists.values()]
        indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        indices = np.array([other for row in rows for other in row], np.int32)
        return Graph(indptr, indices), np.stack([*self.features.values()]), self.rules

    def random_batch(self, draw: np.random.Generator, size: int, fresh: list[int] | list[str]) -> ChangeBatch:
        """A batch of all kinds of changes, which is applied here at once. `fresh`: ids of new nodes, taken from it."""
        new = [fresh.pop() for _ in range(int(draw.integers(0, max(2, size // 4))))]
        known = [*self.lists]
        overridden = draw.choice(len(known), min(len(known), int(draw.integers(0, size))), replace=False)
        overrides = [known[i] for i in overridden.tolist()]
        rows = draw.normal(size=(len(new) + len(overrides), FEATURES)).astype(np.float32)
        if overrides:
            rows[-1, ::2] = np.nan
        self.lists |= {id_: [] for id_ in new}
        self.features |= dict(zip(new, rows[: len(new)], strict=True))
        for id_, row in zip(overrides, rows[len(new) :], strict=True):
            self.features[id_] = np.where(np.isnan(row), self.features[id_], row)
        known = [*self.lists]

        def edges() -> list[tuple[int | str, int | str]]:
            few = draw.integers(0, len(known), (int(draw.integers(0, size)), 2))
            return [(known[source], known[target]) for source, target in few.tolist()]

        added, removed = edges(), edges()
        removed += [(known[0], other) for other in self.lists[known[0]][:1]]
        for edge in added:
            self.add_edge(*edge)
        for edge in removed:
            self.remove_edge(*edge)
        gone = [known[i] for i in draw.choice(len(known), int(draw.integers(0, 3)), replace=False).tolist()]
        for id_ in gone:
            self.remove_node(id_)
        return batch_of(rows, new, overrides, added, removed, gone)


def batch_of(
    rows: np.ndarray,
    new: list[int] | list[str] = [],  # noqa: B006 - read alone
    overrides: list[int] | list[str] = [],  # noqa: B006
    edges: list[tuple[int | str, int | str]] = [],  # noqa: B006
    removed_edges: list[tuple[int | str, int | str]] = [],  # noqa: B006
    removed: list[int] | list[str] = [],  # noqa: B006
) -> ChangeBatch:
    flat = [*new, *overrides, *(end for edge in edges for end in edge)]
    flat += [*(end for edge in removed_edges for end in edge), *removed]
    counts = ChangeCounts(len(new), len(overrides), 0, len(edges), len(removed_edges), len(removed))
    return ChangeBatch(counts, ids_of(flat), rows)


def ids_of(flat: list[int | str]) -> ChangeIds:
    if flat and isinstance(flat[0], str):
        return TextIds(*lay_out([str(each) for each in flat]))
    return IntegerIds(np.array(flat, np.int64))


def stored_ids(ids: list[int] | list[str]) -> NodeIds:
    return string_ids(*lay_out([str(id_) for id_ in ids])) if isinstance(ids[0], str) else integer_ids(np.array(ids))


def write_and_apply(
    updates: UpdatesOptions, sequence: int, living: LivingRevision, batches: Sequence[ChangeBatch]
) -> int:
    """Append batches to the log, and let a worker apply them. The sequence of the last one; `sequence`: of the last one
    before them."""
    with opened_log(updates.log, updates.uid) as log:
        for number, batch in enumerate(batches, start=sequence + 1):
            log.append([Entry("tests", number, batch.counts.items, encode_batch(batch))])
    said = living.apply(living.offset + 1, batches)
    assert all(isinstance(one, BatchEffect) for one in said), said
    return sequence + len(batches)
