"""Batches of a log that are applied many at a time become what they become one by one, whatever is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.changes.living import FEATURES, PlainGraph, batch_of, generated, ids_of, stored_ids
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import VARIANTS as TYPED_VARIANTS
from tests.support.changes.living_types import batch_of as typed_batch_of
from tests.support.changes.living_types import opened as opened_typed
from tests.support.changes.living_types import served_by
from tests.support.overlays.overlays import RULES
from tests.support.overlays.typed_overlays import Given, made

from gnnserve_api.files.edges import EdgeRules
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.change_batch import (
    BatchEffect,
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.change_run import fold_rows, join
from gnnserve_worker.graph.found_nodes import FoundNodes, distinct
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.kernel_cache import watch_compiling
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

NODES = 24
ROOM_BYTES = 1 << 28
CLOSE = 1e-5
SEEDS = st.integers(0, 2**32 - 1)
some = settings(max_examples=2)


@dataclass
class Written:
    """What `on_written` is told, as compaction uses it."""

    changes: SourceChanges
    new: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        self.changes.note(batch, found)
        self.new += found.new.tolist()
        self.removed += found.removed.tolist()


@dataclass
class Replay:
    living: LivingRevision
    written: Written

    @staticmethod
    def of(root: Path, name: str) -> Replay:
        repository = Repository(root, "tests", name)
        loaded = load_revision(repository, repository.revisions()[0].revision, ROOM_BYTES)
        written = Written(SourceChanges(np.zeros((NODES, FEATURES), np.float32), loaded.labels.classes))
        return Replay(LivingRevision(loaded, ROOM_BYTES, written.note), written)

    def apply(self, groups: Sequence[Sequence[ChangeBatch]]) -> list[BatchEffect | ChangeRefusal]:
        said: list[BatchEffect | ChangeRefusal] = []
        for group in groups:
            said += self.living.apply(self.living.offset + 1, group)
        return said


def assert_same(together: LivingRevision, alone: LivingRevision) -> None:
    """Whether both have the same nodes, lists and rows, to the number, and answer alike."""
    assert (together.offset, together.changes_since_base) == (alone.offset, alone.changes_since_base)
    one, other = together.graph, alone.graph
    assert one.taken == other.taken
    np.testing.assert_array_equal(one.is_gone, other.is_gone)
    np.testing.assert_array_equal(one.kept, other.kept)
    for graph, same in ((one, other), (together.drafting.graph, alone.drafting.graph)):
        assert_same_lists(graph, same)
    for ids, others in zip(ids_of_types(one), ids_of_types(other), strict=True):
        assert ids.shown(0, ids.count) == others.shown(0, others.count)
    for name, variant in together.loaded.variants.items():
        nodes = other.kept[other.kept < 20]
        found = infer_batch(together.loaded, name, nodes, 0).scores
        expected = infer_batch(alone.loaded, name, nodes, 0).scores
        close = CLOSE if variant.table.rows.format.is_exact else 3e-2 * float(np.abs(expected).max(initial=1))
        np.testing.assert_allclose(found, expected, atol=close, rtol=close, err_msg=name)


def assert_same_lists(one: LivingGraph, other: LivingGraph) -> None:
    for lists, others in ((one.lists, other.lists), (one.readers, other.readers)):
        if lists is None or others is None:
            assert lists is others
            continue
        every = np.arange(len(lists.bounds))
        every = every[(lists.lengths(every) > 0) | (others.lengths(every) > 0)]
        np.testing.assert_array_equal(lists.lengths(every), others.lengths(every))
        np.testing.assert_array_equal(lists.of(every), others.of(every))


def ids_of_types(graph: LivingGraph) -> Sequence[object]:
    return graph.ids_of


class Log:
    """Batches as clients send them: nearly all are right, a few name what is not there, or is there already."""

    def __init__(self, seed: int, plain: PlainGraph, fresh: list[int] | list[str]) -> None:
        self._draw, self._plain, self._fresh = np.random.default_rng(seed), plain, fresh
        self._ids = [*plain.first_ids, *fresh]

    def batch(self) -> ChangeBatch:
        what = self._draw.random()
        if what < 0.2:
            return self._hostile()
        if what < 0.3:
            return self._labelled()
        if what < 0.35:
            return batch_of(np.zeros((0, FEATURES), np.float32))
        before = {*self._plain.lists}
        if len(before) < 8:
            return self._growing()
        made = self._plain.random_batch(self._draw, int(self._draw.integers(2, 5)), self._fresh)
        # Ids of nodes that have left come again.
        self._fresh[:0] = [id_ for id_ in before if id_ not in self._plain.lists]  # type: ignore[arg-type]
        return made

    def _some(self, most: int) -> list[int | str]:
        count = int(self._draw.integers(0, most))
        return [self._ids[i] for i in self._draw.integers(0, len(self._ids), count).tolist()]

    def _pairs(self) -> list[tuple[int | str, int | str]]:
        return [(first, second) for first in self._some(3) for second in self._some(3)]

    def _hostile(self) -> ChangeBatch:
        """May be refused, or not."""
        new, overrides = self._some(2), self._some(3)
        rows = self._draw.normal(size=(len(new) + len(overrides), FEATURES)).astype(np.float32)
        if len(rows) and self._draw.random() < 0.3:
            rows[-1, 0] = self._draw.choice([np.nan, np.inf])
        return batch_of(rows, new, overrides, self._pairs(), self._pairs(), self._some(2))  # type: ignore[arg-type]

    def _growing(self) -> ChangeBatch:
        new = [self._fresh.pop()]
        self._plain.lists |= {id_: [] for id_ in new}
        self._plain.features |= {id_: np.ones(FEATURES, np.float32) for id_ in new}
        return batch_of(np.ones((1, FEATURES), np.float32), new=new)  # type: ignore[arg-type]

    def _labelled(self) -> ChangeBatch:
        new = [self._fresh.pop()]
        labelled = [*self._plain.lists][:2] * 2
        self._plain.lists |= {id_: [] for id_ in new}
        self._plain.features |= {id_: np.zeros(FEATURES, np.float32) for id_ in new}
        labels = msgspec.json.encode([self._draw.choice([0, 1, 2, None]) for _ in (*new, *labelled)])
        counts = ChangeCounts(new_nodes=1, labelled=len(labelled))
        return ChangeBatch(counts, ids_of([*new, *labelled]), np.zeros((1, FEATURES), np.float32), labels)


def in_groups(batches: list[ChangeBatch], seed: int) -> Iterator[list[ChangeBatch]]:
    draw, start = np.random.default_rng(seed), 0
    while start < len(batches):
        size = int(draw.integers(1, 40))
        yield batches[start : start + size]
        start += size


KINDS = ("positions", "texts")
PLACES = [(rules, kind) for rules in RULES for kind in KINDS]


def first_ids(kind: str) -> list[int] | list[str]:
    return [f"né{i}" for i in range(NODES)] if kind == "texts" else [*range(NODES)]


def plain_graph(rules: EdgeRules, kind: str) -> PlainGraph:
    return PlainGraph(NODES, 3, rules, first_ids(kind))


@pytest.fixture(scope="module")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Revisions of all rules and kinds of ids."""
    root = tmp_path_factory.mktemp("runs")
    for number, (rules, kind) in enumerate(PLACES):
        plain, architecture = plain_graph(rules, kind), "GCN" if number % 2 else "GraphSAGE"
        ids = stored_ids(plain.first_ids) if kind == "texts" else None  # type: ignore[arg-type]
        generated(root, f"run{number}", architecture, plain.built(), ids=ids)
    return root


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(len(PLACES)), ids=[f"{r.direction}-{r.duplicates}-{k}" for r, k in PLACES])
@some
@given(seed=SEEDS)
def test_batches_together_are_what_they_are_one_by_one(revisions: Path, number: int, seed: int) -> None:
    rules, kind = PLACES[number]
    fresh = [f"new {i}" for i in range(30)] if kind == "texts" else [*range(1000, 1030)]
    log = Log(seed, plain_graph(rules, kind), fresh)
    batches = [log.batch() for _ in range(60) if fresh]
    batches = [decode_batch(encode_batch(batch)) for batch in batches]
    together, alone = Replay.of(revisions, f"run{number}"), Replay.of(revisions, f"run{number}")
    assert together.apply([*in_groups(batches, seed)]) == alone.apply([[batch] for batch in batches])
    assert_same(together.living, alone.living)
    assert together.written.new == alone.written.new
    assert sorted(together.written.removed) == sorted(alone.written.removed)
    one, other, kept = together.written.changes, alone.written.changes, alone.living.graph.kept
    np.testing.assert_array_equal(one.features_of(kept), other.features_of(kept))
    labels = np.full(NODES, -1)
    np.testing.assert_array_equal(one.labels_of(labels, kept), other.labels_of(labels, kept))


