"""The second revision of a service: a model of its own beside the service's, which shares its engine and its socket.

It has a queue, costs, counters and a follower of the log of changes of its own, and its share of the time while both
could use it, as two services of one server have; so whatever happens to it leaves the first revision as it is. Which
requests it answers, and that those it cannot answer go to the first, is `http/canary.py`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from msgspec import UNSET

from gnnserve_api.pods.routing import CanaryRoute, Damage, RoutingTable
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.model import ModelState
from gnnserve_worker.serving.http.canary import CanaryShare
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.metrics.canary_metrics import CanarySample
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.metrics.state_metrics import program_state
from gnnserve_worker.serving.process.log_follower import LogFollower
from gnnserve_worker.serving.process.loop_calls import LoopCalls

_POLL_S = 0.02
_LEAST_WEIGHT = 0.01
"""Share of the time that either revision has at least, so that what it accepted is answered."""


class ServedCanary:
    """A second revision, from `open` to `close`. Once the server has started, other threads may call every method but
    those that are said to be the event loop's."""

    def __init__(
        self, service: str, revision: str, engine: Engine, first: Predict, calls: LoopCalls, weight: float,
        log: LogFollower, show: Callable[[ServedCanary | None], None],
    ) -> None:  # fmt: skip
        """`first`: answers the service's other requests. `weight`: the service's among those of the engine. `log`: of
        the service, followed with nothing yet. `show` is called on the event loop, with this at the beginning and with
        None at the end."""
        self._show = show
        self.revision = revision
        self._service = service
        self._engine = engine
        self._name = f"{service}/{revision}"
        self._first = first
        self._calls = calls
        self._weight = weight
        self._log = log
        self._was_stuck: str | None = None
        """Why the log could not be followed when that was looked at last."""
        self._percent = 0
        self._problem: str | None = None
        self._metrics = ServingMetrics(service)
        self._share: CanaryShare | None = None
        """None before `open`."""
        self._created_s = time.time()

    # The event loop's

    @property
    def _answers(self) -> bool:
        return self._share is not None and self._first.canary is self._share

    @property
    def watch(self) -> AccuracyWatch | None:
        """What evaluates its variants on labels; None: it does not answer."""
        return self._engine.models[self._name].watch if self._answers else None

    def route(self) -> CanaryRoute:
        self._look_at_log()
        watch, model = self.watch, self._engine.models.get(self._name)
        table = None if model is None else model.table
        return CanaryRoute(
            self.revision, self._percent, self._answers, self._problem or self._obstacle(),
            UNSET if watch is None else watch.observed() or UNSET, program_state(self._programs(), table),
            self._log.state(),
        )  # fmt: skip

    def sample(self) -> CanarySample:
        passed_on = 0 if self._share is None else self._share.passed_on
        return CanarySample(self.route(), self._metrics.counters, passed_on, self._created_s, self._programs())

    def _programs(self) -> ProgramStats | None:
        model = self._engine.models.get(self._name)
        return None if model is None or model.lane is None else model.lane.revision.compute.programs()

    def settle(self) -> None:
        """Give it its requests, or take them away, by what there is now. To be called when the service's revision has
        changed."""
        self._was_stuck = self._log.why_stuck()
        model = self._engine.models.get(self._name)
        may_answer = model is not None and model.state is ModelState.READY and self._obstacle() is None
        self._first.canary = self._share if may_answer else None
        self._reweigh()

    def _look_at_log(self) -> None:
        """A revision that cannot get what the log has would answer of a graph that is no more."""
        if self._log.why_stuck() != self._was_stuck:
            self.settle()

    async def stop_following(self) -> None:
        """Follow the log of changes no more, for good: the server ends."""
        await self._log.close()

    def _obstacle(self) -> str | None:
        """Why it gets no requests although it is there; None: nothing is in the way."""
        if (stuck := self._log.why_stuck()) is not None:
            return f"revision {self.revision} cannot follow the log of changes, so that it gets no requests: {stuck}"
        return self._difference()

    def _difference(self) -> str | None:
        """Why the same requests cannot be asked of both revisions; None: they can."""
        model, first = self._engine.models.get(self._name), self._engine.models[self._service].lane
        if model is None or model.lane is None or first is None:
            return None
        one, other = first.revision, model.lane.revision
        differing = [
            name
            for name, is_like in (
                ("task", one.task.is_like(other.task)),
                ("types of nodes", one.graph.described.fields == other.graph.described.fields),
                ("kind of node ids", one.graph.naming.kind is other.graph.naming.kind),
                ("classes", tuple(one.task.classes) == tuple(other.task.classes)),
            )
            if not is_like
        ]
        if not differing:
            return None
        return (
            f"revision {self.revision} has another {' and '.join(differing)} than {one.manifest.revision}, so that it "
            "gets no requests; name another one in spec.routing.canary"
        )

    # Any thread's

    def open(self, percent: int) -> None:
        """Begin, without a revision yet."""

        def begin() -> None:
            model = self._engine.add(self._name, self._metrics, self._weight, self._service)
            model.tracer = self._engine.models[self._service].tracer
            canary = Predict(self._service, model, self._metrics.counters, self._log.updates)
            self._log.start()
            if self._log.updates is not None:
                self._log.updates.on_followed = self._look_at_log
            # A random start, as that of weights: workers are not to send their shares in step.
            self._share = CanaryShare(self._first, canary, percent, secrets.randbelow(1 << 20) / (1 << 20))
            self._divide(percent)
            self._show(self)

        self._calls.call(begin)

    def set_percent(self, percent: int) -> None:
        if percent != self._percent:
            self._calls.call(lambda: self._divide(percent))

    def _divide(self, percent: int) -> None:
        assert self._share is not None  # noqa: S101
        self._percent = self._share.percent = percent
        self._reweigh()

    def _reweigh(self) -> None:
        """Divide the service's weight among both revisions; while the second gets no requests, the first has all."""
        part = min(max(self._percent / 100, _LEAST_WEIGHT), 1 - _LEAST_WEIGHT)
        is_shared = self._first.canary is not None
        if self._name in self._engine.models:
            self._engine.reweigh(self._name, part * self._weight)
        self._engine.reweigh(self._service, (1 - part) * self._weight if is_shared else self._weight)

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
        """Answer by this revision, which has been warmed up, from now on. As `ServedService.switch` it raises LogError
        where it does not have what the present one has."""

        def switch() -> None:
            model = self._engine.models[self._name]
            if model.lane is None or model.lane.revision is not revision:
                self._metrics.show_revision(revision.manifest, load_s)
            model.switch(revision, table)
            self._problem = None
            self._log.follow(revision)
            self.settle()

        with self._log.handing_over(revision):
            self._calls.call(switch)

    def report(self, problem: str | None, damage: Damage | None = None) -> None:
        """Report why it does not answer; None where it does. Damage is not repaired: it may be of a recipe that the
        spec has no more."""

        def report() -> None:
            self._problem = problem

        self._calls.call(report)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """Answer no more by this revision, whose files are not what was verified: the service's own one answers all
        requests, those that were accepted too."""

        def withdraw() -> None:
            model = self._engine.models.get(self._name)
            if model is not None and model.lane is not None and model.lane.revision is revision:
                self._problem = problem
                self._first.canary = None
                self._reweigh()
                model.withdraw(problem)
                self._log.follow(None)

        self._calls.call(withdraw)

    def warn(self, revision: ServedRevision, problem: str) -> None:
        """Report a revision that answers correctly, but that the next start would not find."""
        self.report(problem)

    def close(self) -> None:
        """End. Returns when the second revision has nothing to answer any more. What it has queued is asked of the
        service's own revision, which answers from now on, where that can answer."""

        async def end() -> None:
            engine = self._engine
            self._first.canary = None
            if self._name in engine.models:
                engine.retire(self._name)
                if engine.models[self._service].state is ModelState.READY:
                    engine.models[self._name].drop_queued()  # at a small weight, answering it could take long
                while engine.alive and not engine.is_done_with(self._name):
                    await asyncio.sleep(_POLL_S)
                engine.remove(self._name)
            await self._log.close()
            engine.reweigh(self._service, self._weight)
            self._show(None)

        self._calls.call_async(end)
