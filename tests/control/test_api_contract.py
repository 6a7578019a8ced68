"""The fake API server does what the real one does: the same cases run on both (tests/cluster)."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.support.kubernetes.api_contract import NOWHERE, Api, InProcess, OverHttp, case, controllers_case
from tests.support.kubernetes.fake_api import fake_api
from tests.support.kubernetes.fake_cluster import FakeCluster

CASES = {**case.found, **controllers_case.found}


def fake() -> FakeCluster:
    """Whose history before the test is forgotten, as a server's that was just started."""
    cluster = FakeCluster(collects_garbage=False, protects_claims=True, missing_namespaces={NOWHERE})
    cluster.forget_history()
    return cluster


@pytest.fixture(scope="module")
def over_http() -> Iterator[OverHttp]:
    with fake_api(fake()) as api, httpx.Client(base_url=api.url, trust_env=False) as client:
        yield OverHttp(client, InProcess(api.cluster))


@pytest.mark.parametrize("name", CASES)
def test_in_process(name: str) -> None:
    CASES[name](Api(InProcess(fake()), "contract"))


@pytest.mark.parametrize("name", CASES)
def test_over_http(name: str, over_http: OverHttp) -> None:
    CASES[name](Api(over_http, name.replace("_", "-")[:60].strip("-")))
