"""A graph that a log of changes was folded into is the one that is built anew, and goes on to change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from msgspec import UNSET
from tests.support.changes.compacted_service import NODES, UID, UNDIRECTED, Service
from tests.support.changes.living import FEATURES, MODELS, ROOM_BYTES, PlainGraph, batch_of, ids_of
from tests.support.overlays.overlays import RULES

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.repository import ChangedSource, NodeIdKind
from gnnserve_worker.changes.log import LogBehindError
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.edges import BothDirections
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.paths import version_digest


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("architecture", "rules"),
    # What follows the rules knows nothing of architectures.
    [*(("GraphSAGE", rules) for rules in RULES), *((name, UNDIRECTED) for name in MODELS if name != "GraphSAGE")],
    ids=lambda one: one if isinstance(one, str) else f"{one.direction}-{one.duplicates}",
)
def test_folded_twice_and_changed_in_between_it_is_the_graph_built_anew(
    tmp_path: Path, architecture: str, rules: EdgeRules
) -> None:
    plain, draw = PlainGraph(NODES, 3, rules), np.random.default_rng(4)
    service, fresh = Service(tmp_path, plain, architecture), [*range(10_000, 9_000, -1)]
    for last in (6, 12):
        service.append(*(plain.random_batch(draw, 12, fresh) for _ in range(6)))
        folded = service.fold()
        assert folded is not None and folded.data.made_of is not None
        assert folded.data.made_of.offset == last
        built = plain.built()
        np.testing.assert_array_equal(folded.data.graph.indptr, built[0].indptr)
        np.testing.assert_array_equal(folded.data.graph.indices, built[0].indices)
        np.testing.assert_array_equal(folded.data.features, built[1])
        service.assert_equal_to_the_graph_built_anew()
    living = LivingRevision(service.opened(), ROOM_BYTES)
    assert living.offset == living.base_offset == 12
    batches = [plain.random_batch(draw, 12, fresh) for _ in range(3)]
    service.append(*batches)
    living.apply(13, batches)
    service.assert_equal_to_the_graph_built_anew(living)


def test_the_direction_that_was_decided_stays_where_the_graph_becomes_symmetric(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, EdgeRules(Direction.DIRECTED, Duplicates.KEEP))
    service, row = Service(tmp_path, plain), np.zeros((0, FEATURES), np.float32)
    one_way = [(sender, reader) for reader, listed in plain.lists.items() for sender in listed]
    for edge in one_way:
        plain.add_edge(*edge[::-1])
    service.append(batch_of(row, edges=[edge[::-1] for edge in one_way]))
    folded = service.fold()
    assert folded is not None and not BothDirections.of(folded.data.graph).one_way
    assert service.manifest.edge_rules == folded.data.edge_rules == plain.rules
    plain.add_edge(0, 1)
    batch = batch_of(row, edges=[(0, 1)])
    service.append(batch)
    living = LivingRevision(service.opened(), ROOM_BYTES)
    living.apply(2, [batch])
    service.assert_equal_to_the_graph_built_anew(living)


def test_what_was_assumed_of_given_weights_and_compared_is_carried_on(tmp_path: Path) -> None:
    plain, draw = PlainGraph(NODES, 5, UNDIRECTED), np.random.default_rng(6)
    service = Service(tmp_path, plain)
    compared = ComparedScores("spec.model", "0" * 64, 9, "Logits", 0.25, 1.0)
    assumptions = {"activation": "ReLU between layers"}
    service.manifest = msgspec.structs.replace(service.manifest, assumptions=assumptions, compared=(compared,))
    service.append(*(plain.random_batch(draw, 6, [*range(2_000_000, 1_999_000, -1)]) for _ in range(3)))

    assert service.fold() is not None

    assert service.manifest.assumptions == assumptions
    assert service.manifest.compared == (compared,)
    found = service.repository.find(
        service.manifest.recipe, service.manifest.graph, expected=service.manifest.expected
    )  # fmt: skip
    assert found == service.manifest


@pytest.mark.parametrize("kind", ["positions", "integers", "texts"])
def test_nodes_keep_their_ids(tmp_path: Path, kind: str) -> None:
    ids = {"positions": None, "integers": [7 * i - 50 for i in range(NODES)], "texts": [f"né{i}" for i in range(NODES)]}
    plain, draw = PlainGraph(NODES, 5, UNDIRECTED, ids[kind]), np.random.default_rng(6)
    fresh = [f"new {i}" for i in range(500)] if kind == "texts" else [*range(2_000_000, 1_999_000, -1)]
    service = Service(tmp_path, plain)
    for _ in range(2):
        service.append(*(plain.random_batch(draw, 6, fresh) for _ in range(10)))
        assert service.fold() is not None
        loaded = service.opened()
        assert loaded.changes is not None
        ids = loaded.changes.graph.ids
        assert ids.shown(0, ids.count) == [*plain.lists]
    service.assert_equal_to_the_graph_built_anew()


@pytest.mark.parametrize("step", [1025, 25])
def test_more_than_a_thousand_new_nodes_become_part_of_the_graph(tmp_path: Path, step: int) -> None:
    service, came = Service(tmp_path, PlainGraph(NODES, 9, UNDIRECTED)), 1025
    rows = np.random.default_rng(9).normal(size=(came, FEATURES)).astype(np.float32)
    for start in range(0, came, step):
        service.append(batch_of(rows[start : start + step], new=[*range(NODES + start, NODES + start + step)]))
    folded = service.fold()
    assert folded is not None
    np.testing.assert_array_equal(folded.data.features[NODES:], rows)  # type: ignore[union-attr, index]


def test_nodes_that_are_called_by_position_still_are_where_none_left(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, UNDIRECTED)
    service, row = Service(tmp_path, plain), np.ones((1, FEATURES), np.float32)
    service.append(batch_of(row, new=[NODES], edges=[(0, NODES)]))
    folded = service.fold()
    assert folded is not None and folded.data.ids is None
    assert load_revision(service.repository, service.manifest.revision).ids.asked is None
    service.append(batch_of(np.zeros((0, FEATURES), np.float32), removed=[3]))
    folded = service.fold()
    assert folded is not None and folded.data.ids is not None
    assert folded.data.ids.kind is NodeIdKind.INTEGERS


def test_what_cannot_follow_changes_is_left_out(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 8, UNDIRECTED)
    service = Service(tmp_path, plain)
    service.append(batch_of(np.zeros((0, FEATURES), np.float32), removed=[3]))
    before = service.manifest
    assert service.fold() is not None
    assert [one.name for one in service.manifest.variants] == [one.name for one in service.manifest.profile.variants]
    assert {one.name for one in service.manifest.variants} <= {one.name for one in before.variants}
    assert service.manifest.model == before.model
    old, new = before.profile.variants[0], service.manifest.profile.variants[0]
    assert (new.memory_bytes - new.size_bytes) * NODES == (old.memory_bytes - old.size_bytes) * (NODES - 1)


def test_it_folds_as_far_as_there_is_room(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 9, UNDIRECTED)
    service, row = Service(tmp_path, plain), np.ones((1, FEATURES), np.float32)
    service.append(*(batch_of(row, new=[NODES + i]) for i in range(400)))
    living = LivingRevision(service.opened(), ROOM_BYTES)
    empty_bytes = living.delta_bytes
    folded = service.fold(empty_bytes + 4096)
    assert folded is not None and folded.data.made_of is not None
    assert 0 < folded.data.made_of.offset < 400
    assert folded.data.made_of.total_changes == folded.data.made_of.offset


def test_nothing_new_is_nothing_to_fold(tmp_path: Path) -> None:
    service = Service(tmp_path, PlainGraph(NODES, 10, UNDIRECTED))
    assert service.fold() is None
    service.append(batch_of(np.zeros((0, FEATURES), np.float32), removed=[3]))
    assert service.fold() is not None
    assert service.fold() is None


def test_a_log_that_was_written_anew_since_is_refused(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 11, UNDIRECTED)
    service, nothing = Service(tmp_path, plain), np.zeros((0, FEATURES), np.float32)
    service.append(batch_of(nothing, removed=[3]))
    assert service.fold() is not None
    service.log.close()
    (tmp_path / "log.sqlite").unlink()
    service.log = SqliteLog(tmp_path / "log.sqlite", UID)
    service.append(batch_of(nothing, removed=[4]), batch_of(nothing, removed=[5]))
    with pytest.raises(LogBehindError, match="restored from an older backup"):
        service.fold()


def test_of_the_graphs_that_changes_are_part_of_the_newest_come_first(tmp_path: Path) -> None:
    service, nothing = Service(tmp_path, PlainGraph(NODES, 12, UNDIRECTED)), np.zeros((0, FEATURES), np.float32)
    source = service.manifest
    for node in (3, 4, 5):
        service.append(batch_of(nothing, removed=[node]))
        service.fold()
    versions = service.repository.graph_versions(UID)
    assert [one.version.made_of.offset for one in versions if one.version is not UNSET] == [3, 2, 1]
    assert service.repository.graph_versions("another") == []
    assert service.repository.graph_versions(UID, "another") == []
    found = service.repository.find_served("recipe", UID)
    assert found == service.manifest
    assert service.repository.made_of(service.manifest) == versions[0].version.made_of  # type: ignore[union-attr]
    assert service.repository.find_served("recipe", None) == source
    assert service.repository.find_served("another", UID) is None
    service.repository.remove_versions([one.digest for one in versions[1:]])
    assert service.repository.graph_versions(UID) == versions[:1]
    assert {one.revision for one in service.repository.revisions()} == {source.revision, service.manifest.revision}


class TestSourceChanges:
    def changes(self, features: np.ndarray | sp.csr_array) -> SourceChanges:
        return SourceChanges(features, ("a", "b"))

    def note(
        self, changes: SourceChanges, rows: list[list[float]], new: list[int], overridden: list[int],
        labelled: list[int] = [], labels: bytes = b"",  # noqa: B006 - read alone
    ) -> None:  # fmt: skip
        counts = ChangeCounts(len(new), len(overridden), len(labelled))
        batch = ChangeBatch(counts, ids_of([]), np.array(rows, np.float32).reshape(-1, 2), labels)
        none = np.zeros((0, 2), np.int64)
        arrays = [np.array(each, np.int64) for each in (new, overridden, labelled)]
        changes.note(batch, FoundNodes(*arrays, none, none, none[:, 0]))

    @pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
    def test_rows_that_were_changed_stand_among_the_others(self, form: object) -> None:
        changes = self.changes(form(np.array([[1, 2], [3, 4], [5, 6]], np.float32)))  # type: ignore[operator]
        nan = float("nan")
        self.note(changes, [[7, 8], [nan, 9], [0, 0]], new=[3], overridden=[1, 2])
        self.note(changes, [[nan, 10], [11, nan]], new=[], overridden=[3, 2])
        found = changes.features_of(np.array([0, 1, 3]))
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        np.testing.assert_array_equal(dense, [[1, 2], [3, 9], [7, 10]])
        all_of_them = changes.features_of(np.array([0, 1, 2, 3]))
        dense = all_of_them if isinstance(all_of_them, np.ndarray) else all_of_them.toarray()
        np.testing.assert_array_equal(dense[2], [11, 0])

    def test_labels_are_the_last_ones(self) -> None:
        changes = self.changes(np.zeros((3, 2), np.float32))
        self.note(changes, [[0, 0], [0, 0]], new=[3, 4], overridden=[], labelled=[0, 1], labels=b'["b",null,null,"a"]')
        self.note(changes, [], new=[], overridden=[], labelled=[4], labels=b'["no class"]')
        labels = changes.labels_of(np.array([0, 1, 1], np.int64), np.array([0, 1, 3, 4]))
        np.testing.assert_array_equal(labels, [-1, 0, 1, -1])
        none = np.zeros(0, np.int64)
        splits = changes.splits_of(Splits(np.array([0, 2]), np.array([1]), none), np.array([0, 1, 3, 4]), 3)
        # Node 0 has lost its label, and 2 has left.
        assert [each.tolist() for each in (splits.train, splits.validation, splits.test)] == [[2], [1], []]

    def test_lists_of_labels_are_rows(self) -> None:
        changes = self.changes(np.zeros((2, 2), np.float32))
        self.note(changes, [[0, 0]], new=[2], overridden=[], labelled=[0], labels=b'[["a","b"],null]')
        labels = changes.labels_of(np.array([[1, 1], [0, 1]], np.uint8), np.array([0, 1, 2]))
        np.testing.assert_array_equal(labels, [[0, 0], [0, 1], [1, 1]])


def test_versions_of_other_content_have_other_names() -> None:
    made_of = ChangedSource("source", UID, 3, 7, 11)
    names = {
        version_digest(made_of.source, made_of.log, offset, checksum) for offset in (3, 4) for checksum in (11, 12)
    }
    assert len(names) == 4
