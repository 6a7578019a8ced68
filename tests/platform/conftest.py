"""`make test-platform`: scenes of a platform team on a real Kubernetes, too long for `make test`.

Their fixtures are those of tests/cluster: the same node, images and installation of the operator. They run one after
another, since some of them fill the node or change what the whole cluster has.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness.fixtures import cluster, mark, namespace, operator, pytest_runtest_makereport

__all__ = ["cluster", "namespace", "operator", "pytest_collection_modifyitems", "pytest_runtest_makereport"]

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, HERE)
