"""The operator's process: puts the parts together, runs them until told to stop, and ends when one of them dies.

Where the namespaces in which it has its rights have changed, it begins anew.

kopf runs inside our own event loop and only watches. It ends every task that was created after it began, when it ends
itself; so all of ours are created first. Exit codes: 0 stopped as asked, 1 something died, 2 it could not begin, 3 it
led and may not lead any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import kopf
from aiohttp import web
from prometheus_client import disable_created_metrics

from gnnserve_api.errors import GnnserveError, ResourceError
from gnnserve_operator.apply import Applier
from gnnserve_operator.clock import Clock, MainClock, SystemClock
from gnnserve_operator.cluster import Cluster, HttpTransport
from gnnserve_operator.desired.metadata import MANAGER
from gnnserve_operator.errors import LostLeadershipError, OperatorError
from gnnserve_operator.fleet import Fleet
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.handlers.news import Intake
from gnnserve_operator.handlers.watches import Take, build_kopf_settings, build_registry
from gnnserve_operator.health import Readiness, ReadinessAnswer, WatchCheck, build_app, find_problems
from gnnserve_operator.kinds import RECONCILED, Manifest
from gnnserve_operator.leadership import Elector, identity_of
from gnnserve_operator.login import load_access
from gnnserve_operator.logs import configure_logging
from gnnserve_operator.loop import Loop
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.namespaces import NamespaceRights, Namespaces
from gnnserve_operator.observe import JobRefusals, Observer, PodMonitors, PoolObserver, RepositoryClaims, UsersClaims
from gnnserve_operator.probe import Addresses, Prober
from gnnserve_operator.prometheus import Prometheus
from gnnserve_operator.reconcile import Reconciler, reconciled_kinds
from gnnserve_operator.report import Reporter
from gnnserve_operator.retention import release_all
from gnnserve_operator.settings import Settings, load_settings
from gnnserve_operator.slow_loop import RoutingMemory, SlowLoop

CRD_POLL_S = 2.0
KOPF_STOP_S = 8.0

logger = logging.getLogger(__name__)


def main() -> int:
    try:
        settings = load_settings()
        configure_logging(settings.log_format, settings.log_level)
        # Otherwise each counter has a second series, which is not used.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        while asyncio.run(run(settings)) is Ending.OTHER_NAMESPACES:
            logger.info("beginning anew, since other namespaces may be watched")
    except LostLeadershipError as error:
        logger.critical("the operator ends, since another may lead by now: %s", error)
        return 3
    except GnnserveError as error:
        if not logging.getLogger().handlers:
            logging.basicConfig()
        logger.critical("%s", error)
        return 2
    except Exception:
        logger.critical("the operator ends", exc_info=True)
        return 1
    return 0


def tell_of_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that nothing awaits, as loops do.

    Errors of kopf's watches that are closed half-way at the end are for debugging alone: an operator that ends as it
    should would leave a traceback as its last words.
    """
    if "asyncgen" in context:
        logger.debug("%s: %s", context["message"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


class Ending(Enum):
    """Why the operator has ended without an error."""

    STOPPED = auto()
    """It was told to."""
    OTHER_NAMESPACES = auto()
    """Other namespaces than it watches may be watched now."""


async def run(
    settings: Settings,
    *,
    clock: MainClock | None = None,
    prober: Prober | None = None,
    stop: asyncio.Event | None = None,
    identity: str | None = None,
    on_listening: Callable[[int], None] = lambda port: None,
) -> Ending:
    """Runs the operator until SIGTERM, SIGINT or `stop`, or until other namespaces are to be watched. Raises what ended
    a part of it. All parts wait by `clock`."""
    ending = Ending.STOPPED
    clock, stop = clock or SystemClock(), stop or asyncio.Event()
    memory = RoutingMemory()
    metrics = Metrics(memory)
    index = Index()
    _stop_on_signals(stop)
    asyncio.get_running_loop().set_exception_handler(tell_of_error)
    async with contextlib.AsyncExitStack() as stack:
        transport = HttpTransport(await load_access())
        stack.push_async_callback(transport.close)
        elector = None
        if settings.leader_election is not None:
            # Of its own: a renewal must not wait for a connection behind writes that are slow.
            leasing = HttpTransport(await load_access(), connections=1)
            stack.push_async_callback(leasing.close)
            elector = Elector(
                Cluster(leasing, metrics),
                settings.leader_election,
                identity or identity_of(),
                clock.counting_suspension(),
            )
        cluster = Cluster(transport, metrics, elector)
        asking = await stack.enter_async_context(prober or Prober(Addresses(settings.cluster_domain)))
        prometheus = await stack.enter_async_context(Prometheus(metrics))
        # What a reconcile asks of the slow loop, and what the slow loop wakes, are made of each other.
        slow_loop = SlowLoop(prometheus.ask, lambda key: loop.nudge(key), clock)  # noqa: PLW0108 - not there yet
        stack.push_async_callback(slow_loop.close)
        fleet = Fleet(
            index.reconciled_keys, index.standings, lambda key: loop.nudge(key),  # noqa: PLW0108 - not there yet
            max_jobs=settings.max_concurrent_jobs, max_rollouts=settings.max_concurrent_rollouts,
        )  # fmt: skip
        for what, line in (("generation", fleet.generation), ("rollout", fleet.rollout)):
            metrics.observe_turns(what, partial(getattr, line, "under_way"), partial(getattr, line, "waiting"))
        namespaces = Namespaces(settings.namespaces)
        rights = NamespaceRights(namespaces, settings, cluster, clock)
        metrics.observe_namespaces(namespaces.by_watched)
        pod_monitors = PodMonitors(cluster, namespaces, settings.resync_seconds, clock)
        claims = RepositoryClaims(cluster, UsersClaims(cluster, settings.resync_seconds, clock))
        applier, reporter = Applier(cluster), Reporter(cluster)
        metrics.observe_reverts(applier.reverts.counts)
        kinds = reconciled_kinds(
            Observer(index, asking, pod_monitors, claims, JobRefusals(cluster, clock)),
            PoolObserver(index, pod_monitors, claims),
        )
        reconciler = Reconciler(
            settings, index, cluster, kinds, pod_monitors, applier, reporter, clock, slow_loop, memory, fleet
        )  # fmt: skip
        loop = Loop(
            reconciler.reconcile, index.reconciled_keys, metrics,
            concurrency=settings.concurrency, resync_s=settings.resync_seconds, clock=clock,
        )  # fmt: skip
        watches = WatchCheck(cluster, index, namespaces, clock, loop.enqueue)
        metrics.observe_leader(lambda: elector is None or elector.is_leader)
        app = build_app(
            lambda: find_problems(loop, watches, clock), lambda: _readiness(elector, watches, namespaces), metrics
        )
        http = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        stack.push_async_callback(http.cleanup)
        port = await _listen(http, settings.http_port)
        on_listening(port)
        logger.info("listening on port %d", port)

        async def work() -> None:
            nonlocal ending
            if await _crd_is_there(cluster, clock, stop) and await rights.wait_for_one(stop):
                metrics.observe_services(index.count_by_ready, index.declared_workers, index.conditions)
                intake = Intake(index, loop.enqueue, reporter.is_echo)
                registry = build_registry(_noting_events(intake.take, metrics, clock))
                prepare = partial(release_all, index.reconciled_keys, reconciler.release)
                parts = OperatorParts(namespaces, rights, registry, loop, slow_loop, watches, http, prepare)
                ending = await _run_until(stop, parts)

        await (work() if elector is None else elector.lead(stop, work))
    logger.info("stopped")
    return ending


@dataclass(frozen=True, slots=True)
class OperatorParts:
    namespaces: Namespaces
    rights: NamespaceRights
    registry: kopf.OperatorRegistry
    loop: Loop
    slow_loop: SlowLoop
    watches: WatchCheck
    http: web.AppRunner
    prepare: Callable[[], Awaitable[None]]
    """Done once all is known, before anything is reconciled."""


async def _run_until(stop: asyncio.Event, parts: OperatorParts) -> Ending:
    kopf_stop = asyncio.Event()

    async def work() -> None:
        await parts.watches.caught_up.wait()
        _stop_on_signals(stop)  # kopf has put its own handlers in the place of ours
        logger.info("the watches have begun")
        await parts.prepare()
        await parts.loop.run()

    working = asyncio.create_task(work(), name="loop")
    checking = asyncio.create_task(parts.watches.run(), name="watch check")
    watching = asyncio.create_task(_watch(parts.registry, parts.namespaces, kopf_stop), name="kopf")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    opening = asyncio.create_task(parts.rights.wait_for_another(), name="namespaces")
    tasks = {working, checking, watching, stopping, opening}
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping, because %s ended", " and ".join(sorted(task.get_name() for task in ended)))

    # What is under way is finished first. kopf comes last: it waits for tasks that it does not know, and ends them.
    parts.loop.stop()
    if not parts.watches.caught_up.is_set():
        working.cancel()
    checking.cancel()
    stopping.cancel()
    opening.cancel()
    await asyncio.wait({working, checking, stopping, opening})
    await parts.slow_loop.close()
    await parts.http.cleanup()
    kopf_stop.set()
    _, hanging = await asyncio.wait({watching}, timeout=KOPF_STOP_S)
    for task in hanging:
        task.cancel()
    results = await asyncio.gather(working, checking, watching, opening, return_exceptions=True)
    failures = [
        result
        for result in results
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError)
    ]
    if failures and not await parts.rights.have_changed():
        raise failures[0]
    if stop.is_set():
        return Ending.STOPPED
    # A watch that was refused has ended kopf where the rights in its namespace are gone.
    return Ending.OTHER_NAMESPACES if failures or opening in ended else Ending.STOPPED


async def _watch(registry: kopf.OperatorRegistry, namespaces: Namespaces, stop: asyncio.Event) -> None:
    # kopf would make its identity from the name of the process's user, which a pod's user has not.
    options: dict[str, Any] = {"identity": MANAGER, "standalone": True, "stop_flag": stop}
    where = {"namespaces": list(namespaces.watched)} if namespaces.named else {"clusterwide": True}
    await kopf.operator(registry=registry, settings=build_kopf_settings(), **options, **where)


def _readiness(elector: Elector | None, watches: WatchCheck, namespaces: Namespaces) -> ReadinessAnswer:
    if elector is not None and elector.is_standing_by:
        return ReadinessAnswer(Readiness.STANDING_BY)
    state = Readiness.READY if watches.caught_up.is_set() else Readiness.STARTING
    return ReadinessAnswer(state, namespaces.remark)


async def _crd_is_there(cluster: Cluster, clock: Clock, stop: asyncio.Event) -> bool:
    """Waits for both, since kopf is told to look only once; False: told to stop meanwhile."""
    said = ""
    while not stop.is_set():
        try:
            missing = [kind for kind in RECONCILED if not await cluster.has_kind(kind)]
            if not missing:
                return True
            names = " and ".join(f"{kind.plural}.{kind.group}" for kind in missing)
            problem = f"the CustomResourceDefinition of {names} is not installed yet"
        except OperatorError as error:
            problem = str(error)
        if problem != said:
            logger.warning("waiting: %s", problem)
            said = problem
        await clock.wait(stop, CRD_POLL_S)
    return False


async def _listen(http: web.AppRunner, port: int) -> int:
    await http.setup()
    try:
        # All interfaces of both families, but for tests, which let the system choose the port.
        await web.TCPSite(http, host=None if port else "127.0.0.1", port=port).start()
    except OSError as error:
        raise ResourceError(f"port {port} cannot be listened on: {error.strerror}; set another httpPort") from error
    return int(http.addresses[0][1])


def _noting_events(take: Take, metrics: Metrics, clock: Clock) -> Take:
    last = clock.now()

    def note(change: str | None, body: Manifest) -> None:
        nonlocal last
        last = clock.now()
        take(change, body)

    metrics.observe_last_event(lambda: clock.now() - last)
    return note


def _stop_on_signals(stop: asyncio.Event) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
