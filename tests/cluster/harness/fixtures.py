"""Fixtures of tests on a real Kubernetes, and what a failed one prints.

The conftest of each folder with such tests imports them: the tests of `make test` and the longer scenes of
`make test-platform` run on the same node, with the same images and the same installation of the operator.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest
from tests.cluster.harness.client import Cluster, Namespace
from tests.cluster.harness.diagnosis import diagnose
from tests.cluster.harness.installation import MIRROR, Installation, installed_operator
from tests.cluster.harness.session import running_cluster, why_not
from tests.support.lacks import lacks_root

from gnnserve_api.pods.interface import MIRROR_VARIABLE

TIMEOUT_S = 2400
"""Longest time of one test: the first may wait until Kubernetes is compiled."""


def mark(items: Iterable[pytest.Item], folder: Path) -> None:
    """Mark the folder's tests that use a cluster, and give each of them the time for it."""
    for item in items:
        if folder in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and report.when != "teardown" and isinstance(namespace, Namespace):
        report.sections.append((f"the cluster, namespace {namespace}", diagnose(namespace)))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        lacks_root(reason)
    with running_cluster() as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A fresh one under restricted Pod Security; on our own node with the claim of Python packages."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    made = cluster.create_workspace(f"{words[:40].strip('-')}-{uuid.uuid4().hex[:4]}")
    yield made
    made.delete()


@pytest.fixture(scope="session")
def operator(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Installation]:
    """Installed by helm, once for all tests; a test that changes the installation changes it back.

    Generation measures latencies for twelve seconds, and a dozen Jobs do so beside each other: it is told to be brief,
    and less so where routing goes by what was measured.
    """
    is_measured = any(item.path.stem == "test_routing" for item in request.session.items)
    environment = {"GNNSERVE_PROFILE_SECONDS": "1" if is_measured else "0.1", MIRROR_VARIABLE: MIRROR}
    with installed_operator(cluster, environment) as installation:
        yield installation
