"""Tests that did not run for want of public graphs are counted at the end of a run."""

from __future__ import annotations

from tests.support.missing_data import REASON, sentence


def test_skipped_tests_on_public_graphs_are_counted_and_the_cure_is_named() -> None:
    words = sentence([f"('test_real_graphs.py', 3, 'Skipped: {REASON}')"] * 2 + ["Skipped: torch sees no GPU"])
    assert words is not None
    assert words.startswith("2 tests on public graphs did not run")
    assert "GNNSERVE_DATASETS" in words


def test_nothing_is_said_where_all_graphs_are_there() -> None:
    assert sentence(["Skipped: torch sees no GPU"]) is None
