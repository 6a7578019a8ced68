"""The fleet's count of requests, from an audit log as the API server writes it, and its verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.clusters.fleet import verdicts_of
from benchmarks.clusters.fleet_process import Audit, writes_in
from benchmarks.clusters.fleet_states import STATES, state_by_name, state_of


def line(verb: str, resource: str, stage: str = "ResponseComplete", name: str | None = None) -> str:
    uri = f"/api/v1/{resource}"
    about = {"resource": resource, **({} if name is None else {"name": name})}
    return json.dumps({"verb": verb, "stage": stage, "requestURI": uri, "objectRef": about}) + "\n"


def test_watches_count_when_they_begin_and_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    audit, log = Audit(tmp_path), tmp_path / "audit.log"
    log.write_text(line("get", "pods") + '{"verb": "li')
    mark = audit.mark()
    log.write_text(
        line("get", "pods")
        + line("watch", "pods", "ResponseStarted")
        + line("watch", "pods")
        + line("patch", "services")
        + line("update", "leases")
        + '{"verb": "get", "sta'
    )
    counted = audit.since(mark)

    assert counted == {("watch", "pods"): 1, ("patch", "services"): 1, ("update", "leases"): 1}
    assert writes_in(counted) == 1, "a Lease says nothing about services"


def test_reads_of_single_objects_are_counted_by_name(tmp_path: Path) -> None:
    audit, log = Audit(tmp_path), tmp_path / "audit.log"
    log.write_text(
        line("get", "configmaps", name="unborn-0006-routing") * 2
        + line("patch", "configmaps", name="unborn-0006-routing")
        + line("list", "pods")
    )
    assert audit.reads_by_name(0) == {"unborn-0006-routing": 2}


def test_ten_services_in_a_row_are_in_every_state_and_have_it_in_their_names() -> None:
    assert {state_of(number).name for number in range(20, 30)} == {state.name for state in STATES}
    assert [state_by_name(f"{state.name}-0001-worker") for state in STATES] == list(STATES)
    assert state_by_name("gnnserve") is None


def test_a_read_of_a_service_at_rest_is_a_verdict_that_is_missed() -> None:
    def idle(**reads: int) -> dict[str, object]:
        return {"reads_by_state": reads, "requests_per_minute": 65.0, "writes": 0}

    found = {
        "idle": {"100": idle(), "500": idle(unborn=3)}, "labels": {"reconciles": 0}, "restart": {"writes": 0},
        "memory_peak_mb": 150,
    }  # fmt: skip
    reads = {"reads about services at rest, in two resyncs": "3 that are suspended before the first revision"}
    assert missed_of(found) == reads
    quoted = "a quota's refusal of a Job's pod, quoted by its service after, at most, s"
    assert missed_of(found | {"quota": {"told_after_s": [1.2, 3.5, 2.0]}}) == reads | {quoted: 3.5}
    assert missed_of(found | {"quota": {"told_after_s": [1.2, 3.0]}}) == reads


def missed_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: verdict["measured"] for name, verdict in verdicts_of(found).items() if not verdict["passed"]}
