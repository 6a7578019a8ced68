"""Ids of batches of changes: an object of each form, which writes, reads, joins and refuses batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.graphs.graphs import random_graph

from gnnserve_api.files.graph_schema import one_type
from gnnserve_worker.graph import change_ids
from gnnserve_worker.graph.change_batch import (
    BatchFormError,
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import FORMS, INTEGERS, TEXTS, TEXTS_WITH_TYPES, BatchForm, IntegerIds
from gnnserve_worker.graph.change_run import join
from gnnserve_worker.graph.found_nodes import FoundNodes, FoundRun
from gnnserve_worker.graph.ids import NodeIds, lay_out, string_ids
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.names_by_id import NamesById
from gnnserve_worker.opening.living_graphs import living_graphs
from gnnserve_worker.serving.http.changes.content import content_of

NODES = 6
EDGES: Mapping[BatchForm, list[list[Any]]] = {
    INTEGERS: [[3, 1], [-7, 2**62]],
    TEXTS: [["a", "né"], ["c/d", "e"]],
    TEXTS_WITH_TYPES: [["user/1", "buys", "item/né"], ["user/2", "knows", "user/3"]],
}
RELATIONS = {
    INTEGERS: ("", "", ""),
    TEXTS: ("", "", ""),
    TEXTS_WITH_TYPES: ("user", "buys", "item"),
}
FORM = pytest.mark.parametrize("form", EDGES, ids=lambda form: form.called)


def batch_of(form: BatchForm, edges: Sequence[Sequence[Any]]) -> ChangeBatch:
    ids = form.lay_out([end for edge in edges for end in edge])
    return ChangeBatch(ChangeCounts(edges=len(edges)), ids, np.zeros((0, 0), np.float32))


def living(stored: NodeIds | None = None) -> LivingGraph:
    graph, grown = random_graph(NODES, 2), one_type(NODES + 3, 0)
    return living_graphs(graph, {"": stored}, grown, 100)[0]


@FORM
def test_a_batch_that_is_read_has_the_form_that_was_written(form: BatchForm) -> None:
    batch = batch_of(form, EDGES[form])
    again = decode_batch(encode_batch(batch))
    assert again.ids.form is form is FORMS[form.number]
    assert content_of(again, lambda _: None).edges == tuple(map(tuple, EDGES[form]))
    assert form.relation_of(EDGES[form][0]) == RELATIONS[form]
    assert encode_batch(again) == encode_batch(batch)


@FORM
def test_batches_of_a_form_are_joined_in_it(form: BatchForm) -> None:
    first, second = EDGES[form]
    run = join([batch_of(form, [second]), batch_of(form, [first, second])])
    assert run.batch.ids.form is form
    assert run.batch.ids.listed() == [*second, *first, *second]


@pytest.mark.parametrize(
    ("stored", "form", "words"),
    [
        (None, TEXTS, "its ids are texts, and those of the graph are integers"),
        (None, TEXTS_WITH_TYPES, "its ids are texts with types, and those of the graph are integers"),
        (string_ids(*lay_out([*"abcdef"])), INTEGERS, "its ids are integers, and those of the graph are texts"),
    ],
)
def test_a_batch_of_another_form_is_refused_by_both_names(stored: NodeIds | None, form: BatchForm, words: str) -> None:
    graph, batch = living(stored), batch_of(form, EDGES[form])
    found = graph.find(batch)
    assert isinstance(found, ChangeRefusal)
    assert (found.problem, found.field, found.message) == (ChangeProblem.INVALID_VALUE, "body", words)
    assert not graph.joins(batch)


def test_integers_have_no_texts() -> None:
    body = bytearray(encode_batch(batch_of(INTEGERS, EDGES[INTEGERS])))
    body[64:72] = (8).to_bytes(8, "little")  # bytes of texts
    with pytest.raises(BatchFormError, match="8 bytes of texts, and ids of form 1 are integers"):
        decode_batch(bytes(body) + bytes(8))


class _HexadecimalForm(type(INTEGERS)):  # type: ignore[misc]
    """A form of this test alone: integers that people read as hexadecimal digits."""

    number, called = 4, "hexadecimal integers"

    def lay_out(self, values: Sequence[int | str]) -> HexadecimalIds:
        return HexadecimalIds(np.array([int(str(value), 16) for value in values]))

    def read(self, *place: Any) -> HexadecimalIds:
        return HexadecimalIds(super().read(*place).integers)


HEXADECIMAL = _HexadecimalForm()


class HexadecimalIds(IntegerIds, frozen=True):
    form = HEXADECIMAL

    def joined(self, parts: Sequence[Any], order: np.ndarray) -> HexadecimalIds:
        return HexadecimalIds(super().joined(parts, order).integers)

    def listed(self) -> Any:
        return [f"{id_:x}" for id_ in super().listed()]

    def shown(self, index: int) -> str:
        return self.listed()[index]


class NamesByHexadecimals(NamesById):
    forms = frozenset({HEXADECIMAL})

    def form(self, graph: LivingGraph) -> BatchForm:
        return HEXADECIMAL


def test_a_further_form_is_one_more_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through the binary form, runs, a graph that changes, its refusals, and JSON."""
    monkeypatch.setitem(change_ids.FORMS, HEXADECIMAL.number, HEXADECIMAL)
    graph = replace(living(), names=NamesByHexadecimals())
    new = ChangeBatch(
        ChangeCounts(new_nodes=1, edges=1), HEXADECIMAL.lay_out(["1f", "1f", "2"]), np.zeros((1, 0), np.float32)
    )
    batches = [decode_batch(encode_batch(one)) for one in (new, batch_of(HEXADECIMAL, [["3", "1f"]]))]
    assert all(graph.joins(batch) for batch in batches)
    run = graph.find_run(join(batches))
    assert isinstance(run, FoundRun)
    assert run.found.edges.tolist() == [[NODES, 2], [3, NODES]]
    graph.apply(run.found)
    found = graph.find(batch_of(HEXADECIMAL, [["1f", "0"]]))
    assert isinstance(found, FoundNodes)
    assert found.edges.tolist() == [[NODES, 0]]
    refusal = graph.find(batch_of(HEXADECIMAL, [["1f", "ff"]]))
    assert isinstance(refusal, ChangeRefusal)
    assert (refusal.field, refusal.message) == ("edges[0][1]", "ff is no node of the graph")
    refusal = graph.find(batch_of(INTEGERS, EDGES[INTEGERS]))
    assert isinstance(refusal, ChangeRefusal)
    assert refusal.message == "its ids are integers, and those of the graph are hexadecimal integers"
    told = msgspec.to_builtins(content_of(batches[1], lambda _: None))
    assert told["edges"] in ((("3", "1f"),), [["3", "1f"]])
