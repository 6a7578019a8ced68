"""One operator of several works: who takes the Lease, when it lets go, and that nobody writes when another may lead."""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.kubernetes.api_server import ApiServer, Request, Response
from tests.support.kubernetes.fake_cluster import FakeCluster, Fault, Refusal
from tests.support.kubernetes.in_process import InProcessTransport
from tests.support.machine.clock import FakeClock, settle
from tests.support.operator.operator import child

from gnnserve_operator.clock import SystemClock
from gnnserve_operator.cluster import REQUEST_LIMIT_S, ApiAnswer, Cluster
from gnnserve_operator.decide.leadership import (
    Lease,
    PodName,
    Sighting,
    StandBy,
    Take,
    Wait,
    decide_candidacy,
    first_term,
    is_still_ours,
    pod_of,
    sight,
    sight_pod,
)
from gnnserve_operator.desired.metadata import TERM_ANNOTATION
from gnnserve_operator.errors import LostLeadershipError, RetryLaterError
from gnnserve_operator.kinds import observed_ref
from gnnserve_operator.leadership import Elector, identity_of
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.settings import LeaderElection
from gnnserve_operator.slow_loop import RoutingMemory

Manifest = dict[str, Any]
NAME = "gnnserve"
ELECTION = LeaderElection(lease_name=NAME, namespace="default")
LEASE_S, DEADLINE_S, RETRY_S = 15, 10, 2
LEASE = Lease("u1", "a", 15, 3, "2026-01-01T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("seen", "now_s", "expected"),
    [
        pytest.param(Sighting(None, 100), 103.9, Wait(), id="there is none, and may have been one a moment ago"),
        pytest.param(Sighting(None, 100), 104, Take(77), id="there is none, and nobody has made it again"),
        pytest.param(Sighting(LEASE, 100), 114.9, StandBy("a"), id="it was renewed less than its duration ago"),
        pytest.param(Sighting(LEASE, 100), 115, Take(4), id="it has not been renewed for its duration"),
        pytest.param(Sighting(Lease("u1", "", 1, 3, ""), 100), 100, Take(4), id="it was released"),
        pytest.param(Sighting(Lease("u1", "us", 15, 3, ""), 100), 100, Take(4), id="the container before us had it"),
        pytest.param(Sighting(Lease("u1", "a", 40, 3, ""), 100), 130, StandBy("a"), id="its duration counts, not ours"),
        pytest.param(Sighting(Lease("u1", "a", 0, 0, ""), 100), 100, Take(1), id="somebody made it with a holder only"),
        pytest.param(
            Sighting(LEASE, 100, 101), 105.9, StandBy("a"), id="its holder's pod is gone, its requests may not"
        ),
        pytest.param(Sighting(LEASE, 100, 101), 106, Take(4), id="its holder's pod is gone, and so are its requests"),
    ],
)
def test_a_lease_is_taken_when_its_holder_has_let_go(
    seen: Sighting, now_s: float, expected: Take | StandBy | Wait
) -> None:
    assert decide_candidacy(seen, "us", now_s, first=77, absent_s=4, request_s=5) == expected


def test_first_terms_grow_with_time_and_fit_a_lease() -> None:
    assert first_term(datetime(2026, 1, 1, 0, 1, tzinfo=UTC)) == first_term(datetime(2026, 1, 1, tzinfo=UTC)) + 1
    assert first_term(datetime(1970, 1, 1, tzinfo=UTC)) == 1, "a clock that was never set"
    assert first_term(datetime(3000, 1, 1, tzinfo=UTC)) < 2**31


