"""A cluster of the user's is not disturbed: tests refuse one that has an operator, and leave its release alone."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.cluster.harness import installation
from tests.cluster.harness.client import Cluster
from tests.cluster.harness.commands import HarnessError


class ClusterWithOperators:
    def __init__(self, *namespaces: str) -> None:
        self._namespaces = namespaces

    def get(self, *_: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "gnnserve"}
        found = [
            {"metadata": {"namespace": namespace, "name": "gnnserve", "labels": labels}}
            for namespace in self._namespaces
        ]
        return {"items": found}


def test_a_cluster_that_has_an_operator_is_refused() -> None:
    with pytest.raises(HarnessError, match=r"has a gnnserve operator already \(gnnserve-system/gnnserve\)"):
        installation.refuse_another_operator(cast(Cluster, ClusterWithOperators("gnnserve-system")))


def test_what_a_killed_session_of_ours_left_is_used() -> None:
    installation.refuse_another_operator(cast(Cluster, ClusterWithOperators(installation.SYSTEM_NAMESPACE)))


def test_the_release_is_not_the_one_that_users_are_told_to_install() -> None:
    assert (installation.RELEASE, installation.SYSTEM_NAMESPACE) != ("gnnserve", "gnnserve-system")
