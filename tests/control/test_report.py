"""The status is written when it changes, and events are told once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.operator.operator import KEY, gnnservice, live

from gnnserve_operator.errors import ConflictError, GoneError, RefusedError, RetryLaterError
from gnnserve_operator.plan import EventNote
from gnnserve_operator.report import Reporter, build_event

Manifest = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
READY = EventNote("Normal", "Ready", "1 worker answers.")


class RecordingCluster:
    def __init__(self) -> None:
        self.statuses: list[Manifest] = []
        self.events: list[Manifest] = []
        self.refuses_events = False
        self.event_error: Exception | None = None
        self.status_error: Exception | None = None

    async def apply_status(self, manifest: Manifest) -> Manifest:
        if self.status_error is not None:
            raise self.status_error
        self.statuses.append(manifest)
        return live(manifest, 10 + len(self.statuses))

    async def create_event(self, event: Manifest) -> None:
        if self.refuses_events:
            raise RefusedError("create Event", "no events here", 403)
        if self.event_error is not None:
            raise self.event_error
        self.events.append(event)


def report(
    reporter: Reporter, service: Manifest, status: Manifest | None, *events: EventNote, now: datetime = NOW
) -> float | None:
    return asyncio.run(reporter.report(KEY, service, status, events, now))


def reporting() -> tuple[Reporter, RecordingCluster]:
    cluster = RecordingCluster()
    return Reporter(cluster), cluster  # type: ignore[arg-type]


def test_a_status_is_written_with_the_uid_and_the_version_it_is_about() -> None:
    reporter, cluster = reporting()
    report(reporter, live(gnnservice()), {"revision": "r1"})
    (written,) = cluster.statuses
    assert written["metadata"] == {
        "name": "digits", "namespace": "default", "uid": "uid-of-digits", "resourceVersion": "1"
    }  # fmt: skip
    assert written["status"] == {"revision": "r1"}


def test_a_status_that_says_the_same_is_not_written() -> None:
    reporter, cluster = reporting()
    report(reporter, {**live(gnnservice()), "status": {"revision": "r1"}}, {"revision": "r1", "variants": []})
    report(reporter, live(gnnservice()), None)
    assert cluster.statuses == []


def test_a_watch_that_lags_behind_does_not_bring_the_old_status_back() -> None:
    reporter, cluster = reporting()
    service = live(gnnservice(), 1)
    report(reporter, service, {"revision": "r1"})
    assert reporter.status_of(KEY, service) == {"revision": "r1"}
    report(reporter, service, {"revision": "r1"})
    assert len(cluster.statuses) == 1
    newer = {**live(gnnservice(), 11), "status": {"revision": "by somebody else"}}
    assert reporter.status_of(KEY, newer) == {"revision": "by somebody else"}
    reporter.forget(KEY)
    assert reporter.status_of(KEY, service) == {}


def test_a_status_follows_our_own_one_that_the_watch_has_not_told_of_yet() -> None:
    reporter, cluster = reporting()
    service = live(gnnservice(), 1)
    for revision in ("r1", "r2", "r3"):
        report(reporter, service, {"revision": revision})
    assert [written["metadata"]["resourceVersion"] for written in cluster.statuses] == ["1", "11", "12"]
    told_of_the_second = {**live(gnnservice(), 12), "status": {"revision": "r2"}}
    assert reporter.status_of(KEY, told_of_the_second) == {"revision": "r3"}


def told_status(**statuses: str) -> Manifest:
    return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}


def test_what_was_known_last_is_remembered_of_what_was_written_for_as_long_as_the_service_lives() -> None:
    reporter, cluster = reporting()
    service = {**live(gnnservice()), "status": told_status(Available="True", MetricsAvailable="False", Ready="True")}
    known = {"Available": "True", "MetricsAvailable": "False"}
    assert reporter.note_known(KEY, service) == known
    cluster.status_error = RetryLaterError("away")
    with pytest.raises(RetryLaterError):
        report(reporter, service, told_status(Available="False"))
    assert reporter.note_known(KEY, service) == known, "the events of that status are derived again"
    service["status"] = told_status(Available="Unknown", MetricsAvailable="Unknown")
    assert reporter.note_known(KEY, service) == known
    service["status"] = told_status(Available="False")
    assert reporter.note_known(KEY, service) == known | {"Available": "False"}
    service["metadata"]["uid"] = "of another"
    service["status"] = told_status(Available="Unknown")
    assert reporter.note_known(KEY, service) == {}


def test_a_service_that_is_gone_by_now_needs_no_status_and_no_event() -> None:
    reporter, cluster = reporting()
    cluster.status_error = GoneError("not found")
    report(reporter, live(gnnservice()), {"revision": "r1"}, READY)
    assert cluster.events == []


def test_a_service_that_changed_since_it_was_judged_is_judged_again_and_nothing_is_told() -> None:
    reporter, cluster = reporting()
    cluster.status_error = ConflictError("the object has been modified")
    with pytest.raises(ConflictError):
        report(reporter, live(gnnservice()), {"revision": "r1"}, READY)
    assert cluster.events == []
    assert reporter.status_of(KEY, live(gnnservice())) == {}


def test_an_event_names_its_object_and_who_says_it() -> None:
    event = build_event(live(gnnservice()), READY, "11", NOW)
    assert event["involvedObject"]["uid"] == "uid-of-digits"
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "Ready", "1 worker answers.")
    assert event["reportingComponent"] == "gnnserve-operator"
    assert event["firstTimestamp"] == "2026-01-02T03:04:05Z"
    assert len(event["metadata"]["name"]) < 64


def test_the_same_event_has_the_same_name_and_a_later_one_another() -> None:
    service = live(gnnservice())
    name = build_event(service, READY, "11", NOW)["metadata"]["name"]
    assert build_event(service, READY, "11", NOW)["metadata"]["name"] == name
    assert build_event(service, READY, "12", NOW)["metadata"]["name"] != name


def test_a_long_message_is_cut_to_what_an_event_may_hold() -> None:
    event = build_event(live(gnnservice()), EventNote("Warning", "Failed", "x" * 5000), "11", NOW)
    assert len(event["message"]) == 1024


def test_an_event_that_cannot_be_posted_costs_only_itself() -> None:
    reporter, cluster = reporting()
    cluster.refuses_events = True
    report(reporter, live(gnnservice()), {"revision": "r1"}, READY)
    assert len(cluster.statuses) == 1


def test_the_events_of_a_write_without_an_answer_are_told_when_the_watch_tells_of_it() -> None:
    reporter, cluster = reporting()
    cluster.status_error = RetryLaterError("no answer")
    with pytest.raises(RetryLaterError):
        report(reporter, live(gnnservice(), 1), {"revision": "r1"}, READY)
    assert cluster.events == []
    written = {**live(gnnservice(), 2), "status": {"revision": "r1"}}
    later = NOW + timedelta(seconds=30)
    assert report(reporter, written, None, now=later) is None
    assert [(event["reason"], event["firstTimestamp"]) for event in cluster.events] == [
        ("Ready", "2026-01-02T03:04:05Z")
    ]
    report(reporter, written, None, now=later)
    assert len(cluster.events) == 1


def test_the_events_of_a_write_that_was_not_carried_out_are_those_of_the_next_one_only() -> None:
    reporter, cluster = reporting()
    cluster.status_error = RetryLaterError("no answer")
    with pytest.raises(RetryLaterError):
        report(reporter, live(gnnservice(), 1), {"revision": "r1"}, READY)
    cluster.status_error = None
    report(reporter, live(gnnservice(), 1), {"revision": "r1"}, READY)
    report(reporter, {**live(gnnservice(), 11), "status": {"revision": "r1"}}, None)
    assert len(cluster.events) == 1


def test_what_is_left_to_tell_is_not_told_of_a_service_that_was_made_anew() -> None:
    reporter, cluster = reporting()
    cluster.status_error = RetryLaterError("no answer")
    with pytest.raises(RetryLaterError):
        report(reporter, live(gnnservice(), 1), {"revision": "r1"}, READY)
    report(reporter, {**live(gnnservice(), 2, uid="another"), "status": {"revision": "r1"}}, None)
    assert cluster.events == []


@pytest.mark.parametrize(
    ("error", "again_s"),
    [
        pytest.param(RetryLaterError("busy", 7), 7, id="when it was asked for"),
        pytest.param(ConflictError("the quota is being counted"), 5, id="soon"),
    ],
)
def test_an_event_that_cannot_be_posted_now_is_posted_later_under_the_same_name(
    error: Exception, again_s: float
) -> None:
    reporter, cluster = reporting()
    cluster.event_error = error
    service = live(gnnservice())
    assert report(reporter, service, {"revision": "r1"}, READY) == again_s
    cluster.event_error = None
    assert report(reporter, {**live(gnnservice(), 99), "status": {"revision": "r1"}}, None) is None
    assert cluster.events == [build_event(service, READY, "11", NOW)]


def test_an_event_that_can_never_be_posted_is_given_up() -> None:
    reporter, cluster = reporting()
    cluster.event_error = RetryLaterError("busy")
    service = live(gnnservice())
    assert report(reporter, service, {"revision": "r1"}, READY) is not None
    assert report(reporter, service, {"revision": "r1"}, now=NOW + timedelta(minutes=11)) is None
