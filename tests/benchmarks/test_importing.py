"""The benchmark of importing compares two ways to the same graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.starts.importing import FORMATS, IDS, WARM_UP, by_gnnserve, by_hand, made_up_tables


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("ids", IDS)
def test_both_ways_lead_to_as_many_edges(tmp_path: Path, kind: str, ids: str) -> None:
    tables = made_up_tables(tmp_path, WARM_UP, kind, ids)

    assert by_gnnserve(tables, kind) == by_hand(tables, kind) > WARM_UP.edges
