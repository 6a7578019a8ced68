"""A cluster, its controllers and one or more operators in simulated time, moved step by step.

Between two steps nothing happens; within one the controllers act once, the watches tell, and each operator that is due
looks once. What goes wrong on the way is the `Trouble`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.control.campaign.clock import SimClock, let_run
from tests.control.campaign.control_plane import ACT_S, ControlPlane
from tests.control.campaign.judge import Judge
from tests.control.campaign.sim_operator import RESYNC_S, SimOperator, Surroundings
from tests.control.campaign.trouble import FENCED, Trouble
from tests.support.kubernetes.api_server import ApiServer, Request, Response
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.operator.operator import gnnservice

from gnnserve_api.status.reasons import Reason
from gnnserve_operator.desired.metadata import TERM_ANNOTATION
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.settings import Settings
from gnnserve_routing.signals import Silence

Manifest = dict[str, Any]
KEY = ServiceKey("default", "digits")
RESTART_S = 1.0
"""Kubernetes starts a container again after so long."""
LIMIT_S = 900.0
"""A scene that has not come to rest by then hangs."""
PATIENCE_S = 130.0
"""Nothing changes any more, and what the operator has against a silent watch has had its time."""
PROGRESS_S = 1200.0
"""So long after an operator's start a status may say that something is under way while nothing changes: longer than any
patience that the operator and Kubernetes' controllers have."""
MOST_RESTARTS = 2
"""So often a trouble has the operator started again (`Point`)."""
_SHORTEST_S = 0.001


class Hung(Exception):  # noqa: N818 - a find
    pass


@dataclass(frozen=True, slots=True)
class Call:
    """A request of an operator to the API server."""

    is_write: bool
    asked: str
    """Method and path."""
    version: int
    """Of the cluster, before it."""


