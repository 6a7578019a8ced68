"""The follower of an index finds every node whose embedding a change has altered, over all hops of the network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.changes.living import ROOM_BYTES, PlainGraph, batch_of, generated

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.changed_nodes import ChangedNodes, TouchedSince
from gnnserve_worker.inference.index_follower import IndexFollower, reach_of
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.nearest.comparison import ByCosine
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.opening.loaded import LoadedRevision

NODES = 60
THREE_LAYERS = {"pruning": {"factors": [1]}, "stored": [1, 2], "storedFollowChanges": True}
OPENED = SimpleNamespace(manifest=SimpleNamespace(nodes=NODES, columns=8, offset=None))


def follower_of(replica: LivingRevision, loaded: LoadedRevision) -> IndexFollower:
    part = IndexPart("index", "", 0, NODES).standing(replica.graph.stored, loaded.graph.schema)
    index = SimpleNamespace(opened=OPENED, part=part, comparison=ByCosine())
    return IndexFollower(replica, [index], reach_of(loaded))  # type: ignore[list-item]


def recent_of(follower: IndexFollower, opened: SimpleNamespace = OPENED) -> RecentVectors:
    (beside,) = follower.followed
    return beside.recent(opened)  # type: ignore[arg-type]


def followed(follower: IndexFollower) -> RecentVectors:
    while follower.find_more():
        pass
    return recent_of(follower)


@pytest.mark.parametrize("direction", [Direction.UNDIRECTED, Direction.DIRECTED])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_every_embedding_that_a_change_alters_is_reached(
    tmp_path: Path, architecture: str, direction: Direction
) -> None:
    plain = PlainGraph(NODES, 7, EdgeRules(direction))
    loaded = generated(
        tmp_path, "reach", architecture, plain.built(), variants=THREE_LAYERS, max_delta_bytes=ROOM_BYTES
    )
    replica = LivingRevision(loaded, ROOM_BYTES)
    follower = follower_of(replica, loaded)
    draw, fresh = np.random.default_rng(1), [*range(1000, 900, -1)]
    reached_all = 0
    for _ in range(6):
        batch = plain.random_batch(draw, 3, fresh)
        nodes = np.arange(replica.graph.ids.count)
        before = infer_batch(loaded, "x1", nodes, 0).embeddings
        assert all(isinstance(said, BatchEffect) for said in replica.apply(replica.offset + 1, [batch]))
        after = infer_batch(loaded, "x1", nodes, 0).embeddings
        assert before is not None and after is not None
        altered = {*np.flatnonzero(np.abs(before - after).max(axis=1) > 1e-6).tolist()}
        altered |= {*range(len(nodes), replica.graph.ids.count)}
        altered -= {*np.flatnonzero(replica.graph.ids.is_gone).tolist()}

        recent = followed(follower)

        reached = {*recent.take(1000, replica.graph.ids.is_gone).tolist()}
        assert altered <= reached
        recent.give_up(np.array([*reached], np.int64))
        reached_all += len(reached)
    assert reached_all < 6 * NODES  # not everything, every time


def test_it_is_told_how_far_it_follows_and_found_a_little_at_a_time(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, EdgeRules(Direction.DIRECTED))
    loaded = generated(
        tmp_path, "followed", "GraphSAGE", plain.built(), variants=THREE_LAYERS, max_delta_bytes=ROOM_BYTES
    )
    replica = LivingRevision(loaded, ROOM_BYTES)
    follower = follower_of(replica, loaded)
    told: list[int] = []
    replica.touched.on_touched = lambda: told.append(replica.offset)
    replica.apply(1, [batch_of(np.ones((1, 12), np.float32), new=[500], edges=[(3, 500), (500, 4)])])
    assert told == [1]
    assert (recent_of(follower).pending, follower.known_offset) == (0, 0)
    with replica.applying:  # as the thread that applies changes holds it
        assert follower.find_more()
        assert follower.known_offset == 0
    assert followed(follower).pending >= 2
    assert follower.known_offset == 1
    replica.apply(2, [batch_of(np.zeros((0, 12), np.float32), removed=[9999])])  # refused
    followed(follower)
    assert (replica.offset, follower.known_offset) == (2, 2)


def test_a_request_with_an_older_index_leaves_what_is_beside_the_newer_one(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, EdgeRules(Direction.DIRECTED))
    loaded = generated(tmp_path, "older", "GraphSAGE", plain.built(), variants=THREE_LAYERS, max_delta_bytes=ROOM_BYTES)
    replica = LivingRevision(loaded, ROOM_BYTES)
    follower = follower_of(replica, loaded)
    replica.touched.note(ChangedNodes(1, np.array([3]), np.array([4])))
    recent = followed(follower)
    older = SimpleNamespace(manifest=SimpleNamespace(nodes=NODES, columns=4, offset=None))
    beside = recent_of(follower, older)
    assert (beside.count, beside.pending) == (0, recent.pending)
    assert recent_of(follower) is recent


def test_changes_that_touch_no_node_do_not_hide_those_behind_them(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, EdgeRules(Direction.DIRECTED))
    loaded = generated(tmp_path, "empty", "GraphSAGE", plain.built(), variants=THREE_LAYERS, max_delta_bytes=ROOM_BYTES)
    replica, nothing = LivingRevision(loaded, ROOM_BYTES), np.empty(0, np.int64)
    follower = follower_of(replica, loaded)
    for offset in range(1, 1001):
        replica.touched.note(ChangedNodes(offset, nothing, nothing))
    replica.touched.note(ChangedNodes(1001, np.array([3]), np.array([4])))
    assert followed(follower).pending >= 2
    assert follower.known_offset == 1001
    replica.touched.note(ChangedNodes(1002, nothing, nothing))
    assert follower.find_more()
    assert not follower.find_more()
    assert follower.known_offset == 1002


def test_what_nobody_takes_is_joined() -> None:
    touched = TouchedSince()
    for offset in range(1, 10_001):
        touched.note(ChangedNodes(offset, np.array([offset % 7]), np.array([offset % 3])))
    parts = []
    while (part := touched.take()) is not None:
        parts.append(part)
    assert len(parts) < 5000
    assert parts[-1].offset == 10_000
    assert {*np.concatenate([part.listed for part in parts]).tolist()} == {*range(7)}


def test_large_parts_that_nobody_takes_are_joined_before_they_are_many() -> None:
    touched, nodes = TouchedSince(), np.arange(200_000)
    for offset in range(1, 31):
        touched.note(ChangedNodes(offset, nodes, nodes[:1000]))
    parts = []
    while (part := touched.take()) is not None:
        parts.append(part)
    assert sum(part.entries for part in parts) < 10 * len(nodes)
    assert parts[-1].offset == 30
    np.testing.assert_array_equal(parts[0].listed, nodes)
    touched.note(ChangedNodes(31, nodes[:1], nodes[:0]))
    assert (again := touched.take()) is not None
    assert again.offset == 31
