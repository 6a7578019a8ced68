"""A graph that changes answers as one that is built anew does, whatever comes and goes, in whatever batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.changes.living import (
    DEEPER,
    FEATURES,
    MODELS,
    ROOM_BYTES,
    VARIANTS,
    PlainGraph,
    batch_of,
    generated,
    ids_of,
    stored_ids,
)
from tests.support.overlays.overlays import RULES, arrange_overlay

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.graph.change_batch import (
    OF_THIS_WORKER,
    BatchEffect,
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
)
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models import living_sums
from gnnserve_worker.sampling.batch_view import Part, view_of

NODES = 40
CLOSE = 2e-5
UNDIRECTED = EdgeRules(Direction.UNDIRECTED)


def opened(
    root: Path,
    plain: PlainGraph,
    architecture: str = "GraphSAGE",
    *,
    max_delta_bytes: int = ROOM_BYTES,
    variants: dict[str, object] = VARIANTS,
) -> LivingRevision:
    ids = None if plain.first_ids == [*range(len(plain.first_ids))] else stored_ids(plain.first_ids)
    loaded = generated(
        root, "living", architecture, plain.built(), ids=ids, variants=variants, max_delta_bytes=max_delta_bytes
    )
    return LivingRevision(loaded, max_delta_bytes)


def apply_one(living: LivingRevision, offset: int, batch: ChangeBatch) -> BatchEffect | ChangeRefusal:
    (said,) = living.apply(offset, [batch])
    return said


def assert_equal_to_the_graph_built_anew(
    root: Path,
    living: LivingRevision,
    plain: PlainGraph,
    architecture: str = "GraphSAGE",
    digest: str = "rebuilt",
    variants: dict[str, object] = VARIANTS,
    close: float = CLOSE,
) -> None:
    rebuilt = generated(root, digest, architecture, plain.built(), variants=variants)
    positions = living.graph.ids.find(ids_of([*plain.lists]))
    assert positions.min() >= 0
    # Which products are worth keeping is measured, and may differ.
    for name in [name for name in rebuilt.variants if name in living.loaded.variants]:
        expected = infer_batch(rebuilt, name, np.arange(len(positions)), 0).scores
        found = infer_batch(living.loaded, name, positions, 0).scores
        # Whole numbers of a row's scale: one that lies between two may be rounded either way.
        few = 3e-2 if name.endswith("-int8") else close
        np.testing.assert_allclose(found, expected, atol=few, rtol=few, err_msg=name)


@pytest.mark.campaign
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: f"{rules.direction}-{rules.duplicates}")
@pytest.mark.parametrize("architecture", MODELS)
def test_after_any_changes_answers_are_those_of_the_graph_built_anew(
    tmp_path: Path, architecture: str, rules: EdgeRules
) -> None:
    plain, draw = PlainGraph(NODES, 3, rules), np.random.default_rng(4)
    living, fresh = opened(tmp_path, plain, architecture), [*range(10_000, 9_000, -1)]
    for offset in range(1, 13):
        assert isinstance(apply_one(living, offset, plain.random_batch(draw, 12, fresh)), BatchEffect)
    assert {"x1", "x2", "projected", "stored1"} <= {*living.loaded.variants}
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain, architecture)
    assert living.nodes == len(plain.lists)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("layers", "rules"), [(2, UNDIRECTED), (3, EdgeRules(Direction.DIRECTED))], ids=["both ways", "directed"]
)
@pytest.mark.parametrize("architecture", MODELS)
def test_layers_behind_the_first_follow_where_that_is_asked_for(
    tmp_path: Path, architecture: str, rules: EdgeRules, layers: int
) -> None:
    variants = {**DEEPER, "stored": [2, 3] if layers == 3 else [1, 2]}
    plain, draw = PlainGraph(NODES, 31, rules), np.random.default_rng(32)
    living, fresh = opened(tmp_path, plain, architecture, variants=variants), [*range(10_000, 9_000, -1)]
    batches = [plain.random_batch(draw, 3, fresh) for _ in range(8)]
    living.apply(1, batches[:5])
    living.apply(6, batches[5:])
    assert {f"stored{layers}", f"stored{layers}-int8"} <= {*living.loaded.variants}
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain, architecture, variants=variants)


@pytest.mark.parametrize("rules", [UNDIRECTED, EdgeRules(Direction.DIRECTED)], ids=["both ways", "directed"])
def test_batches_together_are_as_one_after_the_other(tmp_path: Path, rules: EdgeRules) -> None:
    draw, plain = np.random.default_rng(21), PlainGraph(NODES, 20, rules)
    living = opened(tmp_path, plain)
    fresh = [*range(10_000, 9_000, -1)]
    wrong = batch_of(np.zeros((0, FEATURES), np.float32), removed=[-7])
    batches = [plain.random_batch(draw, 8, fresh) for _ in range(30)]
    said = living.apply(1, [*batches[:20], wrong, *batches[20:]])
    assert [isinstance(one, BatchEffect) for one in said] == [number != 20 for number in range(31)]
    assert living.offset == 31
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
def test_sums_never_drift(tmp_path: Path, architecture: str) -> None:
    """What rounding a first sum leaves stays the same to the bit; one that was made from its list has none."""
    plain, draw = PlainGraph(NODES, 22, UNDIRECTED), np.random.default_rng(23)
    living, fresh = opened(tmp_path, plain, architecture), [*range(10_000, 9_000, -1)]
    (sums,) = living.drafting.sums.values()
    stored = np.arange(NODES)
    sums.begin(stored)
    first, _ = sums.residuals(stored)
    assert np.abs(first).max() > 0
    living.apply(1, [plain.random_batch(draw, 8, fresh) for _ in range(8)])
    now, from_list = sums.residuals(np.arange(living.graph.ids.count))
    is_kept = (now != -1).any(axis=1)
    assert (now[is_kept & from_list] == 0).all()
    is_first = is_kept[:NODES] & ~from_list[:NODES]
    assert is_first.any()
    np.testing.assert_array_equal(now[:NODES][is_first], first[is_first])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("architecture", "direction"),
    [("GraphSAGE", Direction.UNDIRECTED), ("GIN", Direction.UNDIRECTED), ("GIN", Direction.DIRECTED)],
)
def test_sums_of_a_later_layer_are_those_of_its_lists_to_the_bit(
    tmp_path: Path, architecture: str, direction: Direction, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many threads share the readers."""
    monkeypatch.setattr(living_sums, "thread_count", lambda: threads)
    plain, draw = PlainGraph(NODES, 27, EdgeRules(direction)), np.random.default_rng(28)
    living, fresh = opened(tmp_path, plain, architecture, variants=DEEPER), [*range(10_000, 9_000, -1)]
    for number in range(8):
        # Beside predictions, and without any.
        living.inferences += number % 2
        living.apply(living.offset + 1, [plain.random_batch(draw, 8, fresh) for _ in range(3)])
    (sums,) = living.drafting.later_sums.values()
    now, _ = sums.residuals(np.arange(living.graph.ids.count))
    is_kept = (now != -1).any(axis=1)
    assert is_kept.any()
    assert (now[is_kept] == 0).all()


