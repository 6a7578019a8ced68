"""What changes have written, noted for copies elsewhere."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from tests.support.changes.living import FEATURES, ROOM_BYTES, PlainGraph, batch_of, generated

import gnnserve_worker.inference.written as written_module
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.written import WrittenSince

DIRECTED = EdgeRules(Direction.DIRECTED)


def test_nodes_are_told_once_in_ascending_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_module, "_LOOSE", 4)
    written, draw = WrittenSince(), np.random.default_rng(1)
    assert written.is_empty
    assert written.lists.tolist() == []
    noted: set[int] = set()
    for _ in range(20):
        nodes = draw.integers(0, 9, 3)
        noted.update(nodes.tolist())
        written.note_lists(nodes)
        assert written.lists.tolist() == sorted(noted)
    written.note_lists(np.zeros(0, np.int64))
    assert not written.is_empty
    written.clear()
    assert written.is_empty


def test_tables_are_told_with_the_nodes_whose_rows_changed_and_lists_with_those_that_gained_or_lost(
    tmp_path: Path,
) -> None:
    plain = PlainGraph(30, 1, DIRECTED)
    loaded = generated(tmp_path, "living", "GraphSAGE", plain.built(), max_delta_bytes=ROOM_BYTES)
    living = LivingRevision(loaded, ROOM_BYTES)
    written = living.note_written()
    rows = np.ones((1, FEATURES), np.float32)
    living.apply(1, [batch_of(rows, overrides=[4])])
    readers = {node for node, listed in plain.lists.items() if 4 in listed}
    told = {id(table): nodes.tolist() for table, nodes in written.rows}
    tables = {name: id(variant.table) for name, variant in loaded.variants.items()}
    assert told[tables["x1"]] == told[tables["projected"]] == [4]
    assert told[tables["stored1"]] == sorted({4} | readers)
    assert written.lists.tolist() == []

    written.clear()
    assert [*written.rows] == []
    target = next(node for node in range(30) if node not in plain.lists[9] and node != 9)
    living.apply(2, [batch_of(rows, [500], edges=[(target, 9)])])
    assert written.lists.tolist() == [9, 30]


def test_what_is_referred_to_no_more_is_not_noted(tmp_path: Path) -> None:
    plain = PlainGraph(30, 1, DIRECTED)
    living = LivingRevision(
        generated(tmp_path, "living", "GraphSAGE", plain.built(), max_delta_bytes=ROOM_BYTES), ROOM_BYTES
    )
    written = living.note_written()
    assert len(living._written) == 1
    del written
    gc.collect()
    assert len(living._written) == 0
