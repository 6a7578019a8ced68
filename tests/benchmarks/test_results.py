"""Committed figures: real runs, with what is needed to judge them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


RESULTS = _git("ls-tree", "--name-only", "HEAD", "benchmarks/results/").split()


@pytest.mark.parametrize("path", RESULTS)
def test_a_committed_result_is_a_full_run_and_says_where_and_when(path: str) -> None:
    result = json.loads(_git("show", f"HEAD:{path}"))
    assert "quick" not in result
    assert {"benchmark", "date", "commit", "machine", "versions"} <= result.keys()
    assert not result["commit"]["dirty"]
