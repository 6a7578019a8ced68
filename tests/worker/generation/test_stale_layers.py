"""What a profile says of stored layers that may be stale, and the changes that are played to measure it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from msgspec import UNSET
from tests.support.changes.living import DEEPER, MODELS, ROOM_BYTES, PlainGraph, generated, stored_ids
from tests.support.changes.living_types import VARIANTS as TYPED_VARIANTS
from tests.support.changes.living_types import opened as opened_types
from tests.support.changes.stale_layers import DIRECTED, UNDIRECTED, Scene
from tests.support.overlays.typed_overlays import made

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.profile import StaleLayerProfile
from gnnserve_api.files.repository import SCHEMA_VERSION, STALE_SCHEMA_VERSION
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.generation.played_changes import Edges, PlayedChanges, without
from gnnserve_worker.generation.stale_layers import EDGE_SHARES, SHARES
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision

NODES = 300
REVERSED = EdgeRules(Direction.REVERSED, Duplicates.KEEP, SelfLoops.REMOVE)


@pytest.fixture
def measures_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time in which a generation finds answers that differ: the usual one of tests is a thirtieth."""
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0.3")


def measured(loaded: LoadedRevision) -> tuple[StaleLayerProfile, ...]:
    assert loaded.manifest is not None
    stale = loaded.manifest.profile.stale
    return () if stale is UNSET else stale


def assert_says_what_rows_cost(one: StaleLayerProfile) -> None:
    *edges, new, brought = one.changes
    assert [changes.kind for changes in one.changes] == ["edges"] * len(EDGE_SHARES) + ["newNodes", "overlays"]
    assert brought.edges == new.edges
    assert [changes.share for changes in edges] == pytest.approx(EDGE_SHARES, rel=0.35)
    assert new.edges > 0
    for changes in one.changes:
        assert tuple(point.recomputed for point in changes.points) == SHARES
        rows = [point.rows for point in changes.points]
        assert (rows[0], rows) == (0, sorted(rows))
        assert changes.points[-1].differing == 0
        assert changes.points[-1].accuracy == changes.exact_accuracy
        assert (changes.read_error > 0) == (rows[-1] > 0)
    assert edges[0].read_error < edges[-1].read_error
    assert edges[-1].points[-1].rows > 0


@pytest.mark.campaign
@pytest.mark.usefixtures("measures_for_a_while")
@pytest.mark.parametrize("rules", [UNDIRECTED, DIRECTED, REVERSED], ids=str)
@pytest.mark.parametrize("architecture", MODELS)
def test_a_generation_measures_what_stale_rows_cost(tmp_path: Path, architecture: str, rules: EdgeRules) -> None:
    loaded = generated(tmp_path, "graph", architecture, PlainGraph(NODES, 31, rules).built(), variants=DEEPER)
    (one,) = measured(loaded)
    assert (one.layer, one.variant) == (2, "stored2")
    assert one.whole is not None
    assert_says_what_rows_cost(one)
    assert loaded.manifest is not None
    assert loaded.manifest.schema_version == STALE_SCHEMA_VERSION


@pytest.mark.usefixtures("measures_for_a_while")
def test_each_layer_behind_the_first_is_measured(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 31, UNDIRECTED, [f"node-{number}" for number in range(NODES)])
    variants: dict[str, object] = {**DEEPER, "stored": [1, 2, 3]}
    ids = stored_ids([f"node-{number}" for number in range(NODES)])
    found = measured(generated(tmp_path, "graph", "GraphSAGE", plain.built(), ids=ids, variants=variants))
    assert [(one.layer, one.variant) for one in found] == [(2, "stored2"), (3, "stored3")]
    for one in found:
        assert_says_what_rows_cost(one)
    assert max(changes.differing for one in found for changes in one.changes) > 0


def test_layers_that_follow_no_changes_are_not_measured(tmp_path: Path) -> None:
    variants: dict[str, object] = {"pruning": {"factors": [1]}, "stored": [1, 2]}
    loaded = generated(tmp_path, "graph", "GraphSAGE", PlainGraph(40, 31, UNDIRECTED).built(), variants=variants)
    assert measured(loaded) == ()
    assert loaded.manifest is not None
    assert loaded.manifest.schema_version == SCHEMA_VERSION


