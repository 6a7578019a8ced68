"""Examples run in a cluster as they are, and answer as on a laptop: links, a graph of several types, and a pool.

All of them: `make test-examples`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness.client import Namespace
from tests.cluster.harness.examples import apply, compare, copied, served_here

pytestmark = pytest.mark.usefixtures("operator")


def test_examples_answer_in_a_cluster_as_on_a_laptop(namespace: Namespace, tmp_path: Path) -> None:
    which = ("shop/shop.yaml", "reviews/reviews.yaml", "pool/digits-fast.yaml", "pool/digits-accurate.yaml")
    examples = copied(tmp_path, *which)
    services = apply(namespace, examples.values())
    with served_here(examples.values(), tmp_path) as here:
        for name, example in examples.items():
            services[name].wait_until_ready()
            compare(example, here[name], services[name])
