"""Tests on a real Kubernetes that are part of `make test`: their fixtures and their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness.fixtures import cluster, mark, namespace, operator, pytest_runtest_makereport

__all__ = ["cluster", "namespace", "operator", "pytest_collection_modifyitems", "pytest_runtest_makereport"]

HERE = Path(__file__).parent

# Files in the order in which processes should take them: the long scenes first, so that no process is left with one at
# the end; and last the one that waits until it has the operator alone.
LONG = (
    "test_service",
    "test_security",
    "test_problems",
    "test_queue",
    "test_gpu",
    "test_fleet",
    "test_harness",
    "test_api_contract",
)
LAST = ("test_operator",)


def rank(item: pytest.Item) -> int:
    if item.path.stem in LAST:
        return len(LONG) + 1
    return LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [position for position, item in enumerate(items) if HERE in item.path.parents]
    for position, item in zip(ours, sorted((items[position] for position in ours), key=rank), strict=True):
        items[position] = item
    mark(items, HERE)
