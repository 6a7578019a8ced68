"""Services at rest in every state, on a real API server, cost it nothing; nor do labels and annotations of theirs."""

from __future__ import annotations

import pytest
from benchmarks.clusters.fleet import QUICK, measure_fleet, verdicts_of

pytestmark = pytest.mark.timeout(900)


def test_services_at_rest_and_their_labels_cost_the_api_server_nothing() -> None:
    result = measure_fleet(QUICK)
    # Calls a minute are not told in half a minute: a watch is opened again once in two minutes.
    counted = {name: verdict for name, verdict in verdicts_of(result).items() if not name.startswith("calls ")}
    missed = {name: verdict for name, verdict in counted.items() if not verdict["passed"]}
    assert missed == {}
    assert result["labels"]["changes"] > 0