def test_a_number_beyond_all_others_is_followed_too(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 24, UNDIRECTED)
    living = opened(tmp_path, plain)
    for offset, size in enumerate((1.0, 1e6, 1.0, 1e30, 1.0), start=1):
        row = np.full((1, FEATURES), size, np.float32)
        plain.features[3] = row[0]
        assert isinstance(apply_one(living, offset, batch_of(row, overrides=[3])), BatchEffect)
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)


@pytest.mark.parametrize("kind", ["positions", "integers", "texts"])
def test_nodes_are_found_by_whatever_they_are_called(tmp_path: Path, kind: str) -> None:
    ids = {"positions": None, "integers": [7 * i - 50 for i in range(NODES)], "texts": [f"n{i}" for i in range(NODES)]}
    plain, draw = PlainGraph(NODES, 5, UNDIRECTED, ids[kind]), np.random.default_rng(6)
    fresh = [f"new {i}" for i in range(500)] if kind == "texts" else [*range(2_000_000, 1_999_000, -1)]
    living = opened(tmp_path, plain)
    for offset in range(1, 40):
        assert isinstance(apply_one(living, offset, plain.random_batch(draw, 6, fresh)), BatchEffect)
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)
    shown = living.graph.ids.shown(0, living.graph.ids.count)
    assert shown == [*plain.lists]
    assert living.graph.ids.shown(5, 9) == [
        id_ for id_ in shown if living.graph.ids.find(ids_of([id_]))[0] in range(5, 9)
    ]


def test_a_node_may_come_back_under_its_id(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 7, UNDIRECTED)
    living, row = opened(tmp_path, plain), np.ones((1, FEATURES), np.float32)
    apply_one(living, 1, batch_of(row[:0], removed=[3]))
    plain.remove_node(3)
    assert living.graph.ids.find(ids_of([3])).tolist() == [-1]
    for offset in (2, 4):
        assert isinstance(apply_one(living, offset, batch_of(row, [3], edges=[(3, 5)])), BatchEffect)
        assert living.graph.ids.find(ids_of([3])).tolist() == [NODES + offset // 2 - 1]
        apply_one(living, offset + 1, batch_of(row[:0], removed=[3]))
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)


