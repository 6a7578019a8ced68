"""Columns of the features that requests bring whose means have moved from those of stored nodes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import pytest
from tests.support.serving.serving import FakeWorker, with_overlays

from gnnserve_api.files.repository import SourceColumn
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.serving.accuracy.inputs import InputMeans, input_means
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch

COLUMNS = FeatureColumns(
    4, (SourceColumn("amount", 1, (0.0,)), SourceColumn("place", 2, (0.0, 0.0)), SourceColumn("currency", 1, (0.0,)))
)
STORED = np.random.default_rng(0).normal((40, 0, 5, 1), (10, 1, 2, 0), (1000, 4)).astype(np.float32)


def rows(count: int, *moved: float, seed: int = 1) -> np.ndarray:
    """Like those of stored nodes, but for what is added to each column."""
    drawn = np.random.default_rng(seed).normal((40, 0, 5, 1), (10, 1, 2, 0), (count, 4))
    return (drawn + np.array(moved or (0.0,) * 4)).astype(np.float32)


def brought(*requests: np.ndarray) -> InputMeans:
    means = InputMeans(COLUMNS, STORED)
    for features in requests:
        means.add(features)
    return means


def test_a_column_in_another_unit_is_named_with_both_means() -> None:
    (found,) = brought(*(rows(10, 0, 0, 8, 0, seed=seed) for seed in range(50))).drifted()
    assert (found.column, found.mean, found.expected) == (
        "place[1]",
        pytest.approx(13, abs=0.5),
        pytest.approx(5, abs=0.3),
    )
    assert found.deviations == pytest.approx(4, abs=0.4)


def test_what_moved_most_comes_first_and_a_constant_that_changed_counts() -> None:
    found = brought(*(rows(10, 20, 0, 0, 0.5, seed=seed) for seed in range(50))).drifted()
    assert [each.column for each in found] == ["currency", "amount"]


def test_nothing_is_told_of_features_as_they_were_however_long() -> None:
    means = InputMeans(COLUMNS, STORED)
    for seed in range(1000):
        means.add(rows(5, seed=seed))
        assert means.drifted() == ()


def test_a_hundred_rows_are_needed_and_old_ones_are_forgotten() -> None:
    assert brought(*(rows(9, 500, seed=seed) for seed in range(11))).drifted() == ()
    means = brought(*(rows(10, 50, 0, 0, 0, seed=seed) for seed in range(20)))
    assert [each.column for each in means.drifted()] == ["amount"]
    for seed in range(300):
        means.add(rows(10, seed=seed))
    assert means.drifted() == ()


def test_only_the_first_rows_of_a_request_count() -> None:
    assert brought(rows(10_000, 50, 0, 0, 0)).drifted() == ()


def test_a_revision_that_does_not_keep_features_tells_nothing() -> None:
    arrange = cast("Any", None)
    assert input_means(None, 10) is None
    assert input_means(OverlaySupport(COLUMNS, arrange), 10) is None
    asked: list[np.ndarray] = []

    def features_of(nodes: np.ndarray) -> np.ndarray:
        asked.append(nodes)
        return STORED[: len(nodes)]

    assert input_means(OverlaySupport(COLUMNS, arrange, features_of), 5000) is not None
    assert (len(asked[0]), asked[0][0], asked[0][-1]) == (1000, 0, 4999)


def test_the_watch_reads_stored_features_once_for_a_revision() -> None:
    counts = []

    def features_of(nodes: np.ndarray) -> np.ndarray:
        counts.append(len(nodes))
        return STORED[: len(nodes)]

    support = OverlaySupport(COLUMNS, cast("Any", None), features_of)
    revision, other = (with_overlays(FakeWorker(name=name).revision(), support) for name in ("a-1", "a-2"))
    watch = AccuracyWatch(lambda: None)
    watch.follow(revision, 0)
    for seed in range(30):
        watch.note_inputs(revision, rows(10, 50, 0, 0, 0, seed=seed))
        watch.note_inputs(other, rows(10, 0, 50, 0, 0, seed=seed))  # of a lane that is being emptied
    assert len(counts) == 1
    assert [each.column for each in watch.drifted_inputs()] == ["amount"]
    assert msgspec.json.encode(watch.drifted_inputs())
    watch.follow(other, 0)
    assert watch.drifted_inputs() == ()