@pytest.mark.usefixtures("measures_for_a_while")
def test_layers_over_several_types_are_measured(tmp_path: Path) -> None:
    made(tmp_path, "GraphSAGE", TYPED_VARIANTS)
    (one,) = measured(opened_types(tmp_path).loaded)
    assert (one.layer, one.variant) == (2, "stored2")
    assert {changes.kind for changes in one.changes} == {"edges", "newNodes", "overlays"}
    assert all(changes.points[-1].differing == 0 for changes in one.changes)


@pytest.mark.usefixtures("measures_for_a_while")
def test_workers_begin_with_the_sensitivity_that_was_measured(tmp_path: Path) -> None:
    scene = Scene(tmp_path, RefreshBudget(rows=0), nodes=NODES)
    (one,), (layer,) = measured(scene.loaded), scene.living.refreshing.layers
    assert layer.sensitivity.errors == pytest.approx(sum(found.read_error * found.answers for found in one.changes))
    assert layer.sensitivity.differing == pytest.approx(sum(found.differing * found.answers for found in one.changes))


# Changes that are played


class Played(NamedTuple):
    living: LivingRevision
    changes: PlayedChanges

    def lists(self) -> list[list[int]]:
        graph = self.living.graph
        return [sorted(graph.lists.of(np.array([one])).tolist()) for one in graph.places.lists_of(graph.kept).tolist()]


def one_type(rules: EdgeRules) -> Callable[[Path], Played]:
    def opened(folder: Path) -> Played:
        plain = PlainGraph(60, 31, rules)
        loaded = generated(folder, "graph", "GraphSAGE", plain.built(), variants=DEEPER, max_delta_bytes=ROOM_BYTES)
        living = LivingRevision(loaded, ROOM_BYTES)
        return Played(living, PlayedChanges(loaded, living))

    return opened


def several_types(folder: Path) -> Played:
    made(folder, "GraphSAGE", TYPED_VARIANTS)
    living = opened_types(folder)
    return Played(living, PlayedChanges(living.loaded, living))


GRAPHS = {
    "undirected": one_type(UNDIRECTED), "directed": one_type(DIRECTED),
    "reversed": one_type(EdgeRules(Direction.REVERSED)), "several types": several_types,
}  # fmt: skip


@pytest.fixture(params=GRAPHS)
def played(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Played]:
    yield GRAPHS[request.param](tmp_path)


def test_edges_that_leave_and_come_back_leave_the_graph_as_it_was(played: Played) -> None:
    before, edges = played.lists(), played.changes.draw(np.random.default_rng(0))
    assert abs(len(edges.ends) - played.changes.count()) <= 0.1 * len(edges.ends)  # a self-loop counts as half of one
    part = edges.part(slice(0, len(edges.ends) // 2))
    assert played.changes.leave(part)
    assert played.lists() != before
    assert played.changes.come(part)
    assert played.lists() == before
    assert played.changes.leave(edges)
    assert not any(played.lists())


def test_nodes_lose_all_that_joins_them(played: Played) -> None:
    graph, nodes = played.living.graph, np.arange(3)
    joining = played.changes.joining(nodes)
    left = without(played.changes.draw(np.random.default_rng(0)), nodes)
    assert len(joining.ends) + len(left.ends) == len(played.changes.draw(np.random.default_rng(0)).ends)
    assert played.changes.leave(joining)
    assert not len(graph.lists.of(graph.places.lists_of(nodes)))
    assert not graph.readers_counts(nodes).any()


def test_where_there_is_no_room_edges_do_not_leave(tmp_path: Path) -> None:
    loaded = generated(
        tmp_path, "graph", "GraphSAGE", PlainGraph(60, 31, UNDIRECTED).built(), variants=DEEPER, max_delta_bytes=1
    )
    living = LivingRevision(loaded, 1)
    changes = PlayedChanges(loaded, living)
    edges = changes.draw(np.random.default_rng(0))
    assert changes.leave(edges)  # one batch more than there is room for
    assert not changes.come(edges)


def test_no_edges_are_no_change(played: Played) -> None:
    offset = played.living.offset
    assert played.changes.come(Edges(np.zeros(0, np.int64), np.zeros((0, 2), np.int64)))
    assert played.living.offset == offset