def test_one_order_of_changes_or_another_make_one_graph(tmp_path: Path) -> None:
    """Lists are the same arrays, so that equal keys draw equal neighbours."""
    edges = [(i, j) for i in range(20) for j in range(i)]
    graphs = []
    for name, order in (("a", edges), ("b", edges[::-1])):
        plain = PlainGraph(NODES, 8, UNDIRECTED)
        living = opened(tmp_path / name, plain)
        for offset, start in enumerate(range(0, len(order), 10), start=1):
            apply_one(living, offset, batch_of(np.zeros((0, FEATURES), np.float32), edges=order[start : start + 10]))
        graphs.append(living.graph.lists)
    first, second = (lists.entries_of(np.arange(NODES)) for lists in graphs)
    np.testing.assert_array_equal(first, second)


def test_an_overlay_is_answered_over_the_graph_as_it_is_now(tmp_path: Path) -> None:
    plain, draw = PlainGraph(NODES, 9, UNDIRECTED), np.random.default_rng(10)
    living, fresh = opened(tmp_path, plain), [*range(1000, 900, -1)]
    for offset in range(1, 8):
        apply_one(living, offset, plain.random_batch(draw, 8, fresh))
    known = [*plain.lists]
    row, ends = draw.normal(size=(1, FEATURES)).astype(np.float32), known[-4:]
    plain.lists[-1], plain.features[-1] = [], row[0]
    for other in ends:
        plain.add_edge(other, -1)
    rebuilt = generated(tmp_path, "rebuilt", "GraphSAGE", plain.built())
    served = served_revision(living.loaded, living)
    room, positions = served.graph.nodes, living.graph.ids.find(ids_of(known))
    support = served.compute.overlays.support
    edges = np.array([[positions[-1 - i], room] for i in range(len(ends))])
    seeds = np.array([*positions, room])
    for name in rebuilt.variants:
        overlay, numbered = support.arrange(row.copy(), np.zeros(0, np.int64), edges, seeds.copy())
        view = view_of(room, [Part(len(seeds), overlay, None)], numbered)
        found = served.compute.infer(name, numbered, 1, view=view).scores
        expected = infer_batch(rebuilt, name, np.arange(len(seeds)), 1).scores
        np.testing.assert_allclose(found, expected, atol=CLOSE, rtol=CLOSE, err_msg=name)
    assert arrange_overlay  # the same function arranges over both


def refused(living: LivingRevision, batch: ChangeBatch) -> ChangeRefusal:
    before = living.graph.lists.entries_of(np.arange(living.graph.ids.count))
    told = living.check(batch)
    offset = living.offset
    found = apply_one(living, offset + 1, batch)
    assert isinstance(found, ChangeRefusal)
    assert found == told
    assert living.offset == offset + (found.problem not in OF_THIS_WORKER)
    np.testing.assert_array_equal(living.graph.lists.entries_of(np.arange(living.graph.ids.count)), before)
    return found


def test_what_is_wrong_is_named_and_changes_nothing(tmp_path: Path) -> None:
    living = opened(tmp_path, PlainGraph(NODES, 11, UNDIRECTED))
    none, one, two = (np.zeros((rows, FEATURES), np.float32) for rows in range(3))
    text_ids = TextIds(*lay_out(["tag/x"]), TEXTS_WITH_TYPES)
    of_types = ChangeBatch(ChangeCounts(new_nodes=1), text_ids, one[:, :3])
    for batch, problem, field, words in (
        (batch_of(none, edges=[(1, 2), (3, 99)]), ChangeProblem.UNKNOWN_NODE, "edges[1][1]", "99 is no node"),
        (batch_of(none, removed_edges=[(-4, 2)]), ChangeProblem.UNKNOWN_NODE, "removedEdges[0][0]", "-4 is no node"),
        (batch_of(none, removed=[1, 77]), ChangeProblem.UNKNOWN_NODE, "removedNodes[1]", "77"),
        (batch_of(none, removed=[1, 1]), ChangeProblem.REPEATED_NODE, "removedNodes[1]", "1 is there twice"),
        (batch_of(two, [100, 100]), ChangeProblem.REPEATED_NODE, "nodes[1].id", "100"),
        (batch_of(two, overrides=[4, 4]), ChangeProblem.REPEATED_NODE, "overrides[1].id", "4"),
        (batch_of(two, [100, 5]), ChangeProblem.STORED_NODE, "nodes[1].id", "5 is a node of the graph"),
        (batch_of(one[:, :3], [100]), ChangeProblem.WRONG_LENGTH, "features", "3 features a node"),
        (of_types, ChangeProblem.INVALID_VALUE, "body", "texts with types, and those of the graph are integers"),
        (batch_of(one * np.nan, [100]), ChangeProblem.INVALID_VALUE, "nodes[0].features[0]", "nan is not finite"),
        (batch_of(one + np.inf, [], [3]), ChangeProblem.INVALID_VALUE, "overrides[0].features[0]", "inf"),
    ):  # fmt: skip
        found = refused(living, batch)
        assert (found.problem, found.field) == (problem, field)
        assert words in found.message


