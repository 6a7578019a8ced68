"""What a request brings along is answered as if it were in the graph: the same numbers as of a graph built anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.overlays.overlays import (
    ARCHITECTURES,
    FEATURES,
    NODES,
    RULES,
    World,
    arrange_overlay,
    drawn_of_list,
    revision_over,
    scaling_of,
)
from tests.support.statistics import is_uniform

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.overlay import overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of_one_type
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference import batch as inference_module
from gnnserve_worker.inference.batch import Inference, infer_batch
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.tables.table import RowsBehind

CLOSE = {Storage.FLOAT32: 1e-5, Storage.FLOAT16: 2e-2, Storage.BFLOAT16: 1e-1, Storage.INT8: 1e-1}
"""Largest difference of scores: of equal sums in another order, and of rows that are rounded after being made of sums
in another order."""
ROW_METHODS = [Normalization.ROW_NORMALIZE, Normalization.L2_ROW_NORMALIZE, Normalization.DISABLED]


@pytest.mark.campaign
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"{rules.direction}-{rules.duplicates}")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_those_of_the_graph_built_anew(architecture: str, rules: EdgeRules) -> None:
    world = World(5, rules, isolated=4)
    scaling = scaling_of(world.features, Normalization.STANDARDIZE)
    order = np.random.default_rng(0).permutation(FEATURES)
    stored = revision_over(architecture, world.graph, world.features, scaling, Storage.FLOAT32, order)
    rebuilt = revision_over(architecture, world.rebuilt, world.rebuilt_features, scaling, Storage.FLOAT32, order)
    for variant in stored.variants:
        found, expected = world.answers(stored, variant), infer_batch(rebuilt, variant, world.seeds, 1).scores
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("method", ROW_METHODS)
def test_rows_are_scaled_and_rounded_as_the_tables_are(storage: Storage, method: Normalization) -> None:
    world = World(6, EdgeRules(Direction.UNDIRECTED))
    scaling, order = scaling_of(world.features, method), np.arange(FEATURES)[::-1]
    stored = revision_over("GraphSAGE", world.graph, world.features, scaling, storage, order)
    rebuilt = revision_over("GraphSAGE", world.rebuilt, world.rebuilt_features, scaling, storage, order)
    for variant in stored.variants:
        found, expected = world.answers(stored, variant), infer_batch(rebuilt, variant, world.seeds, 1).scores
        # Rows of features are the very same numbers.
        close = CLOSE[storage] if variant in {"projected", "stored1"} else 1e-5
        np.testing.assert_allclose(found, expected, atol=close, rtol=close)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_node_that_stands_for_a_stored_one_is_answered_as_it_is(architecture: str, storage: Storage) -> None:
    world = World(8, RULES[-1])
    # Rows of L2-normalised features do not tell the features.
    scaling, order = scaling_of(world.features, Normalization.L2_ROW_NORMALIZE), np.arange(FEATURES)[::-1]
    stored = revision_over(architecture, world.graph, world.features, scaling, storage, order)
    for variant in stored.variants:
        found = np.concatenate([_standing_for(world, stored, variant, node) for node in range(8)])
        expected = infer_batch(stored, variant, np.arange(8), 1).scores
        close = CLOSE[storage] if variant == "stored1" else 1e-5
        np.testing.assert_allclose(found, expected, atol=close, rtol=close)


@pytest.mark.parametrize("rules", [RULES[0], RULES[2]], ids=lambda rules: str(rules.direction))
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN", "GAT"])
def test_a_node_without_an_edge_reads_all_others_and_its_neighbours_what_they_read(
    architecture: str, rules: EdgeRules
) -> None:
    world, node = World(9, rules), 3
    left_out = int(world.graph.list_of(node)[0])
    scaling, order = scaling_of(world.features, Normalization.STANDARDIZE), np.arange(FEATURES)
    stored = revision_over(architecture, world.graph, world.features, scaling, Storage.FLOAT32, order)
    without = revision_over(
        architecture, _without(world.graph, node, left_out), world.features, scaling, Storage.FLOAT32, order
    )
    for variant in stored.variants:
        found = _standing_for(world, stored, variant, node, left_out)
        expected = infer_batch(without, variant, np.array([node]), 1).scores
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


def _standing_for(world: World, loaded: LoadedRevision, variant: str, node: int, left_out: int = -1) -> np.ndarray:
    """Scores of a new node in place of a stored one, which reads all that this does but one node."""
    listed = world.graph.list_of(node).astype(np.int64)
    arranger = overlay_arranger(world.graph, places_of_one_type(NODES, world.rules))
    overlay, seeds = arranger.stand_in(node, FEATURES, [listed[listed != left_out]])
    view = view_of(NODES, [Part(1, overlay, None)], seeds)
    return infer_batch(loaded, variant, seeds, 1, view=view).scores


def _without(graph: Graph, reader: int, sender: int) -> Graph:
    keeps = ~((graph.targets() == reader) & (graph.indices == sender))
    counts = np.bincount(graph.targets()[keeps], minlength=graph.nodes)
    return Graph(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), graph.indices[keeps])


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rules=st.sampled_from(RULES),
    architecture=st.sampled_from(sorted(ARCHITECTURES)),
    shape=st.fixed_dictionaries(
        {"new": st.integers(0, 5), "overridden": st.integers(0, 4), "edges": st.sampled_from([0, 1, 8, 60])}
    ),
)
def test_any_overlay_is_answered_as_the_graph_built_anew(
    seed: int, rules: EdgeRules, architecture: str, shape: dict[str, int]
) -> None:
    world, order = World(seed, rules, **shape), np.arange(FEATURES)
    scaling = Scaling(Normalization.DISABLED)
    stored = revision_over(architecture, world.graph, world.features, scaling, Storage.FLOAT32, order)
    rebuilt = revision_over(architecture, world.rebuilt, world.rebuilt_features, scaling, Storage.FLOAT32, order)
    for variant in ("x2", "projected", "stored1"):
        found, expected = world.answers(stored, variant), infer_batch(rebuilt, variant, world.seeds, 1).scores
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)


def test_an_overlay_changes_the_answers_about_what_it_touches_and_no_others() -> None:
    world, order = World(9, EdgeRules(Direction.DIRECTED)), np.arange(FEATURES)
    revision = revision_over(
        "GraphSAGE", world.graph, world.features, Scaling(Normalization.DISABLED), Storage.FLOAT32, order
    )
    known = world.seeds < NODES
    found = world.answers(revision, "x1")[known]
    before = infer_batch(revision, "x1", world.seeds[known], 1).scores
    is_changed = ~np.isclose(found, before).all(axis=1)
    assert is_changed.any()
    assert not is_changed.all()


def test_a_part_of_a_part_of_a_batch_is_seen_as_in_the_batch() -> None:
    seeds = np.arange(10)
    view = view_of(NODES, [Part(6, None, None), Part(1, None, 3), Part(3, None, None)], seeds)
    assert view is not None
    part = view.of_seeds(slice(2, 9))
    assert [part.touches(slice(i, i + 1)) for i in range(7)] == [i == 4 for i in range(7)]
    assert part.of_seeds(slice(4, 5)).touches(slice(0, 1))


SAMPLED = (3, 2)


def _sampled(architecture: str, world: World) -> LoadedRevision:
    order, scaling = np.arange(FEATURES), Scaling(Normalization.DISABLED)
    return revision_over(architecture, world.graph, world.features, scaling, Storage.FLOAT32, order, SAMPLED)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_requests_of_one_batch_see_nothing_of_each_other(architecture: str) -> None:
    worlds = [World(11, EdgeRules(Direction.UNDIRECTED))]
    revision = _sampled(architecture, worlds[0])
    for number in range(3):  # other overlays over the same graph, of which one is empty
        other = World(11, EdgeRules(Direction.UNDIRECTED))
        draw = np.random.default_rng(number)
        other.edges = draw.integers(0, NODES + 4, (8 * number, 2))
        other.brought = other.brought * (2 + number)
        worlds.append(other)
    plain = np.arange(15)
    parts, seeds = [Part(len(plain), None, None)], [plain]
    for world in worlds:
        overlay, numbered = arrange_overlay(
            world.graph, world.rules, world.brought, world.overridden, world.edges, world.seeds
        )
        parts.append(Part(len(numbered), overlay, None))
        seeds.append(numbered)
    together = np.concatenate(seeds)
    found = infer_batch(revision, "x1", together, 7, view=view_of(NODES, parts, together)).scores
    expected = [
        infer_batch(revision, "x1", plain, 7).scores,
        *(world.answers(revision, "x1", key=7) for world in worlds),
    ]
    # What a node draws depends on key, depth and node, so that company changes nothing but the order of sums.
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


def test_draws_of_a_request_with_a_seed_depend_on_it_alone() -> None:
    world = World(12, EdgeRules(Direction.UNDIRECTED))
    revision = _sampled("GraphSAGE", world)
    first, again = (world.answers(revision, "x1", seed=5, key=key) for key in (1, 2))
    np.testing.assert_array_equal(first, again)
    others = [world.answers(revision, "x1", seed=seed, key=1) for seed in (None, 6)]
    assert all(not np.allclose(first, other) for other in others)
    # As the key of a batch that has no other request.
    np.testing.assert_array_equal(first, world.answers(revision, "x1", key=5))


def test_a_seed_without_an_overlay_is_the_key_of_a_batch() -> None:
    world = World(13, EdgeRules(Direction.UNDIRECTED))
    revision = _sampled("GCN", world)
    seeds = np.arange(40)
    view = view_of(NODES, [Part(10, None, None), Part(30, None, 21)], seeds)
    found = infer_batch(revision, "x1", seeds, 4, view=view).scores
    expected = [infer_batch(revision, "x1", seeds[:10], 4).scores, infer_batch(revision, "x1", seeds[10:], 21).scores]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-6)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_a_seed_that_a_request_repeats_is_computed_once(
    monkeypatch: pytest.MonkeyPatch, architecture: str, seed: int | None
) -> None:
    worlds = [World(14, EdgeRules(Direction.UNDIRECTED)), World(14, EdgeRules(Direction.UNDIRECTED))]
    worlds[1].brought = worlds[1].brought * 3
    revision = _sampled(architecture, worlds[0])
    computed: list[int] = []
    infer_each = inference_module.infer_each

    def counted(of: LoadedRevision, variant: str, seeds: np.ndarray, *given: Any, **options: Any) -> Inference:
        computed.append(len(seeds))
        return infer_each(of, variant, seeds, *given, **options)

    monkeypatch.setattr(inference_module, "infer_each", counted)
    asked = np.array([NODES, 3, NODES, NODES + 1, 3, 3, worlds[0].overridden[0]])
    parts, numbered, expected = [], [], []
    for world in worlds:
        world.seeds = asked
        overlay, seeds = world.arranged()
        parts.append(Part(len(asked), overlay, seed))
        numbered.append(seeds)
        for node in seeds:
            alone = np.array([node])
            view = view_of(NODES, [Part(1, overlay, seed)], alone)
            expected.append(infer_batch(revision, "x1", alone, 7, view=view).scores)
    plain = np.array([3, 3])
    together = np.concatenate([plain, *numbered])
    computed.clear()

    view = view_of(NODES, [Part(2, None, None), *parts], together)
    for _ in range(2):  # the view is as it was
        found = infer_batch(revision, "x1", together, 7, view=view).scores
        np.testing.assert_allclose(found[2:], np.concatenate(expected), atol=1e-5)
        np.testing.assert_allclose(found[:2], infer_batch(revision, "x1", plain, 7).scores, atol=1e-5)

    distinct = len(set(asked.tolist()))
    assert computed == [1 + 2 * distinct, 1] * 2
    assert not np.allclose(found[2 : 2 + len(asked)], found[2 + len(asked) :])


def test_no_view_is_made_where_no_request_needs_one() -> None:
    assert view_of(NODES, [Part(2, None, None), Part(1, None, None)], np.arange(3)) is None


@pytest.mark.campaign
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("stored", "gained", "fanout"), [(6, 5, 4), (0, 12, 5), (30, 2, 10), (9, 3, 11)])
def test_draws_are_uniform_over_stored_and_new_neighbours(stored: int, gained: int, fanout: int, share: bool) -> None:
    counts = np.zeros(stored + gained)
    for drawn in drawn_of_list(stored, gained, fanout, 2000, share=share):
        assert len(set(drawn.tolist())) == fanout
        np.add.at(counts, drawn, 1)
    assert is_uniform(counts)


@pytest.mark.parametrize("method", [Normalization.DISABLED, Normalization.STANDARDIZE])
def test_features_of_stored_nodes_are_those_of_the_source(method: Normalization) -> None:
    world = World(2, EdgeRules(Direction.DIRECTED))
    order = np.random.default_rng(5).permutation(FEATURES)
    scaling = scaling_of(world.features, method)
    revision = revision_over("GraphSAGE", world.graph, world.features, scaling, Storage.FLOAT32, order)
    maker = revision.variants["x1"].rows
    assert maker is not None and (features_of := maker.kept_features([FEATURES])) is not None
    nodes = np.array([5, 0, 5])
    assert np.abs(features_of(nodes) - world.features[nodes]).max() < 1e-5


@pytest.mark.parametrize(
    ("storage", "method", "variant"),
    [
        (Storage.FLOAT16, Normalization.DISABLED, "x1"),
        (Storage.INT8, Normalization.DISABLED, "x1"),
        (Storage.FLOAT32, Normalization.ROW_NORMALIZE, "x1"),
        (Storage.FLOAT32, Normalization.DISABLED, "projected"),
    ],
)
def test_tables_that_do_not_have_them_say_so(storage: Storage, method: Normalization, variant: str) -> None:
    world = World(2, EdgeRules(Direction.DIRECTED))
    scaling = scaling_of(world.features, method)
    revision = revision_over("GraphSAGE", world.graph, world.features, scaling, storage, np.arange(FEATURES))
    maker = revision.variants[variant].rows
    assert maker is not None and maker.kept_features([FEATURES]) is None


@pytest.mark.parametrize(("architecture", "made"), [("GraphSAGE", (2, 2)), ("GIN", (3, 3))])
def test_of_a_new_node_only_those_rows_are_made_that_are_read(
    architecture: str, made: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new node that is asked for reads a second one, and that a third one: two layers read the first two themselves,
    and the last two as neighbours."""
    world = World(2, EdgeRules(Direction.DIRECTED), new=0, overridden=0, edges=0)
    revision = _sampled(architecture, world)
    edges = np.array([[NODES + 1, NODES], [NODES + 2, NODES + 1]])
    overlay, seeds = arrange_overlay(
        world.graph, world.rules, np.ones((3, FEATURES), np.float32), np.zeros(0, np.int64), edges, np.array([NODES])
    )
    view = view_of(NODES, [Part(1, overlay, None)], seeds)
    found: list[tuple[int, int]] = []
    make = RowMaker.make

    def counted(*arguments: Any) -> RowsBehind:
        behind = make(*arguments)
        assert behind.values is not None and behind.own_values is not None
        found.append((len(behind.values), len(behind.own_values)))
        return behind

    monkeypatch.setattr(RowMaker, "make", counted)
    infer_batch(revision, "projected", seeds, 1, view=view)
    assert found == [made]