@dataclass(slots=True)
class World:
    settings: Settings
    trouble: Trouble
    clock: SimClock = field(default_factory=SimClock)
    cluster: FakeCluster = field(init=False)
    plane: ControlPlane = field(init=False)
    judge: Judge = field(init=False)
    operators: list[SimOperator] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    writes: int = 0
    steps: int = 0
    reconciles: int = 0
    wanted_operators: int = 1
    term: int = 1
    """Term of the Lease."""
    started_at: float = 0.0
    """When the last operator was started."""
    looks: list[int] = field(default_factory=list)
    """Lengths of the history at which a step found an operator, each once."""
    waits: int = 0
    """Number of times that a scene has begun to wait: how far it has come."""
    on_moment: Callable[[], None] = lambda: None
    """Called at each moment of a wait at which the operators know all that there is, and none has anything to do."""
    created_late: tuple[str, str] | None = None
    """Kind and name of what an overtaken leader made by the one write that was past its last check."""
    _api: ApiServer = field(init=False)
    _uids: int = 0
    _restart_at: float | None = None
    _held: asyncio.Future[None] | None = None
    _stopped: tuple[SimOperator, asyncio.Task[bool]] | None = None
    _is_late: bool = False
    """The next write is the one that was under way when its process was stopped."""
    _next_act: float = 0.0
    _plane_version: int = -1
    _quiet_since: float = 0.0
    _quiet_version: int = -1

    def __post_init__(self) -> None:
        self.cluster = FakeCluster(clock=self.clock.utc, new_uid=self._new_uid, protects_claims=True)
        self._api = ApiServer(self.cluster)
        self.plane = ControlPlane(self.cluster, self.clock)
        self.judge = Judge(self.cluster, self.plane)

    def _new_uid(self) -> str:
        self._uids += 1
        return f"00000000-0000-0000-0000-{self._uids:012x}"

    # --- what people do

    def create(self, **spec: Any) -> None:
        self.cluster.create(gnnservice(**copy.deepcopy(spec)))

    def create_labelled(self, labels: Mapping[str, str], **spec: Any) -> None:
        service = gnnservice(**copy.deepcopy(spec))
        self.cluster.create({**service, "metadata": {**service["metadata"], "labels": dict(labels)}})

    def edit(self, change: Callable[[Manifest], None]) -> None:
        """`change` alters the spec."""
        self.cluster.replace("GNNService", KEY.name, lambda found: change(found["spec"]))

    def set(self, **spec: Any) -> None:
        self.edit(lambda found: found.update(copy.deepcopy(spec)))

    def label(self, **labels: str) -> None:
        """Replaces the labels of the service."""
        self.cluster.replace("GNNService", KEY.name, lambda found: found["metadata"].update(labels=dict(labels)))

    def replace_spec(self, spec: Manifest) -> None:
        def change(found: Manifest) -> None:
            found.clear()
            found.update(copy.deepcopy(spec))

        self.edit(change)

    def delete(self) -> None:
        self.cluster.delete("GNNService", KEY.name)

    @property
    def service(self) -> Manifest | None:
        return self.cluster.objects.get(("GNNService", KEY.namespace, KEY.name))

    def condition(self, kind: str) -> Manifest:
        conditions = ((self.service or {}).get("status") or {}).get("conditions") or ()
        return next((found for found in conditions if found["type"] == kind), {})

    def is_at_rest(self) -> bool:
        """Whether the operator reports rest for the present spec, and the cluster for its objects."""
        if self.service is None:
            return True
        generation = self.service["metadata"]["generation"]
        is_seen = (self.service.get("status") or {}).get("observedGeneration") == generation
        return is_seen and self.condition("Reconciling").get("status") == "False"

    def _is_waited_for(self) -> bool:
        """Whether the status says, or leaves it to be supposed, that something goes on."""
        return not self.is_at_rest() and self.condition("Stalled").get("status") != "True" and bool(self.operators)

    # --- operators

    def start_operator(self, behind: int = 0) -> SimOperator:
        around = Surroundings(
            self.cluster, self.clock, self._respond, self._hold, self.plane.answer,
            lambda url, query: Silence(Reason.UNREACHABLE, "Prometheus is not there."),
        )  # fmt: skip
        operator = SimOperator(around, self.settings, self.trouble.meddle, behind, self.term)
        if self.trouble.watches_are_checked:
            operator.watch_the_watches()
        self.operators.append(operator)
        self.started_at = self.clock.now()
        return operator

    async def stop_operators(self) -> None:
        """As when their pods are gone for a while."""
        self.wanted_operators = 0
        for operator in self.operators:
            await operator.end()
        self.operators.clear()

    def resume_operators(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.settings
        self.wanted_operators = 1
        self.start_operator()

    async def restart_operator(self, settings: Settings | None = None, behind: int = 0) -> None:
        await self.stop_operators()
        self.settings = settings or self.settings
        self.wanted_operators = 1
        self.start_operator(behind)

    def let_unknown_fields_pass(self) -> None:
        """As the CRD of a newer operator does."""
        self.cluster.schema = None

    # --- time

    async def settled(self) -> None:
        """Wait until operator and cluster are at rest and report it; else until nothing has changed for long. What is
        then said to be under way must go on, or be said to be stalled, within bounded time."""
        self.waits += 1
        await self._until(self._is_settled, LIMIT_S)
        began = self.clock.now()
        for _ in range(1 + MOST_RESTARTS):
            # An operator that has just started does not know how long the same was said before.
            limit_s = max(began, self.started_at) + PROGRESS_S - self.clock.now()
            if not self._is_waited_for() or limit_s < 0.0:
                break
            with contextlib.suppress(Hung):
                await self._until(lambda: not self._is_waited_for() and self._is_settled(), limit_s)
        if self._is_waited_for():
            ready, stalled = self.condition("Ready"), self.condition("Stalled")
            self.judge.accuse(f"nothing goes on, and Stalled is not True: {ready or 'no status'}; {stalled}")

    async def until(self, condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        self.waits += 1
        await self._until(condition, limit_s)

    async def _until(self, condition: Callable[[], object], limit_s: float) -> None:
        end = self.clock.now() + limit_s
        await self._step_and_look()
        while not condition():
            if self.clock.now() > end:
                raise Hung(f"not within {limit_s:.0f} s: {self.condition('Ready') or 'no status'}")
            await self._step_and_look()

    async def _step_and_look(self) -> None:
        await self.step()
        if self._is_still():
            self.on_moment()

    async def run_for(self, seconds: float) -> None:
        self.waits += 1
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            await self.step(latest=end)

    async def step(self, latest: float | None = None) -> None:
        self.steps += 1
        now = self.clock.now()
        if now >= self._next_act and self._plane_wants():
            if self.plane.step():
                self._next_act = now + ACT_S
            else:
                self._plane_version = self.cluster.version
        if self.operators and self.looks[-1:] != [len(self.cluster.history)]:
            self.looks.append(len(self.cluster.history))
        await self.trouble.on_step(self)
        for operator in list(self.operators):
            operator.listen()
            if await self._turn(operator):
                self.reconciles += 1
            for panic in operator.panics:
                self.judge.accuse(f"the operator raised: {panic}")
            if operator.crashed or operator.watches.problem() is not None:
                await operator.end()
                self.operators.remove(operator)
                self._restart_at = now + RESTART_S
        if self._restart_at is not None and now >= self._restart_at:
            self._restart_at = None
            if self.wanted_operators and not self.operators:
                self.start_operator()
        if not all(operator.may_begin for operator in self.operators):
            await let_run()  # the first look at what there is
        self.judge.look(is_busy=not self._is_told(), may_miss=self.trouble.watches_are_checked)
        if self.cluster.version != self._quiet_version:
            self._quiet_version, self._quiet_since = self.cluster.version, now
        await self.clock.advance_to(max(min(self._next_time(), latest or float("inf")), now + _SHORTEST_S))

    async def _turn(self, operator: SimOperator) -> bool:
        if not self.trouble.may_stop:
            return await operator.turn()
        turn, held = asyncio.create_task(operator.turn()), self._held
        while not turn.done() and self._held is held:
            await asyncio.sleep(0)
        if turn.done():
            return turn.result()
        # The process stands still in the midst of a reconcile; another one takes over.
        self.operators.remove(operator)
        self._stopped = (operator, turn)
        self.term += 1
        self.start_operator()
        return True

    async def go_on(self) -> None:
        """The stopped process sends what it was about to send, and ends at its next write: another leads by now."""
        assert self._stopped is not None
        assert self._held is not None
        operator, turn = self._stopped
        operator.leadership.is_lost = self._is_late = True
        self._held.set_result(None)
        await turn
        self._is_late = False
        for panic in operator.panics:
            self.judge.accuse(f"the operator raised: {panic}")
        self._held = self._stopped = None
        await operator.end()

    def _plane_wants(self) -> bool:
        dues = [due for due in (self.plane.next_due(), self.plane.next_deadline()) if due is not None]
        return self._plane_version != self.cluster.version or any(due <= self.clock.now() for due in dues)

    def _next_time(self) -> float:
        times = [operator.next_due() for operator in self.operators]
        if any(operator.view.has_news() for operator in self.operators):
            times.append(self.clock.now())
        due = self.plane.next_due()
        if self._plane_version != self.cluster.version or (due is not None and due <= self.clock.now()):
            times.append(self._next_act)
        deadline = self.plane.next_deadline()
        others = (due, deadline, self.clock.next_due(), self._restart_at, self.trouble.next_due(self.clock.now()))
        times += [time for time in others if time is not None]
        return min((*times, self.clock.now() + RESYNC_S))

    def _is_told(self) -> bool:
        """Whether the operators know all that has happened, and have nothing to look at."""
        alive = len(self.operators) >= max(self.wanted_operators, 1)
        return alive and all(operator.is_idle() and not operator.failures for operator in self.operators)

    def _is_still(self) -> bool:
        """Whether the operator knows all that there is, and has nothing to do but to look again after a while."""
        if self._restart_at is not None or len(self.operators) != self.wanted_operators:
            return False
        return all(operator.is_at_ease() and operator.view.is_true() for operator in self.operators)

    def state(self) -> str:
        """Digest of all that decides what comes of whatever people do next: objects, workers, volumes and what
        controllers are about to do; times apart, and what an operator remembers of how it came there."""
        waiting = sorted(str(operator.queue.next_due() is not None) for operator in self.operators)
        acts = self._plane_version != self.cluster.version
        text = json.dumps([self.judge.state(), self.plane.state(), waiting, acts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _is_settled(self) -> bool:
        if self._restart_at is not None or self._plane_version != self.cluster.version:
            return False
        if self.plane.next_due() is not None or not self.trouble.is_over(self):
            return self.clock.now() - self._quiet_since > PATIENCE_S
        told = all(operator.is_idle() and not operator.failures for operator in self.operators)
        if told and self.is_at_rest():
            return True
        return self.clock.now() - self._quiet_since > PATIENCE_S

    # --- requests

    async def _hold(self, request: Request) -> None:
        if _is_write(request) and self.trouble.stops(self.writes):
            self._held = asyncio.get_running_loop().create_future()
            await self._held

    def _respond(self, request: Request) -> Response:
        number, write = len(self.calls), None
        is_late = self._is_late and _is_write(request)
        self._is_late = self._is_late and not is_late
        self.calls.append(Call(_is_write(request), f"{request.method} {request.path}", self.cluster.version))
        if _is_write(request):
            write, self.writes = self.writes, self.writes + 1

        def carry_out() -> Response:
            if self.trouble.kind == FENCED and (refused := _fenced(request, self.term)) is not None:
                return refused
            response = self._api.respond(request)
            if is_late and response.code == 201:
                self.created_late = _meant(request)
            if write is not None and response.code < 300:
                kind, name = _meant(request)
                self.judge.note_write(request, kind, name, is_strict=self.trouble.is_strict)
            return response

        return self.trouble.on_call(self, number, write, carry_out)


def _is_write(request: Request) -> bool:
    return request.method != "GET" and not request.is_trial


def _fenced(request: Request, term: int) -> Response | None:
    """As the ValidatingAdmissionPolicy of the chart: what is applied bears the term of a leader."""
    annotations = ((request.body or {}).get("metadata") or {}).get("annotations") or {}
    if request.method != "PATCH" or request.path.endswith("/status") or int(annotations[TERM_ANNOTATION]) >= term:
        return None
    message = f"this operator was overtaken: its term is {annotations[TERM_ANNOTATION]}, that of the Lease is {term}"
    return Response(422, {}, {"kind": "Status", "code": 422, "reason": "Invalid", "message": message})


def _meant(request: Request) -> tuple[str, str]:
    body = request.body or {}
    if body.get("kind") not in {None, "DeleteOptions"}:
        return str(body["kind"]), str(body["metadata"]["name"])
    steps = request.path.rsplit("/", 2)
    kinds = {"jobs": "Job", "networkpolicies": "NetworkPolicy", "podmonitors": "PodMonitor"}
    return kinds.get(steps[-2], steps[-2]), steps[-1]
