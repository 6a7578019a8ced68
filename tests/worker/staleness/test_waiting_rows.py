"""Rows of the first stored layer, which wait until they are read where a budget lets later layers be stale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.changes.living import batch_of, ids_of
from tests.support.changes.stale_layers import ALL, CLOSE, NEVER, NO_FEATURES, Scene

from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.staleness.refreshing import RefreshedBy, StaleLayer

HUB_NEIGHBOURS = 200


def first_of(scene: Scene) -> StaleLayer:
    first = scene.living.refreshing.first
    assert first is not None
    return first


def overriding(scene: Scene, node: int | str) -> None:
    row = scene.draw.normal(size=(1, len(scene.plain.features[node]))).astype(np.float32)
    scene.plain.features[node] = row[0]
    scene.apply([batch_of(row, overrides=[node])])


def test_rows_of_the_first_layer_wait_and_are_made_for_who_reads_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER)
    scene.change(4)
    first, counts = first_of(scene), scene.living.refreshing.counts
    waiting = first.rows.count
    assert waiting > 0
    scene.answers("x1")
    assert first.rows.count == waiting
    expected = scene.rebuilt()
    np.testing.assert_allclose(scene.answers("stored1"), expected["stored1"], atol=CLOSE, rtol=CLOSE)
    assert not first.rows.errors[scene.nodes].any()
    assert counts[RefreshedBy.REQUEST].rows == waiting - first.rows.count
    assert scene.errors()[scene.nodes].any(), "rows of the layer behind it stay as they are"


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN", "GCN"])
def test_an_overlay_continues_what_was_aggregated_of_rows_that_wait(tmp_path: Path, architecture: str) -> None:
    scene = Scene(tmp_path, NEVER, architecture)
    scene.change(6)
    known = [*scene.plain.lists]
    changed = scene.draw.choice(known[:-4])
    rows = scene.draw.normal(size=(2, len(scene.plain.features[known[0]]))).astype(np.float32)
    positions, room = scene.living.graph.ids.find(ids_of(known)), scene.served.graph.nodes
    at, ends = known.index(changed), known[-4:]
    edges = np.array([[positions[known.index(end)], room] for end in ends])
    seeds = np.array([*positions, room])
    support = scene.served.compute.overlays.support
    overlay, numbered = support.arrange(rows.copy(), positions[[at]], edges, seeds.copy())
    view = view_of(room, [Part(len(seeds), overlay, None)], numbered)
    assert first_of(scene).rows.count
    found = scene.served.compute.infer("stored1", numbered, 1, view=view).scores
    scene.plain.lists[-1], scene.plain.features[-1], scene.plain.features[changed] = [], rows[0], rows[1]
    for end in ends:
        scene.plain.add_edge(end, -1)
    np.testing.assert_allclose(found, scene.rebuilt()["stored1"], atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("budget", [ALL, None], ids=["a budget", "none at the end"])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
def test_rows_of_long_lists_are_made_with_each_change(
    tmp_path: Path, architecture: str, budget: RefreshBudget | None
) -> None:
    scene = Scene(tmp_path, ALL, architecture, nodes=HUB_NEIGHBOURS + 20)
    hub, *others = scene.plain.lists
    (place,) = scene.living.graph.ids.find(ids_of([hub])).tolist()
    first = first_of(scene)
    for start in range(0, HUB_NEIGHBOURS, 50):
        edges = [(other, hub) for other in others[start : start + 50]]
        for source, target in edges:
            scene.plain.add_edge(source, target)
        scene.apply([batch_of(NO_FEATURES, edges=edges)])
        assert (first.rows.errors[place] > 0) == (start < 100)
        if start == 0:
            scene.answers("stored1")
    for other in others[:3]:
        overriding(scene, other)
        assert first.rows.errors[place] == 0
        assert first.rows.errors[scene.living.graph.ids.find(ids_of([other]))].all()
    for source in others[:150:2]:
        scene.plain.remove_edge(source, hub)
    scene.apply([batch_of(NO_FEATURES, removed_edges=[(source, hub) for source in others[:150:2]])])
    if budget is None:
        scene.living.refreshing.budget = None
        scene.change(3)
        overriding(scene, others[5])
    scene.assert_exact(1e-4)  # of sums over many


def test_rows_that_wait_are_made_for_who_writes_them_to_files(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER)
    scene.change(5)
    scene.living.make_stored_rows_anew()
    assert not scene.living.refreshing.is_any_stale
    scene.change(2)
    scene.living.make_stored_rows_anew()
    scene.assert_exact()


def test_a_turn_counts_the_rows_below_that_are_made_before(tmp_path: Path) -> None:
    scene = Scene(tmp_path, NEVER, nodes=300)
    scene.change(60)
    refreshing = scene.living.refreshing
    (layer,) = refreshing.layers
    refreshing.entry_ns, before = 50.0, layer.rows.count
    refreshing.refresh_worst()
    with_below = before - layer.rows.count
    refreshing.make_read(scene.nodes)
    scene.change(60)
    refreshing.make_read(scene.nodes)
    refreshing.entry_ns, before = 50.0, layer.rows.count
    refreshing.refresh_worst()
    assert with_below < before - layer.rows.count
