"""A worker without kernels or files: profiles with exact costs, and a revision whose answers name their question.

Run as a program, it is such a worker in a process of its own, for what only a process can show (signals, exit codes).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.profiles import NETWORK, revision_manifest, variants_of

from gnnserve_api.families import CHANGED_GRAPH, STORED_GRAPH
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import Storage
from gnnserve_worker.asking.asked_nodes import AskedNodes
from gnnserve_worker.asking.changed_features import KnownFeatures, UnknownFeatures
from gnnserve_worker.asking.features import GivenFeatures
from gnnserve_worker.asking.overlay import GraphOverlays, NoOverlays, Overlays, OverlaySupport, StandIn
from gnnserve_worker.asking.overlay_ids import IdsAlone
from gnnserve_worker.asking.question import Wishes
from gnnserve_worker.asking.served_graph import ServedGraph, plain_graph
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.inference.batch import Inference, StageTimes
from gnnserve_worker.inference.served import ServedCompute, ServedRevision
from gnnserve_worker.inference.served_changes import MarkedGoneNodes, NoGoneNodes, NoLog, ServedChanges
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process.server import serve_revision
from gnnserve_worker.serving.requests import Outcome, PendingRequest, Question
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.tasks.opening import TaskParts
from gnnserve_worker.tasks.score_links.links import ServedLinks
from gnnserve_worker.tasks.serving import opener_of

NODES = 1000
CLASSES = (10, 20, 30, 40)
HIDDEN = 3
NO_SPLITS = Splits(*(np.zeros(0, np.int64) for _ in range(3)))
HELD_NODE = 999
"""Node for which, in `main`, a batch waits for a line on standard input."""


def variant(name: str, accuracy: float, base_ms: float, seed_ms: float = 0.0) -> VariantProfile:
    """Costs `base_ms + seeds · seed_ms`, exactly."""
    points = tuple(
        LatencyProfile(
            seeds=seeds, runs=1, p50_ms=cost_ms, p99_ms=cost_ms, mean_ms=cost_ms, std_ms=0, sample_ms=0, gather_ms=0,
            compute_ms=0, gathered_bytes=0, window_p50_ms=0, window_mean_ms=0, window_std_ms=0,
        )
        for seeds in (1, 2)
        for cost_ms in [base_ms + seeds * seed_ms]
    )  # fmt: skip
    return VariantProfile(
        name=name, factor=int(name[1:]), table="features-float32", columns=1, storage=Storage.FLOAT32, projected=False,
        compute="float32", validation_accuracy=accuracy, test_accuracy=accuracy, latency=points, test_latency=None,
        size_bytes=1,
        memory_bytes=1,
    )  # fmt: skip


def profile(*variants: VariantProfile) -> Profile:
    return Profile(metric="accuracy", machine="a test", threads=1, validation_nodes=1, test_nodes=1, variants=variants)


TRADE_OFF = profile(
    variant("x1", 0.90, 10, 0.1),  # 1 seed: 10.1 ms, 100 seeds: 20 ms
    variant("x4", 0.89, 4, 0.04),  # 10 permille below x1; 4.04 ms, 8 ms
    variant("x8", 0.87, 2, 0.02),  # 30 permille below x1; 2.02 ms, 4 ms
)


def without_overlays(of: Profile, *names: str) -> Profile:
    """The same profile, in which these variants answer about the stored graph only."""
    return msgspec.structs.replace(
        of,
        variants=tuple(
            msgspec.structs.replace(variant, family="propagated") if variant.name in names else variant
            for variant in of.variants
        ),
    )


def service(objective: dict[str, float] | None = None, max_seeds: int = 100, max_queued_seeds: int = 500) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "digits"},
            "spec": {
                "graph": {"source": {"builtin": "Digits"}},
                "objective": objective or {},
                "worker": {"batching": {"maxSeeds": max_seeds, "maxQueuedSeeds": max_queued_seeds}},
            },
        }
    )


@dataclass(slots=True, weakref_slot=True)
class FakeWorker:
    """Scores are highest for class `(node + shift) % 4`; embeddings repeat the node's id."""

    name: str = "f0eae20c16c00ac0-1"
    """Name of its revision."""
    nodes: int = NODES
    shift: int = 0
    loaded: bool = True
    """False: `running` leaves the engine without a revision."""
    layers: int = 2
    multi_label: bool = False
    classes: Classes = CLASSES
    ids: NodeIds | None = None
    profile: Profile = TRADE_OFF
    fail: Callable[[str, np.ndarray], None] = lambda _variant, _seeds: None
    """Raises where a batch should fail."""
    thresholds: tuple[float, ...] | None = None
    """Thresholds of each of its variants."""
    links: ServedLinks | None = None
    """What makes scores of pairs of the scores of their nodes; None: nodes are classified."""
    poisoned: int | None = None
    """A node whose scores are NaN."""
    overlays: OverlaySupport | None = None
    edge_rules: EdgeRules | None = None
    assumptions: dict[str, str] | UnsetType = UNSET
    """What is assumed of weights that were trained elsewhere."""
    updates: FakeUpdates | None = None
    """The log of changes of its graph; None: the graph does not change."""
    is_gone: np.ndarray | None = None
    """Whether each node has left; None: nodes do not leave."""
    is_changing: bool = False
    """Whether a batch would wait for changes that are being applied."""
    is_elsewhere: bool = False
    """Whether another process computes its batches."""
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released as each batch starts."""
    gate: threading.Event = field(default_factory=threading.Event)
    """Batches wait for it; open unless a test closes it."""
    batches: list[tuple[str, list[int]]] = field(default_factory=list)
    views: list[BatchView | None] = field(default_factory=list)
    """View of each batch."""

    def __post_init__(self) -> None:
        self.gate.set()

    def graph(self, asked: AskedNodes) -> ServedGraph:
        return plain_graph(self.ids, self.nodes, asked)

    def revision(self) -> ServedRevision:
        manifest = msgspec.structs.replace(
            revision_manifest(self.name), edge_rules=self.edge_rules, assumptions=self.assumptions
        )
        network = msgspec.structs.replace(NETWORK, fanouts=(25, 10, 5)[: self.layers])
        variants = tuple(
            msgspec.structs.replace(
                variant,
                thresholds=self.thresholds,
                calibration=None if self.links is None else self.links.calibrations[variant.name],
            )
            for variant in variants_of(self.profile, network)
        )
        manifest = msgspec.structs.replace(manifest, profile=self.profile, variants=variants)
        of_task = manifest if self.links is None else msgspec.structs.replace(manifest, links=self.links.manifest)
        opener = opener_of(of_task)
        graph = self.graph(opener.asked(of_task))
        overlays = _overlays_of(self.overlays, graph)
        parts = TaskParts(
            manifest=of_task,
            graph=graph,
            provenance=provenance_of(manifest, "builtin Digits", 18, 9),
            classes=self.classes,
            multi_label=self.multi_label,
            splits=NO_SPLITS,
            overlays=overlays,
            folder=Path(),
        )
        return ServedRevision(
            manifest=manifest,
            graph=graph,
            task=opener.open(parts),
            compute=ServedCompute(
                infer=self.infer,
                warm_up=lambda: None,
                overlays=overlays,
                is_elsewhere=self.is_elsewhere,
            ),
            changes=ServedChanges(
                features=UnknownFeatures("")
                if self.overlays is None
                else KnownFeatures((self.overlays.columns,), lambda _: 0),
                log=NoLog() if self.updates is None else FakeLog(self.updates),
                gone=NoGoneNodes() if self.is_gone is None else MarkedGoneNodes(self.is_gone),
                would_wait=lambda: self.is_changing,
                needed=STORED_GRAPH if self.updates is None else CHANGED_GRAPH,
            ),
        )

    def infer(
        self, variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True, view: BatchView | None = None
    ) -> Inference:
        self.batches.append((variant, seeds.tolist()))
        self.views.append(view)
        self.started.release()
        self.gate.wait()
        self.fail(variant, seeds)
        scores = np.full((len(seeds), len(CLASSES)), -1, np.float32)
        scores[np.arange(len(seeds)), (seeds + self.shift) % len(CLASSES)] = 1
        if self.poisoned is not None:
            scores[seeds == self.poisoned] = np.nan
        embeddings = None
        if with_embeddings and self.layers > 1:
            embeddings = np.repeat(seeds[:, None], HIDDEN, axis=1).astype(np.float32)
        return Inference(scores, embeddings, StageTimes(0.001, 0.002, 0.003), gathered_bytes=0)

    async def batch_started(self) -> None:
        await asyncio.to_thread(self.started.acquire)


@dataclass(frozen=True, slots=True)
class FakeLog(NoLog):
    """A `served_changes.GraphLog` that tells how far a fake log is applied."""

    updates: FakeUpdates

    @property
    def offset(self) -> int:  # type: ignore[override]
        return self.updates.applied


@dataclass(slots=True, weakref_slot=True)
class OpenedWorker(FakeWorker):
    """A worker with a revision that was opened."""

    served: ServedRevision | None = None

    def revision(self) -> ServedRevision:
        assert self.served is not None
        return self.served


def with_compute(revision: ServedRevision, **parts: Any) -> ServedRevision:
    """The same revision, of which other parts compute."""
    return replace(revision, compute=replace(revision.compute, **parts))


def _no_stand_in(node: int) -> StandIn:
    raise AssertionError(f"nothing stands for node {node} of a made-up graph")


def _overlays_of(support: OverlaySupport | None, graph: ServedGraph, why: str = "") -> Overlays:
    """Of nodes without a type. None: requests bring nothing, and `why`."""
    if support is None:
        return NoOverlays(why)
    types = (GivenFeatures(support.columns, support.features_of),)
    return GraphOverlays(IdsAlone(graph.naming), types, support, _no_stand_in)


def with_overlays(revision: ServedRevision, support: OverlaySupport | None, why: str = "") -> ServedRevision:
    """The same revision, to which requests bring what `support` reads; None: nothing, and `why`."""
    overlays = _overlays_of(support, revision.graph, why)
    return with_compute(revision, overlays=overlays)


@dataclass(frozen=True, slots=True)
class Client:
    http: httpx.AsyncClient
    engine: Engine
    model: ServedModel
    metrics: ServingMetrics
    app: ServingApp

    async def predict(self, nodes: Any, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/predict", json={"nodes": nodes, **fields})

    def switch(self, revision: ServedRevision, of: GNNService | None = None) -> None:
        """Switches as `ServedService.switch` does, on the event loop."""
        spec = (of or service()).spec
        if self.model.lane is None or self.model.lane.revision is not revision:
            self.metrics.show_revision(revision.manifest, load_s=0.5)
        self.model.switch(revision, spec.routing_table(revision.manifest.revision))


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that a model accepted."""

    pending: PendingRequest
    outcome: asyncio.Future[Outcome]


