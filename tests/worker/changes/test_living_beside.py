"""Predictions beside changes: they see all of a group of batches or nothing of it, however it is applied."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
)

import gnnserve_worker.inference.living as living_module
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch
from gnnserve_worker.inference.drafting import ChangeGroup
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision

NODES = 40
CLOSE = 1e-5
UNDIRECTED, DIRECTED = EdgeRules(Direction.UNDIRECTED), EdgeRules(Direction.DIRECTED)
BOTH = pytest.mark.parametrize("rules", [UNDIRECTED, DIRECTED], ids=["both ways", "directed"])

Scores = dict[str, np.ndarray]


def opened(
    root: Path, plain: PlainGraph, architecture: str = "GraphSAGE", variants: dict[str, object] = VARIANTS
) -> tuple[LivingRevision, ServedRevision]:
    # Another repository for each.
    root = root / f"{len([*root.iterdir()])}"
    loaded = generated(root, "living", architecture, plain.built(), variants=variants, max_delta_bytes=ROOM_BYTES)
    living = LivingRevision(loaded, ROOM_BYTES)
    return living, served_revision(loaded, living)


def scores_of(served: ServedRevision) -> Scores:
    nodes = np.arange(NODES)
    return {each.name: served.compute.infer(each.name, nodes, 0).scores for each in served.manifest.variants}


def groups_of(plain: PlainGraph, seed: int, count: int, size: int) -> list[list[ChangeBatch]]:
    draw, fresh = np.random.default_rng(seed), [*range(10_000, 9_000, -1)]
    return [[plain.random_batch(draw, 6, fresh) for _ in range(size)] for _ in range(count)]


def apply_all(living: LivingRevision, groups: list[list[ChangeBatch]]) -> None:
    for group in groups:
        assert all(isinstance(said, BatchEffect) for said in living.apply(living.offset + 1, group))


@pytest.mark.campaign
@BOTH
@pytest.mark.parametrize("architecture", MODELS)
def test_nothing_of_a_group_is_seen_before_all_of_it(
    tmp_path: Path, architecture: str, rules: EdgeRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PlainGraph(NODES, 41, rules)
    living, served = opened(tmp_path, plain, architecture)
    alone, served_alone = opened(tmp_path, plain, architecture)
    published: list[tuple[Scores, int, int]] = []
    looks = 0

    def remember() -> None:
        published.append((scores_of(served), living.nodes, living.offset))

    def look_after(work: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal looks
            done, looks = work(*arguments, **named), looks + 1
            scores, nodes, offset = published[-1]
            assert (living.nodes, served.graph.count(), living.offset) == (nodes, nodes, offset)
            for name, now in scores_of(served).items():
                np.testing.assert_array_equal(now, scores[name], err_msg=name)
            return done

        return call

    def publish(*arguments: ChangeGroup) -> None:
        original(*arguments)
        remember()

    def make_all(*arguments: Any, **named: Any) -> object:
        return iter([*make_stored(*arguments, **named)])

    original, drafting, make_stored = living._publish, living.drafting, living.drafting.make_stored
    monkeypatch.setattr(drafting, "apply", look_after(drafting.apply))
    monkeypatch.setattr(drafting, "make_stored", look_after(make_all))
    monkeypatch.setattr(living, "_publish", publish)
    remember()
    groups = groups_of(plain, 42, 4, 3)
    for number, group in enumerate(groups, start=1):
        before = published[-1][0]
        apply_all(living, [group])
        after, _, offset = published[-1]
        assert offset == 3 * number
        assert any(not np.array_equal(after[name], before[name]) for name in after)
        # As if no prediction had been computed: rows are made as they are written.
        alone._inferences = alone.inferences
        apply_all(alone, [group])
        for name, scores in scores_of(served_alone).items():
            few = 3e-2 if name.endswith("-int8") else CLOSE
            np.testing.assert_allclose(after[name], scores, atol=few, rtol=few, err_msg=name)
    assert looks >= 2 * len(groups)  # batches that are applied as one, then rows of stored layers


@pytest.mark.campaign
@BOTH
@pytest.mark.parametrize("variants", [VARIANTS, DEEPER], ids=["one layer", "two layers"])
def test_whoever_reads_meanwhile_sees_the_graph_of_an_offset(
    tmp_path: Path, rules: EdgeRules, variants: dict[str, object]
) -> None:
    plain = PlainGraph(NODES, 43, rules)
    living, served = opened(tmp_path, plain, variants=variants)
    first, served_first = opened(tmp_path, plain, variants=variants)
    groups = groups_of(plain, 44, 40, 2)
    states = [scores_of(served_first)]
    for batch in (batch for group in groups for batch in group):
        apply_all(first, [[batch]])
        states.append(scores_of(served_first))

    seen: list[tuple[str, np.ndarray, list[Scores]]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for name in states[0]:
                offset = living.offset
                scores = served.compute.infer(name, np.arange(NODES), 0).scores
                seen.append((name, scores, states[offset : living.offset + 1]))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        apply_all(living, groups)
    finally:
        done.set()
        reader.join()
    assert seen
    for name, scores, within in seen:
        few = 3e-2 if name.endswith("-int8") else CLOSE
        assert any(np.allclose(scores, state[name], atol=few, rtol=few) for state in within), name


@BOTH
@pytest.mark.parametrize("variants", [VARIANTS, DEEPER], ids=["one layer", "two layers"])
def test_drafts_and_what_predictions_read_are_equal_when_all_is_published(
    tmp_path: Path, rules: EdgeRules, variants: dict[str, object]
) -> None:
    plain = PlainGraph(NODES, 45, rules)
    living, served = opened(tmp_path, plain, variants=variants)
    layers = [one.maker.table for layer in living.drafting.layers for one in layer]
    for number, group in enumerate(groups_of(plain, 46, 12, 3)):
        if number % 2:
            scores_of(served)
        apply_all(living, [group])
        draft, graph = living.drafting.graph, living.graph
        assert (draft.ids.count, draft.ids.gone) == (graph.ids.count, graph.ids.gone)
        everyone = np.arange(graph.ids.count)
        np.testing.assert_array_equal(draft.lists.entries_of(everyone), graph.lists.entries_of(everyone))
        np.testing.assert_array_equal(draft.lists.bounds[everyone], graph.lists.bounds[everyone])
        assert draft.lists.used_entries == graph.lists.used_entries
        changes = living.loaded.changes
        assert changes is not None
        by_id = {id(table): table for table in (*(maker.table for maker in changes.makers), *layers)}
        assert changes.draft.tables
        for key, table in changes.draft.tables.items():
            np.testing.assert_array_equal(table.rows.values[everyone], by_id[key].rows.values[everyone])
            np.testing.assert_array_equal(table.own.values[everyone], by_id[key].own.values[everyone])


def test_columns_stay_as_a_batch_of_the_same_group_has_made_them(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 47, UNDIRECTED)
    together, _ = opened(tmp_path, plain)
    apart, _ = opened(tmp_path, plain)
    whole, new, part = (np.full((1, FEATURES), value, np.float32) for value in (3.0, 5.0, 7.0))
    part[0, 1:] = np.nan
    batches = [
        batch_of(whole, overrides=[3]), batch_of(new, [900]), batch_of(part, overrides=[3]),
        batch_of(part, overrides=[900]),
    ]  # fmt: skip
    apply_all(together, [batches])
    apply_all(apart, [[batch] for batch in batches])
    for living in (together, apart):
        assert living.offset == 4
        features_of = living.drafting.features_of
        assert features_of is not None
        found = features_of(living.graph.ids.find(ids_of([3, 900])))
        np.testing.assert_array_equal(
            found, np.concatenate((np.where(np.isnan(part), whole, part), [[7.0, *[5.0] * 11]]))
        )


def test_rows_of_many_nodes_are_made_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made ahead takes memory, which is bounded."""
    plain = PlainGraph(NODES, 48, UNDIRECTED)
    living, served = opened(tmp_path, plain)
    monkeypatch.setattr(living_module, "_MOST_MADE", 1)
    scores_of(served)
    apply_all(living, groups_of(plain, 49, 2, 2))
    other, served_other = opened(tmp_path, PlainGraph(NODES, 48, UNDIRECTED))
    apply_all(other, groups_of(PlainGraph(NODES, 48, UNDIRECTED), 49, 2, 2))
    for name, scores in scores_of(served_other).items():
        np.testing.assert_allclose(scores_of(served)[name], scores, atol=CLOSE, rtol=CLOSE, err_msg=name)
