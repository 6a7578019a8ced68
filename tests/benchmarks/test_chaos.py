"""Chaos: the same seed draws the same events, and only what was in flight at a killed worker may fail."""

from __future__ import annotations

from itertools import islice

import pytest
from benchmarks.chaos_events import COMPONENTS, EDITS, GAP_S, OF_WORKERS, PAUSES, TABLE, Kill, Kind, draw, was_in_flight
from benchmarks.chaos_load import Cause, Failure, answering_address

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


def test_the_pod_behind_a_connection_is_who_answers_it() -> None:
    entry = (
        "tcp      6 9 CLOSE src=10.244.0.1 dst=10.96.7.8 sport=51234 dport=80 "
        "src=10.244.0.7 dst=10.244.0.1 sport=8080 dport=51234 [ASSURED] mark=0 use=1"
    )
    assert answering_address(entry) == "10.244.0.7"
    assert answering_address("") == ""
