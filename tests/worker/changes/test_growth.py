"""Everything that grows is, over several growths, what plain lists and dictionaries are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnnserve_worker.caching.policies.frequency import FrequencyPolicy
from gnnserve_worker.caching.policies.toggles import Toggles
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import ChangeIds, IntegerIds, TextIds
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import ADDED, MERGED, REMOVED, living_lists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.growth import GrowingArray, enlarged
from gnnserve_worker.inference.changed_nodes import ChangedNodes, TouchedSince
from gnnserve_worker.inference.written import WrittenSince
from gnnserve_worker.kernels.primitives import room_for, scratch_for
from gnnserve_worker.models.pair_queries import Products
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.nearest.search import unit
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours

SEEDS = st.integers(0, 2**32 - 1)
STEPS = st.lists(st.integers(-3, 90), min_size=1, max_size=24)
"""Items that come at a time; below zero: as many leave."""
few = settings(max_examples=6)


@given(STEPS, st.sampled_from([None, 10, 100]))
@example([64, 1, 63, 1, 300, -3, 90], None)
def test_an_array_that_grows_is_a_list(steps: list[int], most: int | None) -> None:
    kept, plain = GrowingArray((2,), np.int32, most), list[list[int]]()
    for number, step in enumerate(steps):
        if step < 0:
            for _ in range(min(-step, len(plain))):
                plain.pop()
                kept.drop_last()
        else:
            rows = [[number, row] for row in range(step)]
            plain += rows
            kept.extend(np.array(rows, np.int32).reshape(-1, 2))
        assert len(kept) == len(plain)
        assert kept.items.tolist() == plain


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_room_is_made_where_it_lacks_and_what_is_used_is_kept(counts: list[int]) -> None:
    array, scratch, used = np.empty(0, np.int64), np.empty((0, 3), np.float32), 0
    for count in counts:
        before = array
        array, scratch = enlarged(array, used, count), scratch_for(scratch, count)
        assert len(array) >= count and len(scratch) >= count and scratch.shape[1] == 3
        assert (array is before) == (len(before) >= count)
        assert array[:used].tolist() == [*range(used)]
        array[used:count] = np.arange(used, count)
        used = max(used, count)
    assert room_for(max(counts)) >= max(counts)


def note(changes: SourceChanges, new: list[int], overridden: list[int], rows: np.ndarray) -> None:
    counts, none = ChangeCounts(len(new), len(overridden)), np.zeros((0, 2), np.int64)
    arrays = [np.array(nodes, np.int64) for nodes in (new, overridden, [])]
    changes.note(ChangeBatch(counts, IntegerIds(none[:, 0]), rows), FoundNodes(*arrays, none, none, none[:, 0]))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("step", [1025, 25, 1])
def test_features_of_more_new_nodes_than_there_was_room_for_are_kept(form: type, step: int) -> None:
    stored, came, draw = 7, 1025 if step > 1 else 150, np.random.default_rng(3)
    rows = draw.normal(size=(came, 2)).astype(np.float32)
    changes = SourceChanges(form(np.zeros((stored, 2), np.float32)), ("a",))
    for start in range(0, came, step):
        note(changes, [*range(stored + start, stored + start + step)], [], rows[start : start + step])
    found = changes.features_of(np.arange(stored, stored + came))
    np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.toarray(), rows)


@few
@given(SEEDS, st.booleans())
def test_features_that_changed_are_those_of_a_dictionary(seed: int, is_sparse: bool) -> None:
    draw, stored = np.random.default_rng(seed), 300
    first = draw.normal(size=(stored, 3)).astype(np.float32)
    changes = SourceChanges(sp.csr_array(first) if is_sparse else first, ("a",))
    plain, nodes = dict(enumerate(first)), stored
    for _ in range(int(draw.integers(1, 12))):
        new = [*range(nodes, nodes + int(draw.integers(0, 120)))]
        nodes += len(new)
        overridden = draw.choice(nodes, int(draw.integers(0, 150)), replace=False).tolist()
        rows = draw.normal(size=(len(new) + len(overridden), 3)).astype(np.float32)
        rows[len(new) :][draw.random((len(overridden), 3)) < 0.3] = np.nan
        note(changes, new, overridden, rows)
        plain |= dict(zip(new, rows, strict=False))
        for node, row in zip(overridden, rows[len(new) :], strict=True):
            plain[node] = np.where(np.isnan(row), plain[node], row)
    found = changes.features_of(np.arange(nodes))
    expected = np.stack([plain[node] for node in range(nodes)])
    np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.toarray(), expected)


@few
@given(SEEDS, st.booleans())
@example(0, False)
@example(0, True)
def test_ids_that_come_and_go_are_those_of_a_dictionary(seed: int, are_texts: bool) -> None:
    draw, stored, room = np.random.default_rng(seed), 20, 6000
    texts = [f"node {i}" for i in range(stored)]
    ids = LivingIds(string_ids(*lay_out(texts)) if are_texts else None, stored, room)
    names: list[str | int] = [*(texts if are_texts else range(stored))]
    place_of, count = dict(zip(names, range(stored), strict=True)), stored

    def laid_out(wanted: list[str | int]) -> ChangeIds:
        if are_texts:
            return TextIds(*lay_out([str(one) for one in wanted]))
        return IntegerIds(np.array(wanted, np.int64))

    while count < 2300:  # the table of integers has been laid out anew twice by then
        fresh = [
            f"né {count + i}" if are_texts else 10_000 + 7 * (count + i) for i in range(int(draw.integers(1, 700)))
        ]
        again = [name for name in names if name not in place_of][:5]  # those that have left come again
        new: list[str | int] = [*again, *fresh]
        ids.add(laid_out(new), len(new))
        place_of |= dict(zip(new, range(count, count + len(new)), strict=True))
        names += fresh
        count += len(new)
        gone = [names[i] for i in draw.choice(len(names), 10, replace=False) if names[i] in place_of]
        ids.remove(np.array([place_of.pop(name) for name in gone], np.int64))
        assert ids.find(laid_out(names)).tolist() == [place_of.get(name, -1) for name in names]
    by_place = {place: name for name, place in place_of.items()}
    assert ids.shown(0, count) == [by_place[place] for place in sorted(by_place)]
    assert ids.kept.tolist() == sorted(by_place)
    found = ids.of_these(ids.kept)
    assert found is not None and found.shown(0, len(by_place)) == ids.shown(0, count)


@few
@given(SEEDS)
def test_vectors_beside_an_index_are_those_of_a_dictionary(seed: int) -> None:
    draw, positions, most = np.random.default_rng(seed), 900, 300
    kept = RecentVectors(positions // 2, positions, 2, 4 * 2 * most)
    is_gone, plain = np.zeros(positions, bool), dict[int, np.ndarray]()
    for _ in range(10):
        kept.touch(draw.integers(0, positions, 120))
        gone = draw.integers(0, positions, 10)
        is_gone[gone] = True
        kept.touch(gone)
        taken = kept.take(90, is_gone)
        vectors = draw.normal(size=(len(taken), 2)).astype(np.float32)
        kept.put(taken, vectors)
        plain |= dict(zip(taken.tolist(), unit(vectors), strict=True))
        # Those that have left are forgotten when their turn comes.
        plain = {node: row for node, row in plain.items() if not kept.left_to_index[node] and node in kept._places}
        assert kept.count == len(plain) <= most
        query = np.array([1, 0], np.float32)
        found = kept.search(Products(query[np.newaxis]), most, np.zeros(0, np.int64), None)
        assert sorted(found.positions.tolist()) == sorted(plain)
        for node, product in zip(found.positions.tolist(), found.products.tolist(), strict=True):
            assert product == pytest.approx(float(plain[node] @ query), abs=1e-6)


@few
@given(SEEDS, st.booleans())
def test_lists_that_grow_and_shrink_are_lists(seed: int, merges: bool) -> None:
    draw, nodes, stored = np.random.default_rng(seed), 12, 8
    first = [sorted(draw.choice(nodes, 2, replace=False).tolist()) for _ in range(stored)]
    indptr = np.arange(0, 2 * stored + 1, 2)
    entries = np.zeros(1 << 14, np.int32)
    entries[: 2 * stored] = np.concatenate(first)
    lists = living_lists(indptr, entries, np.zeros((nodes, 2), np.int64), np.zeros(nodes, np.int32))
    plain = [*first, *([] for _ in range(nodes - stored))]
    for step in range(14):
        # Long lists leave their places to others, which grow into them.
        adds, many = step % 5 != 4, int(draw.integers(1, 300))
        changes = np.stack((draw.integers(0, nodes, many), draw.integers(0, 40, many)), axis=1)
        changed = lists.change(changes, np.full(many, (MERGED if merges else ADDED) if adds else REMOVED, np.int8))
        for (reader, sender), is_changed in zip(changes.tolist(), changed.tolist(), strict=True):
            is_there = sender in plain[reader]
            assert is_changed == (not (is_there and merges) if adds else is_there)
            if is_changed:
                plain[reader] = sorted([*plain[reader], sender])
                if not adds:
                    plain[reader].remove(sender)
                    plain[reader].remove(sender)
        assert lists.of(np.arange(nodes)).tolist() == [one for listed in plain for one in listed]
    assert max(map(len, plain)) > 4 * 4 or merges, "lists have moved twice"


@few
@given(SEEDS)
def test_what_was_read_many_times_in_a_round_is_kept_track_of(seed: int) -> None:
    draw, items = np.random.default_rng(seed), 600
    logged, odd = Toggles(items), np.zeros(items, np.bool_)
    for _ in range(6):
        toggled = draw.integers(0, items, int(draw.integers(1, 200)))
        logged.reserve(len(toggled))
        for item in toggled.tolist():
            logged.odd[item] = not logged.odd[item]
            logged.log[logged.count[0]] = item
            logged.count[0] += 1
            odd[item] ^= True
    changes = logged.take(odd)
    assert sorted(changes.admitted.tolist()) == np.flatnonzero(odd).tolist()
    counted = FrequencyPolicy(items, 50)
    counted.begin()
    reads = [draw.integers(0, items, 150).astype(np.int32) for _ in range(5)]
    for part in reads:
        counted.access(part)
    at_once = FrequencyPolicy(items, 50)
    at_once.begin()
    at_once.access(np.concatenate(reads))
    one, other = counted.end_round(), at_once.end_round()
    assert sorted(one.admitted.tolist()) == sorted(other.admitted.tolist())


@few
@given(SEEDS)
def test_scratch_memory_that_has_grown_samples_as_fresh_memory_does(seed: int) -> None:
    draw, nodes = np.random.default_rng(seed), 3000
    graph = Graph(np.arange(0, 20 * nodes + 1, 20), draw.integers(0, nodes, 20 * nodes, dtype=np.int32))
    scratch, distinct = Scratch(), DistinctScratch()
    for count, fanouts in ((3, (2,)), (150, (4, 2)), (70, (3,)), (1500, (7, 3))):
        seeds = draw.integers(0, nodes, count)
        found = sample_neighbours(graph.indptr, graph.indices, seeds, fanouts, 5, scratch, share=True)
        fresh = sample_neighbours(graph.indptr, graph.indices, seeds, fanouts, 5, Scratch(), share=True)
        for name in ("nodes", "starts", "neighbours", "seed_rows"):
            np.testing.assert_array_equal(getattr(found, name), getattr(fresh, name), err_msg=name)
        twice = np.concatenate((seeds, seeds))
        once = find_distinct(twice, distinct)
        assert once is not None
        assert once.seeds[once.places].tolist() == twice.tolist() and len({*once.seeds.tolist()}) == len(once.seeds)


def test_what_changes_touch_is_a_set_however_often_parts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnserve_worker.inference.changed_nodes._MOST_ENTRIES", 100)
    monkeypatch.setattr("gnnserve_worker.inference.written._LOOSE", 100)
    draw, since, written = np.random.default_rng(1), TouchedSince(), WrittenSince()
    listed, renewed = set[int](), set[int]()
    for offset in range(60):
        parts = [np.unique(draw.integers(0, 300, 15)) for _ in range(2)]
        since.note(ChangedNodes(offset, *parts))
        written.note_lists(parts[0])
        listed |= {*parts[0].tolist()}
        renewed |= {*parts[1].tolist()}
    taken = []
    while (part := since.take()) is not None:
        taken.append(part)
    assert len(taken) < 60
    assert {node for part in taken for node in part.listed.tolist()} == listed
    assert {node for part in taken for node in part.renewed.tolist()} == renewed
    assert taken[-1].offset == 59
    assert written.lists.tolist() == sorted(listed)