ROW = np.ones((1, FEATURES), np.float32)
NO_ROWS = ROW[:0]
NAN = np.full((1, FEATURES), np.nan, np.float32)
SEQUENCES: dict[str, list[ChangeBatch]] = {
    "an edge comes, leaves and comes": [
        batch_of(NO_ROWS, edges=[(1, 2)]), batch_of(NO_ROWS, removed_edges=[(1, 2)]), batch_of(NO_ROWS, edges=[(1, 2)]),
    ],
    "an edge leaves that a later batch brings": [
        batch_of(NO_ROWS, removed_edges=[(1, 2)]), batch_of(NO_ROWS, edges=[(1, 2), (2, 1)]),
        batch_of(NO_ROWS, edges=[(2, 1)]),
    ],
    "a node comes, is linked and overridden, leaves and comes again": [
        batch_of(ROW, new=[100]), batch_of(NO_ROWS, edges=[(100, 1)]), batch_of(2 * ROW, overrides=[100]),
        batch_of(NO_ROWS, removed=[100]), batch_of(3 * ROW, new=[100], edges=[(2, 100)]),
    ],
    "a stored node leaves, is named in vain, and comes again": [
        batch_of(NO_ROWS, edges=[(1, 3)]), batch_of(NO_ROWS, removed=[3]), batch_of(NO_ROWS, edges=[(1, 3)]),
        batch_of(ROW, new=[3]), batch_of(NO_ROWS, edges=[(1, 3)]),
    ],
    "a node is overridden twice, in parts": [
        batch_of(2 * ROW, overrides=[5]), batch_of(np.where(np.arange(FEATURES) < 3, ROW, NAN), overrides=[5]),
        batch_of(NAN, overrides=[5, 6][:1]), batch_of(np.where(np.arange(FEATURES) > 9, 4 * ROW, NAN), overrides=[6]),
    ],
    "a node is named before it comes": [batch_of(NO_ROWS, edges=[(1, 100)]), batch_of(ROW, new=[100])],
    "a node comes twice": [batch_of(ROW, new=[100]), batch_of(2 * ROW, new=[100]), batch_of(NO_ROWS, edges=[(100, 1)])],
    "a node leaves twice": [batch_of(NO_ROWS, removed=[4]), batch_of(NO_ROWS, removed=[4])],
    "one batch has features of another width": [
        batch_of(ROW, new=[100]), batch_of(ROW[:, :3], new=[101]), batch_of(ROW, new=[102]),
    ],
    "one batch has ids of another kind": [
        batch_of(ROW, new=[100]), batch_of(NO_ROWS, removed=["a"]), batch_of(ROW, new=[102]),
    ],
}  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("number", [0, 2, 4], ids=lambda number: f"{PLACES[number][0].direction}")
@pytest.mark.parametrize("name", SEQUENCES)
def test_what_builds_upon_each_other_together_is_what_it_is_one_by_one(revisions: Path, name: str, number: int) -> None:
    batches = SEQUENCES[name]
    together, alone = Replay.of(revisions, f"run{number}"), Replay.of(revisions, f"run{number}")
    said = together.apply([batches])
    assert said == [one for batch in batches[: len(said)] for one in alone.apply([[batch]])]
    stuck = isinstance(said[-1], ChangeRefusal) and said[-1].problem is ChangeProblem.WRONG_LENGTH
    assert len(said) == (2 if stuck else len(batches))
    assert_same(together.living, alone.living)