def test_a_lease_is_seen_anew_whenever_its_holder_writes_and_remembered_when_it_is_deleted() -> None:
    first = sight(None, LEASE, 100)
    assert first == Sighting(LEASE, 100)
    assert sight(first, LEASE, 103) == first
    renewed = Lease("u1", "a", 15, 3, "another time, earlier or later")
    assert sight(first, renewed, 103) == Sighting(renewed, 103)
    assert sight(first, None, 103) == first
    never = sight(None, None, 103)
    assert never == Sighting(None, 103)
    assert sight(never, None, 104) == never
    assert sight(never, LEASE, 105) == Sighting(LEASE, 105)


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        pytest.param(None, True, id="deleted: it may be made again"),
        pytest.param(LEASE, True, id="as we left it"),
        pytest.param(Lease("u2", "a", 99, 3, "edited"), True, id="edited, and still ours"),
        pytest.param(Lease("u1", "b", 15, 4, ""), False, id="another's"),
        pytest.param(Lease("u1", "", 15, 3, ""), False, id="taken from us"),
        pytest.param(Lease("u1", "a", 15, 4, ""), False, id="that of the container after us"),
    ],
)
def test_a_lease_is_ours_while_holder_and_term_are(lease: Lease | None, expected: bool) -> None:
    assert is_still_ours(lease, "a", 3) is expected


def test_a_pod_is_gone_from_when_that_was_seen_first_and_until_the_lease_is_written() -> None:
    seen = sight(None, LEASE, 100)
    gone = sight_pod(seen, 101, is_gone=True)
    assert gone == Sighting(LEASE, 100, 101)
    assert sight_pod(gone, 103, is_gone=True) == gone
    assert sight_pod(gone, 103, is_gone=False) == seen, "nobody could tell"
    renewed = Lease("u1", "a", 15, 3, "later")
    assert sight(gone, renewed, 104) == Sighting(renewed, 104)


def test_only_a_pods_name_is_looked_for() -> None:
    assert pod_of("gnnserve-1_u1") == PodName("gnnserve-1", "u1")
    assert pod_of(identity_of({"POD_ID": "gnnserve-1", "POD_UID": "u1"})) == PodName("gnnserve-1", "u1")
    assert [pod_of(holder) for holder in ("", "a", "a_", identity_of({}), "host_1/9e0d")] == [None] * 5


# --- electors


@dataclass(slots=True)
class Process:
    """An operator, as far as leadership goes."""

    name: str
    server: ApiServer
    clock: FakeClock
    elector: Elector = field(init=False)
    cluster: Cluster = field(init=False)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    is_paused: bool = False
    is_cut_off: bool = False
    loses_answers: bool = False
    may_read_pods: bool = True
    task: asyncio.Task[None] | None = None
    works: int = 0

    def __post_init__(self) -> None:
        transport, metrics = InProcessTransport(self._respond), Metrics(RoutingMemory())
        self.elector = Elector(Cluster(transport, metrics), ELECTION, self.name, self.clock, jitter=lambda: 0.0)
        self.cluster = Cluster(transport, metrics, self.elector)

    def _respond(self, request: Request) -> Response:
        if self.is_cut_off:
            raise ConnectionRefusedError("connection refused")
        if "/pods/" in request.path and not self.may_read_pods:
            return Response(403, {}, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "pods"})
        response = self.server.respond(request)
        if self.loses_answers:
            raise TimeoutError
        return response

    async def start(self) -> None:
        self.task = asyncio.create_task(self.elector.lead(self.stop, self._work))
        await settle()

    async def _work(self) -> None:
        self.works += 1
        await self.stop.wait()

    async def write(self, value: str = "1") -> None:
        await self.cluster.apply(child(data={"by": self.name, "value": value}))

    def pass_time(self, seconds: float) -> None:
        """As for a process that is stopped: time goes on, and nothing runs."""
        self.clock.seconds += seconds

    @property
    def leads(self) -> bool:
        return self.works > 0 and self.task is not None and not self.task.done() and self.elector.is_leader


