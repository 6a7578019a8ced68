"""A GPU that fails: who answers then, what is said, and that no wrong answer is among it."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import NODES, projected_revision, published, revision, some_seeds, use_small_chunks
from tests.support.gpu.interposed import Interposed
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.overlays.overlays import arrange_overlay
from tests.support.serving.serving import FakeWorker, running, with_overlays

import gnnserve_worker.gpu.failure as failure_module
import gnnserve_worker.gpu.served as served_module
import gnnserve_worker.gpu.sharing as sharing_module
from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import DeviceError, DeviceLostError, RepositoryError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.variants import Storage
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.failure import MOST_FAILED, Trust
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.served import serve_on_gpu
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.inference.batch import Inference, infer_batch, infer_each
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.pods.device import DeviceSettings, open_served
from gnnserve_worker.pods.environment import exit_of
from gnnserve_worker.repository.watched import FileChange, FileFinding
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.engine.model import ModelState

LAUNCH_FAILURE = torch.AcceleratorError(
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported"
)
FAILURES = {
    "a launch failure": LAUNCH_FAILURE,
    "a device off the bus": RuntimeError("CUDA error: no CUDA-capable device is detected"),
    "an illegal address": RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
}
REFUSED = RuntimeError("Triton Error [CUDA]: too many resources requested for launch")
REFUSALS = {
    "a launch that did not occur": REFUSED,
    "a broken capture": RuntimeError("CUDA error: operation failed due to a previous error during capture"),
    "a compiler that is missing": RuntimeError("Failed to find C compiler. Please specify via CC"),
}
MEMORY = {
    "torch's": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    "Triton's": RuntimeError("Triton Error [CUDA]: out of memory"),
    "a library's": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
}
LARGE_NODES, LARGE_WIDTH = 20_000, 160


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 2)
    skip_overflow_checks(monkeypatch)
    monkeypatch.setattr(sharing_module, "ROUNDS", 0)
    monkeypatch.setattr(served_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_ROUNDS", (1, 1))


@dataclass(slots=True)
class Process:
    """What revisions of one process share."""

    gpu: Interposed
    ledger: Ledger = field(default_factory=Ledger)
    trust: Trust = field(default_factory=Trust)

    def serve(
        self, loaded: LoadedRevision, *, may_fall_back: bool = True, limit_bytes: int | None = None
    ) -> ServedRevision:
        arrange = partial(arrange_overlay, loaded.graph, EdgeRules(Direction.DIRECTED))
        by_cpu = with_overlays(
            served_revision(loaded), OverlaySupport(FeatureColumns(loaded.new_nodes.features, ()), arrange)
        )
        return serve_on_gpu(
            loaded, by_cpu, CachePolicy.DEGREE, limit_bytes, may_fall_back=may_fall_back,
            use=lambda: self.gpu, ledger=self.ledger, host=HostMemory(), trust=self.trust,
        )  # fmt: skip


@pytest.fixture
def process(interposed: Interposed) -> Process:
    return Process(interposed)


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Nobody looks for them: what is not free without, is not free when it is needed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _engine_of(served: ServedRevision) -> GpuEngine:
    guarded: Any = served.compute.infer
    engine = guarded.__self__._engine
    assert isinstance(engine, GpuEngine)
    return engine


@pytest.fixture
def loaded() -> LoadedRevision:
    """Networks of one layer: who answers does not depend on their number, and the interpreter takes half the time."""
    return published(revision(fanouts=(2,)))


def _assert_alike(one: Inference, other: Inference) -> None:
    np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-5)


def test_a_gpu_serves_with_its_own_latencies_and_the_revisions_accuracies(
    process: Process, loaded: LoadedRevision
) -> None:
    served = process.serve(loaded)

    assert loaded.manifest is not None
    before, after = loaded.manifest.profile, served.manifest.profile
    assert after.machine == process.gpu.name
    assert [v.validation_accuracy for v in after.variants] == [v.validation_accuracy for v in before.variants]
    assert [point.seeds for point in after.variants[0].latency] == [point.seeds for point in before.variants[0].latency]
    assert after.variants[0].latency[0].runs == 1
    assert after.variants[0].latency[0].p50_ms != before.variants[0].latency[0].p50_ms
    stats = served.compute.device_stats()
    assert (stats.device, stats.problem) == (process.gpu.name, None)
    assert served.compute.overlays.array_form.are_taken
    assert set(stats.memory_bytes) == {"graph", "tables", "weights", "buffers", "cache"}
    assert sum(stats.memory_bytes.values()) <= stats.memory_budget_bytes


def test_a_batch_with_a_request_that_has_a_seed_is_answered_as_by_the_cpu(
    process: Process, loaded: LoadedRevision
) -> None:
    served, seeds = process.serve(loaded), some_seeds(5)
    view = view_of(NODES, [Part(2, None, None), Part(3, None, 17)], seeds)

    answer = served.compute.infer("x1", seeds, 9, view=view)

    _assert_alike(answer, infer_batch(loaded, "x1", seeds, 9, view=view))
    assert served.compute.device_stats().device == process.gpu.name


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_under_auto_the_cpu_answers_the_very_batch_that_failed(
    failure: Exception, process: Process, loaded: LoadedRevision
) -> None:
    served = process.serve(loaded)
    process.gpu.failures = [failure]
    seeds = some_seeds(7)

    answer = served.compute.infer("x1", seeds, 9)

    _assert_alike(answer, infer_batch(loaded, "x1", seeds, 9))
    stats = served.compute.device_stats()
    assert stats.device == "CPU"
    assert str(failure).splitlines()[0] in (stats.problem or "")
    assert "asynchronously" not in (stats.problem or "")
    assert "start the worker anew" in (stats.problem or "")


def test_after_a_loss_nothing_of_the_process_uses_the_gpu(process: Process, loaded: LoadedRevision) -> None:
    served = process.serve(loaded)
    process.gpu.failures = [LAUNCH_FAILURE]
    served.compute.infer("x1", some_seeds(1), 1)
    captured = list(process.gpu.captured)

    served.compute.infer("x2", some_seeds(2), 1)
    with pytest.raises(DeviceLostError, match="unspecified launch failure"):
        process.serve(loaded)

    assert process.gpu.captured == captured


def test_a_loss_by_one_revision_holds_for_the_other(process: Process, loaded: LoadedRevision) -> None:
    """The one that answers, when the GPU fails while its successor is warmed up beside it."""
    served, alone = process.serve(loaded), process.serve(loaded, may_fall_back=False)
    process.gpu.failures = [LAUNCH_FAILURE]
    with pytest.raises(DeviceLostError):
        process.serve(loaded)
    captured, seeds = list(process.gpu.captured), some_seeds(3)

    assert served.compute.device_stats().device == "CPU", "said before the next batch"
    _assert_alike(served.compute.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))
    with pytest.raises(DeviceLostError, match="unspecified launch failure"):
        alone.compute.infer("x1", seeds, 1)

    assert process.gpu.captured == captured
    assert "start the worker anew" in (served.compute.device_stats().problem or "")


def test_the_memory_of_a_gpu_that_failed_is_free_while_the_cpu_answers(
    process: Process, loaded: LoadedRevision, no_cycles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []

    def answer(*of: Any, **options: bool) -> Inference:
        kept.append(engine())
        return infer_batch(*of, **options)

    monkeypatch.setattr(failure_module, "infer_batch", answer)
    served = process.serve(loaded)
    engine = weakref.ref(_engine_of(served))
    process.gpu.failures = [MEMORY["torch's"]]
    served.compute.infer("x1", some_seeds(1), 1)

    assert kept == [None]


def test_with_the_gpu_alone_a_loss_is_an_error_that_ends_the_process(process: Process, loaded: LoadedRevision) -> None:
    served = process.serve(loaded, may_fall_back=False)
    process.gpu.failures = [LAUNCH_FAILURE]

    with pytest.raises(DeviceLostError, match=r"no GPU can be used: the GPU failed .*unspecified launch") as raised:
        served.compute.infer("x1", some_seeds(3), 1)

    assert exit_of(raised.value) is PodExit.DEVICE


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("may_fall_back", [True, False])
def test_a_batch_that_is_refused_once_is_answered_by_the_gpu_at_the_second_try(
    refusal: Exception, may_fall_back: bool, process: Process, loaded: LoadedRevision
) -> None:
    served, seeds = process.serve(loaded, may_fall_back=may_fall_back), some_seeds(3)
    captured = len(process.gpu.captured)
    process.gpu.failures = [refusal]

    answer = served.compute.infer("x1", seeds, 1)

    _assert_alike(answer, infer_batch(loaded, "x1", seeds, 1))
    assert (served.compute.device_stats().device, served.compute.device_stats().problem) == (process.gpu.name, None)
    assert len(process.gpu.captured) > captured, "nothing that was captured is relied on"
    assert process.trust.lost is None


def test_a_batch_that_is_refused_twice_is_the_cpus_and_the_next_one_is_the_gpus(
    process: Process, loaded: LoadedRevision
) -> None:
    served, seeds = process.serve(loaded), some_seeds(2)
    for times in range(2 * MOST_FAILED):
        process.gpu.failures = [REFUSED, REFUSED]

        _assert_alike(served.compute.infer("x1", seeds, times), infer_batch(loaded, "x1", seeds, times))
        assert "the CPU has answered a batch that the GPU did not carry out" in (
            served.compute.device_stats().problem or ""
        )
        served.compute.infer("x1", seeds, times)

        assert served.compute.device_stats().device == process.gpu.name, (
            "batches in a row are counted, and this one succeeded"
        )


def test_a_gpu_that_carries_out_no_batch_any_more_is_left_by_its_revision_alone(
    process: Process, loaded: LoadedRevision
) -> None:
    served, other, seeds = process.serve(loaded), process.serve(loaded), some_seeds(2)
    process.gpu.failures = [REFUSED] * (2 * MOST_FAILED)

    for times in range(MOST_FAILED):
        assert served.compute.device_stats().device == process.gpu.name
        _assert_alike(served.compute.infer("x1", seeds, times), infer_batch(loaded, "x1", seeds, times))

    assert served.compute.device_stats().device == "CPU"
    assert "did not carry out batches" in (served.compute.device_stats().problem or "")
    other.compute.infer("x1", seeds, 1)
    assert other.compute.device_stats().device == process.gpu.name


def test_with_the_gpu_alone_a_batch_that_is_refused_twice_ends_the_process(
    process: Process, loaded: LoadedRevision
) -> None:
    served = process.serve(loaded, may_fall_back=False)
    process.gpu.failures = [REFUSED, REFUSED]

    with pytest.raises(DeviceLostError, match="did not carry out batches") as raised:
        served.compute.infer("x1", some_seeds(2), 1)

    assert exit_of(raised.value) is PodExit.DEVICE


def test_a_context_that_turns_out_to_be_lost_at_the_second_try_is_not_used_again(
    process: Process, loaded: LoadedRevision
) -> None:
    """The refusal hid it: the device itself says so when it is waited for."""

    def fail() -> None:
        raise LAUNCH_FAILURE

    served, seeds = process.serve(loaded), some_seeds(2)
    process.gpu.failures, process.gpu.on_settle = [REFUSED], fail

    _assert_alike(served.compute.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))

    assert served.compute.device_stats().device == "CPU"
    assert "unspecified launch failure" in (process.trust.lost or "")


def test_of_a_card_that_is_broken_more_is_said_than_to_start_anew(process: Process, loaded: LoadedRevision) -> None:
    served = process.serve(loaded)
    process.gpu.failures = [RuntimeError("CUDA error: uncorrectable ECC error encountered")]

    served.compute.infer("x1", some_seeds(2), 1)

    assert "look at nvidia-smi, and for Xid" in (served.compute.device_stats().problem or "")


def test_what_was_refused_while_loading_is_no_loss(process: Process, loaded: LoadedRevision) -> None:
    served = process.serve(loaded, may_fall_back=False)
    process.gpu.failures = [REFUSED]

    with pytest.raises(DeviceError, match="too many resources") as raised:
        process.serve(loaded, may_fall_back=False)

    assert not isinstance(raised.value, DeviceLostError)
    served.compute.infer("x1", some_seeds(1), 1)
    assert served.compute.device_stats().device == process.gpu.name


def test_copies_that_cannot_be_forgotten_are_not_answered_from(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = published(revision(fanouts=(2,), nodes=LARGE_NODES, width=LARGE_WIDTH))
    served = process.serve(loaded, limit_bytes=11_500_000)
    seeds = some_seeds(3)

    def fail(_: object) -> None:
        raise LAUNCH_FAILURE

    served.compute.forget_copies()
    assert served.compute.device_stats().device == process.gpu.name
    monkeypatch.setattr(FeatureCache, "invalidate_all", fail)
    served.compute.forget_copies()
    served.compute.forget_copies()

    assert served.compute.device_stats().device == "CPU", "said before the next batch"
    _assert_alike(served.compute.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))
    served.compute.forget_copies()
    assert not served.compute.would_gain()


def test_lack_of_memory_beside_another_revision_may_be_over_when_that_one_is_gone(
    process: Process, loaded: LoadedRevision
) -> None:
    other = process.ledger.claim(1)
    process.gpu.failures = [torch.OutOfMemoryError("CUDA out of memory")]  # which nobody keeps, nor its traceback

    on_cpu = process.serve(loaded)

    assert "out of memory" in (on_cpu.compute.device_stats().problem or "")
    seeds = some_seeds(3)
    _assert_alike(on_cpu.compute.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))
    other.release()
    for thread in threading.enumerate():
        if thread.name == "gpu-release":
            thread.join()
    assert on_cpu.compute.would_gain()
    process.trust.lose("the GPU failed")
    assert not on_cpu.compute.would_gain()


def test_without_a_cache_lack_of_memory_moves_one_revision_to_the_cpu(process: Process, loaded: LoadedRevision) -> None:
    served, other = process.serve(loaded), process.serve(loaded)
    process.gpu.failures = [MEMORY["torch's"]]
    seeds = some_seeds(3)

    _assert_alike(served.compute.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))

    assert served.compute.device_stats().device == "CPU"
    assert "memory ran out" in (served.compute.device_stats().problem or "")
    other.compute.infer("x1", seeds, 1)
    assert other.compute.device_stats().device == process.gpu.name


class TestWithCache:
    @pytest.fixture
    def served(self, process: Process) -> ServedRevision:
        served = process.serve(self._loaded(), limit_bytes=11_500_000)
        assert served.compute.device_stats().memory_bytes["cache"] > 0
        return served

    def _loaded(self) -> LoadedRevision:
        return published(revision(fanouts=(2,), nodes=LARGE_NODES, width=LARGE_WIDTH))

    def test_lack_of_memory_costs_the_cache_and_nothing_else(self, process: Process, served: ServedRevision) -> None:
        process.gpu.failures = [MEMORY["torch's"]]
        seeds = some_seeds(5)

        answer = served.compute.infer("x1", seeds, 1)

        _assert_alike(answer, infer_batch(self._loaded(), "x1", seeds, 1))
        stats = served.compute.device_stats()
        assert stats.device == process.gpu.name
        assert stats.memory_bytes["cache"] == 0
        assert "the cache was given back" in (stats.problem or "")

    def test_the_caches_memory_is_free_when_the_batch_is_tried_again(
        self, process: Process, served: ServedRevision, no_cycles: None
    ) -> None:
        process.gpu.failures = [MEMORY["torch's"]]
        (cache,) = {weakref.ref(cache) for cache in _engine_of(served)._resident.caches.values()}
        kept: list[object] = []
        process.gpu.on_give_back = lambda: kept.append(cache())

        served.compute.infer("x1", some_seeds(5), 1)

        assert kept == [None]

    def test_lack_of_memory_that_stays_moves_it_to_the_cpu(self, process: Process, served: ServedRevision) -> None:
        process.gpu.failures = [MEMORY["torch's"], MEMORY["Triton's"]]
        seeds = some_seeds(2)

        _assert_alike(served.compute.infer("x1", seeds, 1), infer_batch(self._loaded(), "x1", seeds, 1))

        assert served.compute.device_stats().device == "CPU"


@pytest.mark.parametrize("may_fall_back", [True, False])
def test_a_failure_while_loading_is_an_error_and_leaves_nothing_taken(
    may_fall_back: bool, process: Process, loaded: LoadedRevision
) -> None:
    process.gpu.failures = [LAUNCH_FAILURE]

    with pytest.raises(DeviceLostError, match=r"it cannot serve this revision: .*unspecified launch failure"):
        process.serve(loaded, may_fall_back=may_fall_back)


def test_what_the_gpu_did_not_say_is_no_loss(process: Process, loaded: LoadedRevision) -> None:
    """A compiler that is missing in the image: the revision that answers goes on, and the next attempt may succeed."""
    served = process.serve(loaded, may_fall_back=False)
    process.gpu.failures = [RuntimeError("Failed to find C compiler. Please specify via CC environment variable")]

    with pytest.raises(DeviceError, match="Failed to find C compiler") as raised:
        process.serve(loaded, may_fall_back=False)

    assert not isinstance(raised.value, DeviceLostError)
    served.compute.infer("x1", some_seeds(1), 1)
    assert served.compute.device_stats().device == process.gpu.name
    assert process.serve(loaded, may_fall_back=False).compute.device_stats().device == process.gpu.name


def test_lack_of_memory_while_loading_may_be_over_at_the_next_attempt(process: Process, loaded: LoadedRevision) -> None:
    process.gpu.failures = [MEMORY["torch's"]]

    with pytest.raises(DeviceError, match="out of memory") as raised:
        process.serve(loaded)

    assert not isinstance(raised.value, DeviceLostError)
    assert process.serve(loaded).compute.device_stats().device == process.gpu.name


def test_what_keeps_a_revision_from_its_memory_is_said(process: Process, loaded: LoadedRevision) -> None:
    served = process.serve(loaded)
    limit = sum(served.compute.device_stats().memory_bytes.values())
    alone = Process(process.gpu)
    alone.ledger.claim(limit)

    said = rf"beside the {limit:,} of another revision; start the worker anew"
    with pytest.raises(DeviceError, match=said):
        alone.serve(loaded, limit_bytes=limit, may_fall_back=False)
    on_cpu = alone.serve(loaded, limit_bytes=limit)
    assert re.search(said, on_cpu.compute.device_stats().problem or "")
    assert not on_cpu.compute.would_gain()
    alone.ledger.claims.clear()
    assert on_cpu.compute.would_gain(), "and so it is loaded again"
    with pytest.raises(DeviceError, match=r"are to be had; give it more by spec\.worker\.gpuMemory"):
        alone.serve(loaded, limit_bytes=1)


def test_whole_neighbourhoods_are_not_for_the_gpu(process: Process) -> None:
    with pytest.raises(DeviceError, match="fan-outs of -1"):
        process.serve(published(revision(fanouts=(-1, -1))))


def test_with_the_gpu_alone_every_variant_has_to_be_on_it(process: Process, loaded: LoadedRevision) -> None:
    table_bytes = loaded.variants["x1"].table.rows.values.nbytes
    taken = process.serve(loaded).compute.device_stats().memory_bytes
    process.gpu.refuse = lambda _size, _read_only: "CUDA_ERROR_OUT_OF_MEMORY"
    limit = sum(taken.values()) - table_bytes
    process.ledger.claims.clear()

    with pytest.raises(DeviceError, match="cannot be pinned"):
        process.serve(loaded, may_fall_back=False, limit_bytes=limit)


def test_variants_that_are_left_to_the_cpu_are_measured_warm(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = published(revision(fanouts=(2, 2)))
    steps: list[str] = []

    def infer(*of: Any, **options: bool) -> Inference:
        steps.append(of[1])
        return infer_each(*of, **options)

    monkeypatch.setattr(served_module, "warm_up", lambda _: steps.append("warm up"))
    monkeypatch.setattr(served_module, "infer_each", infer)
    process.serve(loaded)
    assert steps == [], "all of them are on the GPU"
    projected = projected_revision("GraphSAGE", (2, 2), Storage.FLOAT32).variants["projected"]
    both = published(replace(loaded, variants={**loaded.variants, "x9": replace(projected, name="x9")}))
    needed = process.serve(both).compute.device_stats().memory_bytes
    room = loaded.variants["x1"].table.rows.values.nbytes - needed["tables"]
    process.gpu.refuse = lambda _size, _read_only: "CUDA_ERROR_OUT_OF_MEMORY"
    process.ledger.claims.clear()
    steps.clear()

    stats = process.serve(both, limit_bytes=sum(needed.values()) + room).compute.device_stats()

    assert "x9 is computed on the CPU" in (stats.problem or "")
    assert steps[0] == "warm up"
    assert set(steps[1:]) == {"x9"}


class _Real(FakeWorker):
    """A worker that answers from a given revision."""

    served: ServedRevision

    def revision(self) -> ServedRevision:
        return self.served


def _worker(served: ServedRevision) -> _Real:
    worker = _Real(nodes=NODES)
    worker.served = served
    return worker


def test_a_worker_goes_on_answering_over_http(process: Process, loaded: LoadedRevision) -> None:
    async def serve() -> tuple[Any, Any, Any]:
        async with running(_worker(process.serve(loaded))) as client:
            before = (await client.http.get("/v1/route")).json()
            process.gpu.failures = [LAUNCH_FAILURE]
            answer = await client.predict([1, 2, 3])
            return before, answer, (await client.http.get("/v1/route")).json()

    before, answer, after = asyncio.run(serve())

    assert before["device"] == process.gpu.name
    assert "deviceProblem" not in before
    assert answer.status_code == 200
    assert after["device"] == "CPU"
    assert "unspecified launch failure" in after["deviceProblem"]


def test_a_worker_of_the_gpu_alone_stops_and_asks_clients_to_come_again(
    process: Process, loaded: LoadedRevision, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> tuple[Any, Any, BaseException | None]:
        async with running(_worker(process.serve(loaded, may_fall_back=False))) as client:
            process.gpu.failures = [LAUNCH_FAILURE]
            answer = await client.predict([1, 2, 3])
            return answer, client.engine.state, client.engine.failure

    with caplog.at_level(logging.CRITICAL):
        answer, state, failure = asyncio.run(serve())

    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert state is ModelState.STOPPED
    assert isinstance(failure, DeviceLostError)
    assert "the engine stopped" in caplog.text


@pytest.mark.parametrize("change", [FileChange.WRITTEN, FileChange.REDATED, FileChange.TOUCHED, FileChange.MOVED])
def test_files_that_were_written_to_while_the_gpu_took_copies_are_refused(
    change: FileChange, process: Process, loaded: LoadedRevision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not one that only has another place: what is copied is what was verified."""
    files: Any = SimpleNamespace(look=lambda: [FileFinding(tmp_path / "table.npy", change, "is not as it was")])
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setitem(serve_on_gpu.__kwdefaults__, "use", lambda: process.gpu)
    monkeypatch.setitem(serve_on_gpu.__kwdefaults__, "ledger", process.ledger)

    with (
        nullcontext()
        if change is FileChange.MOVED
        else pytest.raises(RepositoryError, match=r"table\.npy: is not as it was, while it was being copied to the GPU")
    ):
        open_served(replace(loaded, origin=replace(loaded.origin, files=files)), DeviceSettings(), {}, tmp_path)


def test_networks_over_relations_are_left_to_the_cpu(loaded: LoadedRevision, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    by_relation: Any = SimpleNamespace(layers=(SimpleNamespace(),))
    variants = {name: replace(one, network=by_relation) for name, one in loaded.variants.items()}
    with pytest.raises(DeviceError, match="graphs of several types are computed on the CPU alone"):
        open_served(replace(loaded, variants=variants), DeviceSettings(Device.GPU), {}, tmp_path)


def test_where_a_gpu_is_seen_the_door_opens(
    process: Process, loaded: LoadedRevision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And under Auto, one that cannot be used is said and done without."""

    def no_driver() -> Interposed:
        raise DeviceError("CUDA cannot use it: no driver", "look at nvidia-smi")

    (tmp_path / "nvidiactl").touch()
    monkeypatch.setitem(serve_on_gpu.__kwdefaults__, "use", no_driver)

    served = open_served(loaded, DeviceSettings(), {}, tmp_path)

    assert served.compute.device_stats().device == "CPU"
    assert "no driver" in (served.compute.device_stats().problem or "")
    with pytest.raises(DeviceError, match="no driver"):
        open_served(loaded, DeviceSettings(Device.GPU), {}, tmp_path)
