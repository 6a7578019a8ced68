"""The hash table of ids, against a dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph import ids as ids_module
from gnnserve_worker.graph.ids import DuplicateIdError, NodeIds, integer_ids, lay_out, slot_count, string_ids

THOROUGH = settings(max_examples=examples(200), deadline=None, derandomize=True)
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
# Lengths on both sides of eight bytes, which are compared at once, and texts that differ in one byte.
TEXTS = st.text(max_size=4) | st.text("ab", max_size=20) | st.text(min_size=200, max_size=300)


def _read_only(ids: NodeIds) -> NodeIds:
    """As from a memory map."""
    for array in (ids.values, ids.offsets, ids.slots):
        array.setflags(write=False)
    return ids


def _positions(ids: Sequence[Any], wanted: Sequence[Any]) -> list[int]:
    known = {each: position for position, each in enumerate(ids)}
    return [known.get(each, -1) for each in wanted]


@THOROUGH
@given(st.lists(INTEGERS, unique=True, max_size=60), st.lists(INTEGERS, max_size=40), st.booleans())
def test_integers_are_found_where_they_are(given_ids: list[int], others: list[int], mapped: bool) -> None:
    ids = integer_ids(np.array(given_ids, dtype=np.int64))
    ids = _read_only(ids) if mapped else ids
    wanted = others + given_ids

    assert ids.find_integers(np.array(wanted, dtype=np.int64)).tolist() == _positions(given_ids, wanted)
    assert (len(ids), ids.kind) == (len(given_ids), NodeIdKind.INTEGERS)
    assert ids.shown(0, len(ids)) == given_ids


@THOROUGH
@given(st.lists(TEXTS, unique=True, max_size=60), st.lists(TEXTS, max_size=40), st.booleans())
def test_texts_are_found_where_they_are(given_ids: list[str], others: list[str], mapped: bool) -> None:
    ids = string_ids(*lay_out(given_ids))
    ids = _read_only(ids) if mapped else ids
    wanted = others + given_ids

    assert ids.find_texts(wanted).tolist() == _positions(given_ids, wanted)
    assert (len(ids), ids.kind) == (len(given_ids), NodeIdKind.STRINGS)
    assert ids.shown(0, len(ids)) == given_ids


@THOROUGH
@given(st.lists(TEXTS, min_size=1, unique=True, max_size=40), st.data())
def test_texts_are_found_in_memory_that_is_laid_out_as_arrow_does(given_ids: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.lists(st.sampled_from(given_ids) | TEXTS, max_size=50))
    text, offsets = lay_out(["before", *wanted, "behind"])

    found = string_ids(*lay_out(given_ids)).find_strings(text, offsets[1:-1].astype(np.int32))

    assert found.tolist() == _positions(given_ids, wanted)


@THOROUGH
@given(st.lists(INTEGERS, min_size=2, max_size=40))
def test_an_integer_twice_is_refused_with_both_positions(given_ids: list[int]) -> None:
    given_ids.append(given_ids[0])

    with pytest.raises(DuplicateIdError) as raised:
        integer_ids(np.array(given_ids, dtype=np.int64))

    assert given_ids[raised.value.first] == given_ids[raised.value.second]
    assert raised.value.first < raised.value.second


@THOROUGH
@given(st.lists(TEXTS, min_size=2, max_size=40))
def test_a_text_twice_is_refused_with_both_positions(given_ids: list[str]) -> None:
    given_ids.append(given_ids[0])

    with pytest.raises(DuplicateIdError) as raised:
        string_ids(*lay_out(given_ids))

    assert given_ids[raised.value.first] == given_ids[raised.value.second]
    assert raised.value.first < raised.value.second


def test_many_ids_are_found_in_several_threads_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    values = draw.permutation(20_000) * 977 - 5_000_000
    texts = [f"node {value}" for value in values.tolist()]
    wanted = draw.integers(0, 20_000, 50_000)
    integers, strings = integer_ids(values), string_ids(*lay_out(texts))
    monkeypatch.setattr(ids_module, "_SHARE", 777)

    assert integers.find_integers(values[wanted]).tolist() == wanted.tolist()
    assert strings.find_texts([texts[each] for each in wanted.tolist()]).tolist() == wanted.tolist()


def test_no_ids_find_nothing() -> None:
    assert integer_ids(np.empty(0, dtype=np.int64)).find_integers(np.array([0, 1])).tolist() == [-1, -1]
    assert string_ids(*lay_out([])).find_texts(["", "a"]).tolist() == [-1, -1]
    assert string_ids(*lay_out([])).shown(0, 0) == []


@pytest.mark.parametrize(
    ("nodes", "slots"), [(1, 2), (2, 4), (3, 8), (4, 8), (5, 16), (2**20, 2**21), (2**20 + 1, 2**22)]
)
def test_at_most_half_of_the_table_is_taken(nodes: int, slots: int) -> None:
    assert slot_count(nodes) == slots