@dataclass(slots=True)
class World:
    """In which somebody led before, so that the next term is 1."""

    api: FakeCluster = field(default_factory=lambda: FakeCluster(collects_garbage=False))
    processes: list[Process] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    """Whoever led, each time that it was another."""

    def __post_init__(self) -> None:
        self.api.create(lease("", 0))

    def add(self, name: str, started_s: float = 1000.0) -> Process:
        """Clocks of two machines have nothing to do with each other."""
        process = Process(name, ApiServer(self.api), FakeClock())
        process.clock.seconds = started_s
        self.processes.append(process)
        return process

    async def pass_time(self, seconds: float) -> None:
        """In small steps for all, so that they are side by side."""
        for _ in range(round(seconds / 0.5)):
            for process in self.processes:
                if process.is_paused:
                    process.pass_time(0.5)
                else:
                    await process.clock.advance(0.5)
            leaders = [process.name for process in self.processes if process.leads]
            assert len(leaders) <= 1, f"{leaders} lead at once"
            if leaders and leaders != self.leaders[-1:]:
                self.leaders += leaders

    def lease(self) -> Manifest:
        return self.api.get("Lease", NAME)

    def edit(self, change: Callable[[Manifest], object]) -> None:
        def apply(found: Manifest) -> None:
            change(found)

        self.api.replace("Lease", NAME, apply)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    try:
        yield made
    finally:
        tasks = [process.task for process in made.processes if process.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def scenario(test: Callable[[World], Coroutine[None, None, None]]) -> Callable[[], None]:
    def run() -> None:
        async def inside() -> None:
            async with world() as it:
                await test(it)

        asyncio.run(inside())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@scenario
async def test_the_first_leads_and_the_second_stands_by_for_as_long_as_the_lease_is_renewed(it: World) -> None:
    a, b = it.add("a"), it.add("b", started_s=5)
    await a.start()
    await b.start()
    spec = it.lease()["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", LEASE_S, 1)
    first = spec["renewTime"]
    await it.pass_time(10 * LEASE_S)
    assert (it.leaders, b.works, b.elector.is_standing_by) == (["a"], 0, True)
    spec = it.lease()["spec"]
    assert spec["renewTime"] > first == spec["acquireTime"]
    assert spec["leaseTransitions"] == 1


@scenario
async def test_only_the_leader_may_write(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    with pytest.raises(LostLeadershipError, match="is not held"):
        await a.write()
    await a.start()
    await b.start()
    await a.write()
    with pytest.raises(LostLeadershipError):
        await b.write()
    assert await b.cluster.get(observed_ref(child())) is not None, "reading is free"
    assert [str(write) for write in it.api.writes] == ["put Lease gnnserve", "apply ConfigMap digits-routing"]


@scenario
async def test_a_leader_that_died_is_followed_when_its_lease_has_passed_and_not_before(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await it.pass_time(30)
    a.is_paused = True
    await it.pass_time(LEASE_S - RETRY_S)
    assert it.leaders == ["a"]
    await it.pass_time(2 * RETRY_S)
    assert it.leaders == ["a", "b"]
    assert it.lease()["spec"]["leaseTransitions"] == 2


@scenario
async def test_a_leader_that_ends_lets_go_and_the_next_begins_at_its_next_look(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await it.pass_time(5)
    a.stop.set()
    await settle()
    assert a.task is not None
    assert a.task.done()
    a.task.result()
    assert it.lease()["spec"]["holderIdentity"] == ""
    with pytest.raises(LostLeadershipError):
        await a.write()
    await it.pass_time(RETRY_S)
    assert it.leaders == ["a", "b"]


@scenario
async def test_it_lets_go_also_where_its_last_renewal_was_not_answered(it: World) -> None:
    a = it.add("a")
    await a.start()
    a.loses_answers = True
    await it.pass_time(RETRY_S)
    a.loses_answers = False
    a.stop.set()
    await settle()
    assert it.lease()["spec"]["holderIdentity"] == ""


@scenario
async def test_a_leader_that_was_stopped_and_goes_on_writes_nothing_and_ends(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await a.write()
    a.is_paused = True
    await it.pass_time(LEASE_S + RETRY_S)
    await b.write("2")
    writes = len(it.api.writes)
    # It goes on in the middle of a reconcile, before anything else of it could notice.
    with pytest.raises(LostLeadershipError, match="could not be renewed for 10 s"):
        await a.write("3")
    a.is_paused = False
    await it.pass_time(RETRY_S)
    assert a.task is not None
    with pytest.raises(LostLeadershipError):
        a.task.result()
    assert [str(write) for write in it.api.writes[writes:] if write.kind != "Lease"] == []
    found = it.api.get("ConfigMap", "digits-routing")
    assert found["data"] == {"by": "b", "value": "2"}
    assert found["metadata"]["annotations"] == {TERM_ANNOTATION: "2"}
    assert it.leaders == ["a", "b"]
    assert b.leads


@scenario
async def test_without_an_api_server_the_leader_ends_at_its_deadline_and_nobody_leads_until_it_is_back(
    it: World,
) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await it.pass_time(RETRY_S * 2)
    for process in it.processes:
        process.is_cut_off = True
    await it.pass_time(DEADLINE_S - RETRY_S - 0.5)
    assert a.leads
    with pytest.raises(RetryLaterError, match="does not answer"):
        await a.write()
    await it.pass_time(RETRY_S + 0.5)
    assert a.task is not None
    with pytest.raises(LostLeadershipError, match="could not be renewed"):
        a.task.result()
    assert a.stop.is_set(), "its work must end too"
    await it.pass_time(60)
    assert (it.leaders, b.works, b.elector.is_standing_by) == (["a"], 0, False)
    b.is_cut_off = False
    await it.pass_time(RETRY_S)
    assert it.leaders == ["a", "b"]


@scenario
async def test_a_short_absence_of_the_api_server_costs_nobody_the_lease(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    for _ in range(5):
        a.is_cut_off = b.is_cut_off = True
        await it.pass_time(DEADLINE_S - 2 * RETRY_S)
        a.is_cut_off = b.is_cut_off = False
        await it.pass_time(RETRY_S)
    assert it.leaders == ["a"]


@scenario
async def test_a_leader_that_alone_is_cut_off_has_ended_before_another_begins(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    a.is_cut_off = True
    await it.pass_time(LEASE_S + RETRY_S)  # pass_time asserts that never two lead
    assert it.leaders == ["a", "b"]


@scenario
async def test_renewals_whose_answers_were_lost_were_renewals(it: World) -> None:
    a = it.add("a")
    await a.start()
    for _ in range(4):
        a.loses_answers = True
        await it.pass_time(2 * RETRY_S)
        a.loses_answers = False
        await it.pass_time(RETRY_S)
    assert a.leads
    assert it.lease()["spec"]["leaseTransitions"] == 1


@scenario
async def test_taking_whose_answer_was_lost_is_done_again_at_once(it: World) -> None:
    a = it.add("a")
    a.loses_answers = True
    await a.start()
    a.loses_answers = False
    it.edit(lambda found: found["spec"].update(holderIdentity="a", leaseDurationSeconds=LEASE_S, leaseTransitions=1))
    await it.pass_time(RETRY_S)
    assert a.leads
    assert it.lease()["spec"]["leaseTransitions"] == 2


def lease(holder: str, transitions: int, **spec: Any) -> Manifest:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": LEASE_S, "leaseTransitions": transitions} | spec,
    }


@scenario
async def test_a_dead_holder_of_whom_only_the_lease_is_left_is_waited_for_once(it: World) -> None:
    """Its times are of a clock that is nobody's here: a year off, either way."""
    it.api.delete("Lease", NAME)
    it.api.create(lease("dead", 7, renewTime="2025-01-01T00:00:00.000000Z", acquireTime="2030-01-01T00:00:00.000000Z"))
    a = it.add("a")
    await a.start()
    await it.pass_time(LEASE_S - 0.5)
    assert it.leaders == []
    await it.pass_time(RETRY_S)
    assert it.leaders == ["a"]
    assert it.lease()["spec"]["leaseTransitions"] == 8


def make_pod(it: World, name: str) -> str:
    """And the holder that it is in a Lease."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
    return f"{name}_{it.api.create(pod)['metadata']['uid']}"


@scenario
async def test_who_comes_after_helm_uninstall_waits_for_requests_of_the_pod_that_is_gone_and_not_for_its_lease(
    it: World,
) -> None:
    before = it.add(make_pod(it, "before"))
    await before.start()
    await it.pass_time(5)
    refusal = Refusal(403, "Forbidden", "leases is forbidden: RBAC: role not found")
    it.api.faults.append(Fault("put", "Lease", refusal))  # the Role goes before the process is told to end
    before.stop.set()
    await settle()
    assert it.lease()["spec"]["holderIdentity"] == before.name, "it had no right to let go"
    after = it.add(make_pod(it, "after"))
    it.api.faults.clear()
    await after.start()
    await it.pass_time(3)
    assert it.leaders == [before.name]
    assert after.works == 0, "the pod is there, so its process may be"
    it.api.delete("Pod", "before")
    await it.pass_time(RETRY_S + LEASE_S - DEADLINE_S + RETRY_S)
    assert after.leads
    assert it.lease()["spec"]["leaseTransitions"] == 2


@scenario
async def test_a_pod_of_the_same_name_is_not_the_one_that_led(it: World) -> None:
    make_pod(it, "a")
    it.edit(lambda found: found["spec"].update(holderIdentity="a_of-another-uid", leaseDurationSeconds=LEASE_S))
    after = it.add("b")
    await after.start()
    await it.pass_time(LEASE_S - DEADLINE_S + RETRY_S)
    assert after.leads


@scenario
async def test_where_nobody_tells_of_pods_the_lease_is_waited_for(it: World) -> None:
    it.edit(lambda found: found["spec"].update(holderIdentity="a_u1", leaseDurationSeconds=LEASE_S))
    after = it.add("b")
    after.may_read_pods = False
    await after.start()
    await it.pass_time(LEASE_S - 0.5)
    assert after.works == 0
    await it.pass_time(RETRY_S)
    assert after.leads


@scenario
async def test_the_next_container_of_a_pod_need_not_wait_and_the_one_before_it_may_not_go_on(it: World) -> None:
    before = it.add("a")
    await before.start()
    await it.pass_time(RETRY_S)
    before.is_paused = True
    after = it.add("a", started_s=2)
    await after.start()
    assert after.leads
    assert it.lease()["spec"]["leaseTransitions"] == 2
    before.is_paused = False
    await before.clock.advance(RETRY_S)
    assert before.task is not None
    with pytest.raises(LostLeadershipError, match="held by a, term 2"):
        before.task.result()


@scenario
async def test_a_lease_that_is_deleted_is_made_again_by_its_holder_and_by_nobody_else(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await it.pass_time(5)
    for _ in range(3):
        it.api.delete("Lease", NAME)
        await b.clock.advance(RETRY_S)  # which looks before the holder does
        await it.pass_time(RETRY_S)
    assert it.leaders == ["a"]
    assert (it.lease()["spec"]["holderIdentity"], it.lease()["spec"]["leaseTransitions"]) == ("a", 1)


@scenario
async def test_a_lease_that_was_deleted_with_its_holder_is_taken_when_it_would_have_passed(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    await it.pass_time(5)
    a.is_paused = True
    it.api.delete("Lease", NAME)
    await it.pass_time(LEASE_S - 2 * RETRY_S)
    assert it.leaders == ["a"]
    await it.pass_time(3 * RETRY_S)
    assert it.leaders == ["a", "b"]
    assert it.lease()["spec"]["leaseTransitions"] == 2, "a new term also in a new Lease"


@scenario
async def test_where_there_never_was_a_lease_it_is_made_soon(it: World) -> None:
    it.api.delete("Lease", NAME)
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    assert (it.leaders, a.elector.is_standing_by) == ([], False)
    await it.pass_time(2 * RETRY_S)
    assert len(it.leaders) == 1


@scenario
async def test_a_newcomer_leaves_a_lease_that_was_just_deleted_to_its_holder(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await it.pass_time(RETRY_S)
    it.api.delete("Lease", NAME)
    await b.start()
    await it.pass_time(10 * RETRY_S)
    assert (it.leaders, b.works) == (["a"], 0)


@scenario
async def test_terms_grow_also_where_the_lease_was_deleted_and_nobody_is_left_who_saw_it(it: World) -> None:
    it.api.delete("Lease", NAME)
    a, b = it.add("a"), it.add("b", started_s=1100)  # FakeClock's date goes by it
    await a.start()
    await it.pass_time(2 * RETRY_S)
    before = it.lease()["spec"]["leaseTransitions"]
    a.is_paused = True
    await it.pass_time(DEADLINE_S)
    it.api.delete("Lease", NAME)
    await b.start()
    await it.pass_time(2 * RETRY_S)
    assert it.leaders == ["a", "b"]
    assert it.lease()["spec"]["leaseTransitions"] > before


@scenario
async def test_a_lease_is_not_let_go_while_a_write_may_be_under_way(it: World) -> None:
    a, b = it.add("a"), it.add("b")
    await a.start()
    await b.start()
    a.loses_answers = True
    with pytest.raises(RetryLaterError):
        await a.write()
    a.loses_answers = False
    a.stop.set()
    await settle()
    assert a.task is not None
    a.task.result()
    assert it.lease()["spec"]["holderIdentity"] == "a"
    await it.pass_time(LEASE_S - RETRY_S)
    assert b.works == 0
    await it.pass_time(2 * RETRY_S)
    assert b.leads


@scenario
async def test_a_write_that_was_not_answered_long_ago_or_a_read_keeps_nobody_waiting(it: World) -> None:
    a = it.add("a")
    await a.start()
    a.loses_answers = True
    with pytest.raises(RetryLaterError):
        await a.write()
    a.loses_answers = False
    await it.pass_time(REQUEST_LIMIT_S)
    a.loses_answers = True
    with pytest.raises(RetryLaterError):
        await a.cluster.get(observed_ref(child()))
    a.loses_answers = False
    a.stop.set()
    await settle()
    assert it.lease()["spec"]["holderIdentity"] == ""


@scenario
async def test_what_others_put_on_a_lease_stays_and_changes_nothing(it: World) -> None:
    a = it.add("a")
    await a.start()
    it.edit(lambda found: found["metadata"].update(labels={"team": "graphs"}))
    await it.pass_time(3 * RETRY_S)
    assert it.leaders == ["a"]
    assert it.lease()["metadata"]["labels"] == {"team": "graphs"}


@pytest.mark.parametrize("holder", ["somebody", ""])
def test_a_lease_that_is_given_to_another_by_hand_is_lost(holder: str) -> None:
    async def run() -> None:
        async with world() as it:
            a = it.add("a")
            await a.start()
            it.edit(lambda found: found["spec"].update(holderIdentity=holder))
            await it.pass_time(RETRY_S)
            assert a.task is not None
            with pytest.raises(LostLeadershipError, match=f"held by {holder or 'no operator'}"):
                a.task.result()
            with pytest.raises(LostLeadershipError):
                await a.write()
            assert it.lease()["spec"]["holderIdentity"] == holder

    asyncio.run(run())


@scenario
async def test_of_many_that_begin_at_once_one_leads(it: World) -> None:
    for number in range(5):
        it.add(str(number), started_s=1000 * number)
    await asyncio.gather(*(process.start() for process in it.processes))
    await it.pass_time(60)
    assert len(it.leaders) == 1


def test_what_keeps_it_from_leading_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with world() as it:
            a = it.add("a")
            a.is_cut_off = True
            await a.start()
            await it.pass_time(60)

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for Lease gnnserve: get Lease default/gnnserve: the API server does not answer: connection refused"
    ]


def test_an_api_server_that_is_away_does_not_hold_up_the_end() -> None:
    async def run() -> None:
        async with world() as it:
            a = it.add("a")
            await a.start()
            a.is_cut_off = True
            a.stop.set()
            assert a.task is not None
            await a.task

    asyncio.run(run())


# --- requests that take their time, on an event loop whose clock leaps to what is due


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(LeapingSelector(self))
        self.seconds = 0.0

    def time(self) -> float:
        return self.seconds


class LeapingSelector(selectors.DefaultSelector):  # type: ignore[misc] - its type is the system's
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everything waits for ever"
            self._loop.seconds += timeout
        return found


class LoopClock(SystemClock):
    def now(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class SlowTransport(InProcessTransport):
    """The next so many requests of a method take so long."""

    slow: dict[str, list[float]] = field(default_factory=dict)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Manifest | None) -> ApiAnswer:
        if self.slow.get(method):
            await asyncio.sleep(self.slow[method].pop(0))
        return await InProcessTransport.send(self, method, url, headers, body)


def is_held_after(seconds: float, retry_s: float, slow: dict[str, list[float]]) -> bool:
    """By an elector with a deadline of 10 s whose requests are slow."""

    async def run() -> bool:
        world = World()
        transport = SlowTransport(ApiServer(world.api).respond, slow)
        settings = LeaderElection(lease_name=NAME, namespace="default", retry_seconds=retry_s)
        elector = Elector(Cluster(transport, Metrics(RoutingMemory())), settings, "a", LoopClock(), lambda: 0.0)
        stop, never = asyncio.Event(), asyncio.Event()
        leading = asyncio.create_task(elector.lead(stop, never.wait))  # type: ignore[arg-type]
        await asyncio.sleep(seconds)
        held = elector.is_leader
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return held

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(run())


HANGS = 1e6


@pytest.mark.parametrize("retry_s", [0.5, 2, 5])
def test_a_renewal_that_hangs_is_tried_again_before_the_deadline(retry_s: float) -> None:
    # The first PUT takes the Lease.
    assert is_held_after(12, retry_s, {"PUT": [0, HANGS]})
    assert not is_held_after(12, retry_s, {"PUT": [0, *[HANGS] * 100]})


def test_a_slow_look_leaves_a_slow_taking_its_time() -> None:
    assert is_held_after(7, 0.5, {"GET": [3], "PUT": [3]})


def test_a_look_that_hangs_is_given_up() -> None:
    assert is_held_after(7, 2, {"GET": [HANGS]})


def test_a_pod_is_the_same_after_a_restart_and_a_process_elsewhere_is_another() -> None:
    pod = {"POD_ID": "gnnserve-1", "POD_UID": "u1"}
    assert identity_of(pod) == identity_of(pod) == "gnnserve-1_u1"
    assert identity_of({}) != identity_of({})


def test_the_clock_of_a_lease_goes_on() -> None:
    clock = SystemClock().counting_suspension()
    assert clock.now() <= clock.now()


@pytest.mark.parametrize(
    ("times", "says"),
    [
        pytest.param({"renewDeadlineSeconds": 15}, "found 2, 15 and 15", id="a deadline that is no earlier"),
        pytest.param({"retrySeconds": 6}, "found 6, 10 and 15", id="too few tries before the deadline"),
    ],
)
def test_times_that_cannot_be_kept_are_refused(times: dict[str, float], says: str) -> None:
    document = {"leaseName": NAME, "namespace": "default", **times}
    with pytest.raises(ValueError, match=says):
        LeaderElection.model_validate(document, by_alias=True, by_name=False)
