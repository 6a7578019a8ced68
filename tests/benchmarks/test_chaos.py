"""Chaos: the same seed draws the same events, and only what was in flight at a killed worker may fail. Clients of the
graph that changes know which process answers them."""

from __future__ import annotations

import os
import subprocess
from itertools import islice

import pytest
from benchmarks.chaos.chaos_events import (
    COMPONENTS,
    EDITS,
    GAP_S,
    LIVING,
    OF_DATABASE,
    OF_WORKERS,
    PAUSES,
    SERVICES,
    TABLE,
    Kill,
    Kind,
    draw,
    was_in_flight,
)
from benchmarks.chaos.chaos_living import PORT, Finished, WorkerPlaces, figures_of, living_spec
from benchmarks.chaos.chaos_load import Cause, Failure, answering_address
from tests.changes.campaign.checker import Kind as Broken
from tests.changes.campaign.checker import Violation
from tests.changes.campaign.graph import FirstGraph
from tests.changes.campaign.history import Absent, Acknowledged, Attempt, History, Read, Unanswered
from tests.cluster.harness.containers import ContainerProcess
from tests.cluster.harness.processes import identity

from gnnserve_api.spec.service import GNNService

KILL = Kill("alpha", "alpha-worker-1", "10.244.0.7", Kind.WORKER_KILLED, at_s=100.0, gone_at_s=100.02)


def failure(
    cause: Cause = Cause.LOST, sent_s: float = 99.9, failed_s: float = 100.03, pod: str = "10.244.0.7"
) -> Failure:
    return Failure("alpha", cause, "", sent_s, failed_s, pod)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        pytest.param(failure(), True, id="sent before, lost after"),
        pytest.param(failure(Cause.SILENT, failed_s=115), True, id="never answered"),
        pytest.param(failure(sent_s=100.05), True, id="sent before the client could know"),
        pytest.param(failure(sent_s=101), False, id="sent long after"),
        pytest.param(failure(sent_s=99, failed_s=99.5), False, id="lost before"),
        pytest.param(failure(pod="10.244.0.8"), False, id="at the other worker"),
        pytest.param(failure(pod=""), False, id="nobody knows where"),
        pytest.param(failure(Cause.STATUS), False, id="answered, with an error"),
        pytest.param(failure(Cause.UNCONNECTED), False, id="never sent"),
    ],
)
def test_only_what_was_in_flight_at_a_killed_worker_may_fail(failed: Failure, expected: bool) -> None:
    assert was_in_flight(failed, [KILL]) is expected


def test_a_seed_draws_the_same_events_and_every_kind_in_the_end() -> None:
    first, again, other = (list(islice(draw(seed), 2000)) for seed in (7, 7, 8))
    assert first == again != other
    assert {event.kind for event in first} == set(Kind) == set(TABLE)
    assert all(GAP_S[0] <= event.after_s <= GAP_S[1] for event in first)
    assert all(event.away_s > 0 for event in first if event.kind in PAUSES or event.kind in COMPONENTS)
    assert not OF_WORKERS & EDITS
    hit = {event.service for event in first if event.kind in OF_WORKERS}
    assert hit == {*SERVICES, LIVING}
    assert LIVING not in {event.service for event in first if event.kind in EDITS}
    assert all(event.away_s > 0 for event in first if event.kind in OF_DATABASE)


def test_the_pod_behind_a_connection_is_who_answers_it() -> None:
    entry = (
        "tcp      6 9 CLOSE src=10.244.0.1 dst=10.96.7.8 sport=51234 dport=80 "
        "src=10.244.0.7 dst=10.244.0.1 sport=8080 dport=51234 [ASSURED] mark=0 use=1"
    )
    assert answering_address(entry) == "10.244.0.7"
    assert answering_address("") == ""


def test_the_graph_that_changes_is_declared_as_a_manifest_may_say() -> None:
    about = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": LIVING}}
    spec = GNNService.model_validate({**about, "spec": living_spec()}).spec
    assert spec.updates is not None
    assert spec.updates.log.postgres is not None


def test_a_place_is_taken_by_another_process_when_its_own_has_ended() -> None:
    first = subprocess.Popen(["sleep", "60"])
    processes = [ContainerProcess(first.pid, identity(first.pid), "gamma-worker-1", "10.244.0.7")]
    places = WorkerPlaces(lambda: processes)
    one, other = places.all
    assert (one.place, other.place) == (None, None)
    places.look()
    places.look()
    taken = one.place
    assert taken is not None
    assert (taken.host, taken.port, other.place) == ("10.244.0.7", PORT, None)
    assert one.place is taken
    first.kill()
    first.wait()
    assert one.place is None
    # Another container of the same pod, and one whose address is not known yet.
    here = identity(os.getpid())
    processes[:] = [
        ContainerProcess(1, "1 unknown", "gamma-worker-2", ""),
        ContainerProcess(os.getpid(), here, "gamma-worker-1", "10.244.0.7"),
    ]
    places.look()
    assert one.place is not None
    assert one.place.process != taken.process
    assert other.place is None


def test_what_clients_of_the_graph_that_changes_did_is_counted() -> None:
    attempts = (
        Attempt("a", 0, "one", 1, 2, Unanswered("lost")),
        Attempt("a", 0, "two", 2, 3, Acknowledged(1, True)),
        Attempt("a", 0, "two", 3, 4, Acknowledged(1, True)),
    )
    reads = (Read("three", 1, 0, 1, 2, Absent()), Read("three", 1, 0, 1, 2, Unanswered("503")))
    stuck = (Violation(Broken.STUCK, "no batch is acknowledged any more"),) * 12
    found = figures_of(Finished(History(FirstGraph({}, ()), {}, attempts, reads), stuck, compacted=7))
    assert (found["batches_acknowledged"], found["attempts_without_an_answer"], found["reads"]) == (1, 1, 1)
    assert (found["processes"], found["records"], found["records_compacted_away"]) == (3, 0, 0)
    assert found["compacted_to"] == 7
    # The log, which is empty, lacks what was acknowledged.
    assert found["violations_by_kind"] == {"STUCK": 12, "LOST": 2}
    assert found["violations"][0] == {"service": LIVING, "cause": Broken.STUCK.value, "detail": stuck[0].words}
    assert len(found["violations"]) == 10
