"""A served revision whose batches a GPU computes: the door to this floor (`pods/device.py` opens it).

The profile of a revision says what batches take on the processor that it was made on. Here they take something else,
so a short measurement of the same variants at the same batch sizes takes its place in the manifest that is served,
before anything is served: the batcher's costs are right from the first request on. Accuracies stay, since answers are
the same.
What is measured beside another revision that answers meanwhile comes out too slow, and is corrected by the batches that
follow, as ever (`scheduling/variants.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import DeviceError, DeviceLostError
from gnnserve_api.files.profile import LatencyProfile, NewNodesLatency, Profile
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.cuda import use_first_gpu
from gnnserve_worker.gpu.device_errors import LASTING, Consequence, advice_on, consequence_of, describe
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.failure import START_ANEW, TRUST, GuardedEngine, Trust
from gnnserve_worker.gpu.memory import HOST, LEDGER, HostMemory, Ledger
from gnnserve_worker.gpu.resident import CrowdedError, Means, make_resident
from gnnserve_worker.gpu.sharing import share_where_it_pays
from gnnserve_worker.inference.batch import Inference, infer_each, warm_up, with_cascades
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.inference.latency import measure_latencies, measure_new_nodes
from gnnserve_worker.inference.opening import computing
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import BatchView

_BUDGET_S = 0.5
"""Seconds to measure one batch size, over all variants."""
_ROUNDS = (5, 200)
_NEW_NODES_BUDGET_S = 0.1
_NEW_NODES_ROUNDS = (3, 50)
_log = logging.getLogger(__name__)


def serve_on_gpu(
    loaded: LoadedRevision,
    served: ServedRevision,
    policy: CachePolicy,
    limit_bytes: int | None,
    *,
    may_fall_back: bool,
    use: Callable[[], Accelerator] = use_first_gpu,
    ledger: Ledger = LEDGER,
    host: HostMemory = HOST,
    trust: Trust = TRUST,
) -> ServedRevision:
    """`served`, by a GPU, ready to answer. `limit_bytes`: of the GPU's memory, for all revisions together; None: all
    that is free. By the CPU where only another revision leaves it no room, and that may be. DeviceError: no GPU can
    serve it."""
    if trust.lost is not None:
        raise DeviceLostError(trust.lost, START_ANEW)
    if any(FULL_NEIGHBOURHOOD in variant.fanouts for variant in loaded.variants.values()):
        raise DeviceError(
            "fan-outs of -1 read whole neighbourhoods, which the GPU does not sample",
            "give spec.model.fanouts numbers, or use spec.worker.device: CPU",
        )
    is_crowded = bool(ledger.claimed_bytes)
    try:
        # Before anything is copied, so that what is written meanwhile is copied again.
        written = served.changes.log.note_written()
        engine = GpuEngine(loaded, make_resident(loaded, use(), Means(policy, limit_bytes, ledger, host)), written)
        engine.warm_up(lambda warm: share_where_it_pays(warm, loaded.labels.splits.validation))
        profile = _measured_here(served, loaded, engine)
    except CrowdedError as error:
        if not may_fall_back:
            raise
        return _until_it_fits(served, error, ledger, trust)
    except DeviceError:
        raise
    except Exception as error:
        problem = f"it cannot serve this revision: {describe(error)}"
        consequence = consequence_of(error)
        if consequence is Consequence.MEMORY:
            lack = DeviceError(
                problem, "give it more by spec.worker.gpuMemory (--gpu-memory), or end what else uses it"
            )
            if is_crowded and may_fall_back:
                return _until_it_fits(served, lack, ledger, trust)
            raise lack from error
        if consequence in LASTING:
            raise DeviceLostError(trust.lose(f"{problem}{advice_on(consequence)}"), START_ANEW) from error
        # What answers on the GPU meanwhile can go on, and what is missing may come.
        _log.error("%s", problem, exc_info=error)
        raise DeviceError(problem, "the log says where; spec.worker.device (--device) CPU does without") from error
    stats = engine.stats()
    if engine.variants != loaded.variants.keys() and not may_fall_back:
        raise DeviceError(
            stats.problem or "its memory has no room for every table",
            "allow the pod to lock memory (RLIMIT_MEMLOCK), use a GPU with more memory, or spec.worker.device: Auto",
        )
    parts = ", ".join(f"{part} {size:,}" for part, size in stats.memory_bytes.items())
    _log.info("on %s: %s of %s bytes of its memory", stats.device, parts, f"{stats.memory_budget_bytes:,}")
    guarded = GuardedEngine(loaded, engine, trust, may_fall_back=may_fall_back)
    # Warming up is as before: the CPU finds ids, and is to answer at once where the GPU is lost.
    compute = replace(
        served.compute,
        **computing(guarded.infer, loaded, served.manifest, served.task, served.changes),
        device_stats=guarded.stats,
        forget_copies=guarded.forget_copies,
        would_gain=guarded.would_gain,
    )
    return replace(served, manifest=msgspec.structs.replace(served.manifest, profile=profile), compute=compute)


def _until_it_fits(served: ServedRevision, why: DeviceError, ledger: Ledger, trust: Trust) -> ServedRevision:
    """Serve by the CPU as long as another revision holds the memory."""
    stats = DeviceStats("CPU", problem=str(why))
    compute = replace(
        served.compute,
        device_stats=lambda: stats,
        would_gain=lambda: ledger.claimed_bytes == 0 and trust.lost is None,
    )
    return replace(served, compute=compute)


def _measured_here(served: ServedRevision, loaded: LoadedRevision, engine: GpuEngine) -> Profile:
    """The same variants and batch sizes, on this device; those that are left to the CPU, on that."""
    manifest, profile = served.manifest, served.manifest.profile
    if engine.variants != loaded.variants.keys():
        warm_up(loaded)  # or what is compiled and loaded at first would be measured
    names = [variant.name for variant in profile.variants]
    latencies: dict[str, list[LatencyProfile]] = {name: [] for name in names}

    def infer_network(
        variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True, view: BatchView | None = None
    ) -> Inference:
        if variant in engine.variants:
            return engine.infer_each(variant, seeds, key, with_embeddings=with_embeddings, view=view)
        return infer_each(loaded, variant, seeds, key, with_embeddings=with_embeddings, view=view)

    infer = partial(with_cascades(infer_network, manifest.cascades, served.task.decides), with_embeddings=False)
    for point in profile.variants[0].latency:
        measured = measure_latencies(
            infer, names, loaded.labels.splits.validation, point.seeds, budget_s=_BUDGET_S, rounds=_ROUNDS
        )
        for name in names:
            latencies[name].append(measured[name])
    new_nodes: dict[str, list[NewNodesLatency]] = {name: [] for name in names}
    able = [variant for variant in profile.variants if variant.new_nodes]
    for seeds in [point.seeds for variant in able[:1] for point in variant.new_nodes]:
        of_new = measure_new_nodes(
            infer, [variant.name for variant in able], loaded, loaded.labels.splits.validation, seeds,
            budget_s=_NEW_NODES_BUDGET_S, rounds=_NEW_NODES_ROUNDS,
        )  # fmt: skip
        for name, latency in of_new.items():
            new_nodes[name].append(latency)
    return msgspec.structs.replace(
        profile,
        machine=engine.stats().device,
        variants=tuple(
            msgspec.structs.replace(
                variant,
                latency=tuple(latencies[variant.name]),
                test_latency=None,  # it was measured elsewhere
                new_nodes=tuple(new_nodes[variant.name]),
            )
            for variant in profile.variants
        ),
    )
