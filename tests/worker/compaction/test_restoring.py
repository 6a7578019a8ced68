"""An older model over the newest version of its graph is what generation over that would have made with its weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.changes.compacted_service import NODES, UNDIRECTED, Service
from tests.support.changes.living import FEATURES, ROOM_BYTES, PlainGraph, batch_of
from tests.support.overlays.overlays import RULES

from gnnserve_api.files.edges import EdgeRules
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.differences import BatchWriter, edge_differences, names_of, node_changes
from gnnserve_worker.compaction.restoring import bring
from gnnserve_worker.graph.names_by_id import NamesById
from gnnserve_worker.graph.store import NodeType
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent

NOTHING = np.zeros((0, FEATURES), np.float32)


def bring_the_first(service: Service, features: np.ndarray, revision: str) -> int:
    """Bring a revision over the newest graph, and have it published there as one of another recipe; how many changes
    that took."""
    loaded = load_revision(service.repository, revision, ROOM_BYTES)
    assert loaded.manifest is not None
    target = service.repository.read_graph(service.manifest.graph)
    brought = bring(loaded, [features], target, ROOM_BYTES, silent)
    older = msgspec.structs.replace(loaded.manifest, recipe="older")
    service.manifest = carry_over(older, loaded, brought, service.repository, silent)
    return brought.living.changes_since_base


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("architecture", "rules"),
    # Each direction once, and both ways to treat duplicates.
    [*(("GraphSAGE", RULES[number]) for number in (1, 2, 5)), ("GCN", UNDIRECTED)],
    ids=lambda one: one if isinstance(one, str) else f"{one.direction}-{one.duplicates}",
)
def test_brought_over_two_versions_it_is_the_graph_built_anew(
    tmp_path: Path, architecture: str, rules: EdgeRules
) -> None:
    plain, draw = PlainGraph(NODES, 3, rules), np.random.default_rng(4)
    service, fresh = Service(tmp_path, plain, architecture), [*range(10_000, 9_000, -1)]
    features, first = plain.built()[1], service.manifest.revision
    for _ in range(2):
        service.append(*(plain.random_batch(draw, 12, fresh) for _ in range(6)))
        assert service.fold() is not None
    assert bring_the_first(service, features, first) > 0
    service.assert_equal_to_the_graph_built_anew()


def test_nodes_are_those_of_the_same_ids(tmp_path: Path) -> None:
    plain, draw = PlainGraph(NODES, 5, UNDIRECTED, [f"né{i}" for i in range(NODES)]), np.random.default_rng(6)
    service, fresh = Service(tmp_path, plain), [f"new {i}" for i in range(500)]
    features, first = plain.built()[1], service.manifest.revision
    service.append(*(plain.random_batch(draw, 6, fresh) for _ in range(10)))
    assert service.fold() is not None
    bring_the_first(service, features, first)
    service.assert_equal_to_the_graph_built_anew()


def test_a_node_that_left_and_came_again_has_what_it_has_now(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, UNDIRECTED)
    service, row = Service(tmp_path, plain), np.ones((1, FEATURES), np.float32)
    features, first = plain.built()[1], service.manifest.revision
    service.append(batch_of(NOTHING, removed=[3]))
    service.fold()
    service.append(batch_of(row, new=[3], edges=[(3, 5)]))
    service.fold()
    plain.remove_node(3)
    plain.lists[3], plain.features[3] = [], row[0]
    plain.add_edge(3, 5)
    bring_the_first(service, features, first)
    service.assert_equal_to_the_graph_built_anew()


def test_equal_graphs_differ_in_nothing_and_sparse_features_are_compared(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 8, UNDIRECTED)
    service = Service(tmp_path, plain)
    features = plain.built()[1]
    service.append(batch_of(np.full((1, FEATURES), 2, np.float32), overrides=[4]))
    service.fold()
    target = service.repository.read_graph(service.manifest.graph)
    places, kind = np.arange(NODES), NodeType("", NODES, target.features)
    writer = BatchWriter(NamesById(), 0, FEATURES)
    (only,) = node_changes(writer, None, NODES, sp.csr_array(features), kind, places)
    assert (only.counts.overrides, only.counts.items) == (1, 1)
    assert [*node_changes(writer, None, NODES, target.features, kind, places)] == []
    changes = load_revision(service.repository, service.manifest.revision, ROOM_BYTES).changes
    assert changes is not None
    lists, rules = changes.graph.lists, changes.graph.places.rules[0]
    assert [*edge_differences(lists, places, names_of(places), target.graph, NODES, rules)] == []


def test_blocks_and_batches_may_be_as_small_as_one_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BLOCK_ENTRIES", "MOST_EDGES", "_BLOCK_BYTES"):
        monkeypatch.setattr(f"gnnserve_worker.compaction.differences.{name}", 1)
    plain, draw = PlainGraph(NODES, 9, UNDIRECTED), np.random.default_rng(9)
    service, fresh = Service(tmp_path, plain), [*range(10_000, 9_000, -1)]
    features, first = plain.built()[1], service.manifest.revision
    service.append(*(plain.random_batch(draw, 12, fresh) for _ in range(6)))
    service.fold()
    bring_the_first(service, features, first)
    service.assert_equal_to_the_graph_built_anew()
