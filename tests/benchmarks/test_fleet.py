"""The fleet's count of requests, from an audit log as the API server writes it, and its verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.clusters.fleet import verdicts_of
from benchmarks.clusters.fleet_process import Audit, writes_in
from benchmarks.clusters.fleet_rest import STILL_S, ResyncFinder, find_changes
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
    reads = {"reads about services at rest": "3 that are suspended before the first revision"}
    assert missed_of(found) == reads
    quoted = "a quota's refusal of a Job's pod, quoted by its service after, at most, s"
    assert missed_of(found | {"quota": {"told_after_s": [1.2, 3.5, 2.0]}}) == reads | {quoted: 3.5}
    assert missed_of(found | {"quota": {"told_after_s": [1.2, 3.0]}}) == reads


def missed_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: verdict["measured"] for name, verdict in verdicts_of(found).items() if not verdict["passed"]}


def resyncs_in(*counts: tuple[float, int], services: int = 10) -> list[tuple[float, float]]:
    """When each resync was found to have ended, and when it began."""
    finder = ResyncFinder(services)
    found = ((at_s, finder.note(at_s, count)) for at_s, count in counts)
    return [(at_s, began_s) for at_s, began_s in found if began_s is not None]


def test_a_resync_is_found_when_it_has_ended_and_not_one_that_had_begun_before() -> None:
    amid = [(0.0, 104), (0.5, 112), (1.0, 120), (1.5, 120), (2.0, 120), (2.5, 120)]
    whole = [(30.0, 120), (30.5, 126), (31.0, 133), (31.5, 140), (32.0, 140), (32.4, 140), (32.5, 140), (33.0, 140)]
    assert STILL_S == 1.0
    assert resyncs_in(*amid, *whole) == [(32.5, 30.0)]
    assert resyncs_in(*amid) == [], "its begin was not seen"


def test_a_few_reconciles_are_no_resync() -> None:
    rest = [(0.0, 100), (1.0, 100), (2.0, 100)]
    assert resyncs_in(*rest, (3.0, 103), (4.0, 103), (5.0, 103)) == []
    assert resyncs_in(*rest, (3.0, 103), (3.5, 110), (4.5, 110)) == [(4.5, 2.0)]


def test_what_was_written_at_rest_is_told_by_the_conditions_that_turned(tmp_path: Path) -> None:
    def condition(status: str, reason: str, kind: str = "Ready") -> dict[str, str]:
        return {"type": kind, "status": status, "reason": reason, "message": "as it is"}

    def written(name: str, *conditions: dict[str, str]) -> str:
        event = json.loads(line("patch", "gnnservices", name=name))
        return json.dumps({**event, "requestObject": {"status": {"conditions": conditions}}}) + "\n"

    available = condition("True", "Answering", "Available")
    late, ready = condition("False", "RevisionSwitching"), condition("True", "Ready")
    audit, log = Audit(tmp_path), tmp_path / "audit.log"
    log.write_text(
        line("patch", "services", name="running-0001")
        + written("running-0001", late, available)
        + written("running-0001", ready, available)
    )
    before = {"running-0001": {"Ready": ready, "Available": available}}

    assert find_changes(before, audit.statuses(0)) == [
        {"service": "running-0001", "conditions": {"Ready": "False RevisionSwitching: as it is"}},
        {"service": "running-0001", "conditions": {"Ready": "True Ready: as it is"}},
    ]
