"""`make test-examples`: every service and pool of `examples/`, unedited, on a cluster and on this machine.

Not one of the tests that `make test` collects, which has four of them: training all of them twice takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness.client import Cluster, Namespace
from tests.cluster.harness.examples import apply, compare, copied, mirror, served_here

pytestmark = pytest.mark.usefixtures("operator")


@pytest.mark.timeout(3600)
def test_every_example_answers_in_a_cluster_as_on_a_laptop(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    examples = copied(tmp_path)
    with mirror(cluster):
        services = apply(namespace, examples.values())
        with served_here(examples.values(), tmp_path) as here:
            for name, example in examples.items():
                services[name].wait_until_ready(1800)
                compare(example, here[name], services[name])
