"""The fleet's count of requests, from an audit log as the API server writes it."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fleet_process import Audit, writes_in


def line(verb: str, resource: str, stage: str = "ResponseComplete") -> str:
    uri = f"/api/v1/{resource}"
    return json.dumps({"verb": verb, "stage": stage, "requestURI": uri, "objectRef": {"resource": resource}}) + "\n"


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