def test_a_run_is_applied_in_one_go_and_goes_on_behind_a_batch_that_is_refused(
    revisions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, sizes = Replay.of(revisions, "run0"), list[int]()
    drafting = replay.living.drafting
    apply = drafting.apply
    monkeypatch.setattr(
        drafting, "apply", lambda batch, found, group: sizes.append(found.records) or apply(batch, found, group)
    )
    batches = [batch_of(ROW, new=[100 + i], edges=[(i, 100 + i)]) for i in range(20)]
    batches[12] = batch_of(NO_ROWS, edges=[(0, 999)])
    said = replay.apply([batches])
    assert [isinstance(one, ChangeRefusal) for one in said] == [number == 12 for number in range(20)]
    assert sizes == [12, 7]


@pytest.mark.parametrize("number", [0, 1], ids=KINDS)
def test_together_nothing_is_compiled_beyond_what_one_by_one_is(revisions: Path, number: int) -> None:
    rules, kind = PLACES[number]
    fresh = [f"new {i}" for i in range(30)] if kind == "texts" else [*range(1000, 1030)]
    log = Log(7, plain_graph(rules, kind), fresh)
    batches = [decode_batch(encode_batch(log.batch())) for _ in range(20)]
    Replay.of(revisions, f"run{number}").apply([[batch] for batch in batches])
    together, compiled = Replay.of(revisions, f"run{number}"), watch_compiling()
    together.apply([batches[:5], batches[5:]])
    assert compiled == []


def test_close_to_the_end_of_the_room_batches_come_one_by_one(revisions: Path) -> None:
    together, alone = Replay.of(revisions, "run0"), Replay.of(revisions, "run0")
    batches = [batch_of(ROW, new=[100 + i], edges=[(i % NODES, 100 + i)]) for i in range(400)]
    for replay in (together, alone):
        replay.living.max_delta_bytes = 1 << 17
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(alone.living, "_count_alike", lambda _: 0)
        expected = alone.apply([batches])
    said = together.apply([batches])
    assert isinstance(said[-1], ChangeRefusal)
    assert said[-1].problem is ChangeProblem.NO_ROOM
    assert said == expected


# Graphs of several types


@pytest.fixture(scope="module", params=["GraphSAGE", "GAT"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Given]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        folder = tmp_path_factory.mktemp(request.param)
        return folder, made(folder, request.param, TYPED_VARIANTS)


def typed_batch(flat: list[str], counts: ChangeCounts, width: int) -> ChangeBatch:
    return ChangeBatch(counts, TextIds(*lay_out(flat), TEXTS_WITH_TYPES), np.ones((counts.rows, width), np.float32))


def hostile_typed(draw: np.random.Generator, graph: LivingGraph, width: int) -> ChangeBatch:
    """Nodes and edges of all types, some of which are not there or of no type."""
    types, relations = [kind.name for kind in graph.stored.types], graph.stored.relations

    def node(name: str | None = None) -> str:
        name = name or types[draw.integers(len(types))]
        return str(draw.choice([f"{name}/{draw.integers(0, 8)}", f"{name}/{1000 + draw.integers(0, 20)}"]))

    def edge() -> list[str]:
        one = relations[draw.integers(len(relations))]
        return [node(one.source), one.name, node(one.target)]

    counts = ChangeCounts(*(int(draw.integers(0, 2)) for _ in range(6)))
    flat = [node() for _ in range(counts.new_nodes + counts.overrides + counts.labelled)]
    flat += [text for _ in range(counts.edges + counts.removed_edges) for text in edge()]
    flat += [node() for _ in range(counts.removed_nodes)]
    if flat and draw.random() < 0.2:
        flat[0] = str(draw.choice(["nowhere/1", f"{types[0]}/x", types[0], f"{types[0]}/007"]))
    labels = b"" if not counts.labelled else msgspec.json.encode([None] * (counts.new_nodes + counts.labelled))
    return msgspec.structs.replace(typed_batch(flat, counts, width), labels=labels)


@pytest.mark.campaign
@some
@given(seed=SEEDS)
def test_typed_batches_together_are_what_they_are_one_by_one(shop: tuple[Path, Given], seed: int) -> None:
    folder, (data, _, model) = shop
    together, alone = opened_typed(folder, ROOM_BYTES // 4), opened_typed(folder, ROOM_BYTES // 4)
    plain, draw, served = PlainTypedGraph(data, model), np.random.default_rng(seed), served_by(alone)
    width = max(0 if kind.features is None else kind.features.shape[1] for kind in data.types)
    batches = []
    for _ in range(40):
        if draw.random() < 0.3:
            batches.append(hostile_typed(draw, alone.graph, width))
        else:
            batches.append(typed_batch_of(plain.random_batch(draw, 4), served))
    batches = [decode_batch(encode_batch(batch)) for batch in batches]
    said = [one for group in in_groups(batches, seed) for one in together.apply(together.offset + 1, group)]
    assert said == [one for batch in batches for one in alone.apply(alone.offset + 1, [batch])]
    assert_same(together, alone)


# Parts


@given(seed=SEEDS)
def test_joined_batches_have_their_ids_and_rows_kind_after_kind(seed: int) -> None:
    draw, batches = np.random.default_rng(seed), list[ChangeBatch]()
    for number in range(int(draw.integers(1, 6))):
        counts = ChangeCounts(*(int(draw.integers(0, 3)) for _ in range(6)))
        flat = [f"{number} {place}" for place in range(counts.count_ids(2))]
        batches.append(ChangeBatch(counts, ids_of([*flat]), np.full((counts.rows, 2), number, np.float32)))  # type: ignore[list-item]
    batches = [one if len(one.ids) else msgspec.structs.replace(one, ids=TextIds(*lay_out([]))) for one in batches]
    run = join(batches)
    texts, offsets = run.batch.ids.texts, run.batch.ids.offsets
    assert texts is not None and offsets is not None
    found = [texts[start:end].tobytes().decode() for start, end in pairwise(offsets)]
    assert len(found) == run.batch.counts.count_ids(2) == run.bounds[-1]
    assert [int(text.split()[0]) for text in found] == run.records.tolist()
    assert run.batch.features[:, 0].tolist() == run.row_records.tolist()
    for start, end in pairwise(run.bounds):
        places = [tuple(map(int, text.split())) for text in found[start:end]]
        assert places == sorted(places)


@given(seed=SEEDS)
def test_folded_rows_are_those_of_the_last_override_of_each_column(seed: int) -> None:
    draw = np.random.default_rng(seed)
    new = 10 + np.arange(draw.integers(0, 4))
    overridden = draw.integers(0, 10 + len(new), int(draw.integers(0, 12)))
    rows = draw.normal(size=(len(new) + len(overridden), 3)).astype(np.float32)
    rows[len(new) :][draw.random((len(overridden), 3)) < 0.4] = np.nan
    plain = dict(zip(new.tolist(), rows, strict=False))
    for node, row in zip(overridden.tolist(), rows[len(new) :], strict=True):
        plain[node] = np.where(np.isnan(row), plain.get(node, row), row)
    nodes, folded = fold_rows(new, overridden, rows)
    assert sorted([*new.tolist(), *nodes.tolist()]) == sorted(plain)
    for node, row in zip((*new.tolist(), *nodes.tolist()), folded, strict=True):
        np.testing.assert_array_equal(row, plain[node])


@pytest.mark.parametrize("count", [0, 1, 20, 21, 5_000], ids=lambda count: f"{count} of 80")
def test_distinct_nodes_are_ascending_and_there_once_however_many_there_are(count: int) -> None:
    draw = np.random.default_rng(41)
    parts = [draw.integers(0, 80, count), draw.integers(0, 80, count // 2), np.zeros(0, np.int64)]
    found = distinct(parts)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.unique(np.concatenate(parts)))
    np.testing.assert_array_equal(distinct([*parts, np.array([10**7])])[:-1], found)