@pytest.mark.parametrize(("direction", "made"), [(Direction.DIRECTED, (2, 2)), (Direction.UNDIRECTED, (4, 2))])
def test_of_a_stored_layer_only_what_new_edges_change_is_made(
    direction: Direction, made: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two new nodes read four stored ones: these have another output only where they read the new ones in turn, and
    then as neighbours alone, of which each new node reads one row, their mean."""
    world = World(2, EdgeRules(direction), new=0, overridden=0, edges=0)
    scaling = scaling_of(world.features, Normalization.DISABLED)
    revision = revision_over("GraphSAGE", world.graph, world.features, scaling, Storage.FLOAT32, np.arange(FEATURES))
    edges, asked = np.array([[0, NODES], [1, NODES], [2, NODES], [3, NODES + 1]]), np.array([NODES, NODES + 1])
    overlay, seeds = arrange_overlay(
        world.graph, world.rules, np.ones((2, FEATURES), np.float32), np.zeros(0, np.int64), edges, asked
    )
    view = view_of(NODES, [Part(2, overlay, None)], seeds)
    found: list[tuple[int, int]] = []
    make = StoredRowMaker.behind

    def counted(*arguments: Any, **options: Any) -> RowsBehind | None:
        behind = make(*arguments, **options)
        assert behind is not None and behind.values is not None and behind.own_values is not None
        found.append((len(behind.values), len(behind.own_values)))
        return behind

    monkeypatch.setattr(StoredRowMaker, "behind", counted)
    infer_batch(revision, "stored1", seeds, 1, view=view)
    assert found == [made]