def submit(
    model: ServedModel,
    nodes: list[int],
    objective: Objective = NO_OBJECTIVE,
    *,
    strict: bool = False,
    embeddings: bool = False,
    at: float = 0.0,
    overlay: Overlay | None = None,
    seed: int | None = None,
) -> Submitted | Refusal:
    assert model.lane is not None
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    outputs = ("scores", "embeddings") if embeddings else ("scores",)
    question = Question(model.lane, np.array(nodes), outputs, Wishes(objective, strict, seed), overlay)
    pending = model.submit(question, at, outcome.set_result)
    return pending if isinstance(pending, Refusal) else Submitted(pending, outcome)


def accepted(model: ServedModel, nodes: list[int], objective: Objective = NO_OBJECTIVE, **options: Any) -> Submitted:
    submitted = submit(model, nodes, objective, **options)
    assert isinstance(submitted, Submitted), submitted
    return submitted


async def held(worker: FakeWorker, client: Client, node: int = 0) -> Submitted:
    """A request that is being computed until the gate opens, so that others gather behind it."""
    worker.gate.clear()
    submitted = accepted(client.model, [node])
    await worker.batch_started()
    return submitted


@asynccontextmanager
async def running(
    worker: FakeWorker,
    of: GNNService | None = None,
    clock_ms: Callable[[], float] = monotonic_ms,
    access: Access | None = None,
    write_access: Access | None = None,
) -> AsyncIterator[Client]:
    """A ready engine and its application, without sockets."""
    of = of or service()
    metrics = ServingMetrics(of.metadata.name)
    engine = Engine({of.metadata.name: metrics}, clock_ms)
    app = ServingApp(of.metadata.name, engine, metrics, access, write_access=write_access, updates=worker.updates)
    engine.start()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://worker") as http:
            client = Client(http, engine, engine.models[of.metadata.name], metrics, app)
            if worker.loaded:
                client.switch(worker.revision(), of)
                assert engine.state is ModelState.READY
            yield client
    finally:
        worker.gate.set()
        engine.drain()
        await asyncio.to_thread(engine.join)


def hold(_variant: str, seeds: np.ndarray) -> None:
    if HELD_NODE in seeds:
        print("held", flush=True)
        sys.stdin.readline()


def main() -> None:
    """Prints its port when ready, `held` when the held node's batch waits; a line on standard input lets it go."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    serve_revision(FakeWorker(fail=hold).revision(), service(), sock, lambda _: print(port, flush=True))


if __name__ == "__main__":
    main()