def test_columns_of_a_node_that_is_new_in_the_batch_stay_as_it_brings_them(tmp_path: Path) -> None:
    plain, row = PlainGraph(NODES, 30, UNDIRECTED), np.arange(FEATURES, dtype=np.float32)
    living, other = opened(tmp_path, plain), np.full(FEATURES, np.nan, np.float32)
    other[3] = 50.0
    apply_one(living, 1, batch_of(np.stack([row, other]), [900], [900], edges=[(900, 1)]))
    plain.lists[900], plain.features[900] = [], np.where(np.isnan(other), row, other)
    plain.add_edge(900, 1)
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)


def test_a_node_that_all_others_read_can_leave(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 31, UNDIRECTED)
    living, none = opened(tmp_path, plain), np.zeros((0, FEATURES), np.float32)
    edges = [(5, other) for other in range(NODES)]
    for edge in edges:
        plain.add_edge(*edge)
    plain.remove_node(5)
    said = living.apply(1, [batch_of(none, edges=edges), batch_of(none, removed=[5])])
    assert all(isinstance(one, BatchEffect) for one in said)
    assert_equal_to_the_graph_built_anew(tmp_path, living, plain)


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_numbers_that_are_none_reach_their_readers(tmp_path: Path) -> None:
    """Products of numbers near float32's end may be no numbers: an answer must not hide it."""
    plain = PlainGraph(NODES, 32, UNDIRECTED)
    living, row = opened(tmp_path, plain), np.resize(np.array([3e38, -3e38], np.float32), (1, FEATURES))
    apply_one(living, 1, batch_of(row, overrides=[3]))
    readers = living.graph.readers_of(np.array([3]))
    assert len(readers)
    products = living.drafting.makers[-1].table.rows.values[3]
    scores = infer_batch(living.loaded, "stored1", readers, 0).scores
    assert np.isfinite(products).all() or not np.isfinite(scores).all()


def test_a_revision_that_is_half_changed_answers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    living, row = opened(tmp_path, PlainGraph(NODES, 33, UNDIRECTED)), np.ones((1, FEATURES), np.float32)
    served = served_revision(living.loaded, living)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(living, "_write_stored", fail)
    with pytest.raises(MemoryError):
        living.apply(1, [batch_of(row, overrides=[3])])
    monkeypatch.undo()
    for call in (
        lambda: living.apply(2, [batch_of(row, overrides=[4])]),
        lambda: served.compute.infer("x1", np.arange(2), 0),
    ):
        with pytest.raises(RuntimeError, match="applied in part: start the worker anew"):
            call()


def test_columns_stay_only_where_the_revision_keeps_them(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 12, UNDIRECTED)
    loaded = generated(
        tmp_path, "products", "GraphSAGE", plain.built(), variants={"pruning": {"factors": []}, "stored": [1]},
        max_delta_bytes=ROOM_BYTES,
    )  # fmt: skip
    living, row = LivingRevision(loaded, ROOM_BYTES), np.ones((1, FEATURES), np.float32)
    row[0, 4] = np.nan
    found = refused(living, batch_of(row, overrides=[3]))
    assert (found.problem, found.field) == (ChangeProblem.MISSING_COLUMN, "overrides[0].features[4]")


def test_changes_end_where_their_memory_does_and_predictions_go_on(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 13, UNDIRECTED)
    living, row = opened(tmp_path, plain, max_delta_bytes=100_000), np.ones((1, FEATURES), np.float32)
    offset = 0
    while isinstance(
        said := apply_one(living, offset + 1, batch_of(row, [1000 + offset], edges=[(1000 + offset, 1)])), BatchEffect
    ):
        offset += 1
        assert offset < 1000
    assert said.problem is ChangeProblem.NO_ROOM
    assert living.offset == offset
    assert living.delta_bytes >= 100_000
    served = served_revision(living.loaded, living)
    assert np.isfinite(served.compute.infer("x1", np.arange(NODES), 0).scores).all()


def test_what_is_warmed_up_is_all_that_changes_compile(tmp_path: Path) -> None:
    living = opened(tmp_path, PlainGraph(NODES, 14, UNDIRECTED))
    served = served_revision(living.loaded, living)
    served.compute.warm_up()
    assert served.graph.count() == NODES
    assert served.graph.nodes > NODES
