"""The GPU's engine against the CPU's: the same answers, in chunks, over the link and through a cache."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import (
    NODES,
    WIDTH,
    engine_of,
    means,
    projected_revision,
    revision,
    some_seeds,
    use_small_chunks,
)
from tests.support.gpu.gpu_twin import Twin
from tests.support.gpu.interposed import Interposed
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.graphs.graphs import network_manifest, random_tensors
from tests.support.lacks import needs_gpu, needs_no_gpu

from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import DeviceError
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu import engine as engine_module
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import tensor_over
from gnnserve_worker.gpu.cuda import use_first_gpu
from gnnserve_worker.gpu.engine import GpuEngine, chunk_bounds
from gnnserve_worker.gpu.memory import RESERVE_BYTES, HostMemory, Ledger
from gnnserve_worker.gpu.pinned import pin
from gnnserve_worker.gpu.placement import parts_of
from gnnserve_worker.gpu.resident import LANES, Resident, make_resident
from gnnserve_worker.inference.batch import Inference, infer_batch
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tables.table import map_array

ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
only_twins = needs_no_gpu("kernels are compiled for the GPU of this machine")

LARGE_NODES, LARGE_WIDTH = 20_000, 160
"""A table of 12.8 MB: a cache of it has room for what it needs beside its slots."""
TABLE_BYTES = 4 * LARGE_NODES * LARGE_WIDTH


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 2)
    skip_overflow_checks(monkeypatch)


def _large_revision() -> LoadedRevision:
    return revision(nodes=LARGE_NODES, width=LARGE_WIDTH)


def _assert_alike(one: Inference, other: Inference) -> None:
    """But for the order of sums."""
    _assert_close(one.scores, other.scores)
    assert (one.embeddings is None) == (other.embeddings is None)
    if one.embeddings is not None and other.embeddings is not None:
        _assert_close(one.embeddings, other.embeddings)


def _assert_close(one: np.ndarray, other: np.ndarray) -> None:
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(np.abs(other).max()))


@ARCHITECTURES
def test_each_variant_samples_its_own_hops(architecture: str, accelerator: Accelerator) -> None:
    made = revision(architecture, (3, 2))
    fewer = replace(made.variants["x2"], name="x2-f2x1", fanouts=(2, 1))
    loaded = replace(made, variants={**made.variants, "x2-f2x1": fewer})
    engine = engine_of(loaded, accelerator)
    seeds = some_seeds(5)

    for name in ("x2-f2x1", "x1", "x2-f2x1"):
        found, expected = engine.infer(name, seeds, key=4), infer_batch(loaded, name, seeds, key=4)
        _assert_alike(found, expected)


@ARCHITECTURES
def test_a_network_with_fewer_channels_is_served_beside_the_whole_one(
    architecture: str, accelerator: Accelerator
) -> None:
    made, narrow = revision(architecture, (3, 2)), network_manifest(architecture, (3, 2), hidden=4)
    weights = random_tensors(narrow, WIDTH, seed=6)
    network = build_network(narrow, weights, WIDTH, projected=False, compute="float32")
    variants = {**made.variants, "channels2": replace(made.variants["x1"], name="channels2", network=network)}
    loaded = replace(made, variants=variants)
    engine, seeds = engine_of(loaded, accelerator), some_seeds(5)

    for name in ("channels2", "x1", "channels2"):
        _assert_alike(engine.infer(name, seeds, key=4), infer_batch(loaded, name, seeds, key=4))


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(5,), (4, 3), (3, 2, 2), (2, 2, 2, 2)], ids=str)
def test_answers_are_the_cpus_for_networks_of_one_to_four_layers(
    architecture: str, fanouts: tuple[int, ...], accelerator: Accelerator
) -> None:
    loaded = revision(architecture, fanouts)
    engine = engine_of(loaded, accelerator)

    for variant in loaded.variants:
        seeds = some_seeds(3)
        _assert_alike(engine.infer(variant, seeds, 11), infer_batch(loaded, variant, seeds, 11))


@ARCHITECTURES
@pytest.mark.parametrize("storage", list(Storage))
def test_answers_are_the_cpus_for_every_storage(architecture: str, storage: Storage, accelerator: Accelerator) -> None:
    loaded = revision(architecture, storage=storage)
    seeds = some_seeds(4)

    answer = engine_of(loaded, accelerator).infer("x2", seeds, 5)

    _assert_alike(answer, infer_batch(loaded, "x2", seeds, 5))


@ARCHITECTURES
@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.INT8])
@pytest.mark.parametrize("fanouts", [(5,), (4, 3)], ids=str)
def test_answers_are_the_cpus_from_projected_tables(
    architecture: str, storage: Storage, fanouts: tuple[int, ...], accelerator: Accelerator
) -> None:
    loaded = projected_revision(architecture, fanouts, storage)
    seeds = some_seeds(4)

    answer = engine_of(loaded, accelerator).infer("projected", seeds, 5)

    _assert_alike(answer, infer_batch(loaded, "projected", seeds, 5))


def test_a_batch_larger_than_a_chunk_keeps_its_order_and_takes_several_lanes(accelerator: Accelerator) -> None:
    loaded = revision()
    engine = engine_of(loaded, accelerator)
    seeds = some_seeds(2 * LANES + 3)

    answer = engine.infer("x1", seeds, 2)

    _assert_alike(answer, infer_batch(loaded, "x1", seeds, 2))
    if isinstance(accelerator, Twin):
        assert accelerator.most_at_once == LANES


def test_answers_are_new_arrays(accelerator: Accelerator) -> None:
    engine = engine_of(revision(), accelerator)
    first = engine.infer("x1", some_seeds(2), 1)
    kept = first.scores.copy()

    engine.infer("x1", some_seeds(2) + 1, 2)

    np.testing.assert_array_equal(first.scores, kept)
    assert first.scores.flags.owndata


def test_stage_times_add_up_to_the_time_that_passed(accelerator: Accelerator) -> None:
    engine = engine_of(revision(), accelerator)
    passed: list[float] = []
    clock = iter([10.0, 10.5])

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            passed.append(next(clock))
            return passed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "time", Clock)
        times = engine.infer("x1", some_seeds(1), 1).times

    assert times.total_ms == pytest.approx(500)
    assert min(times.sample_ms, times.gather_ms, times.compute_ms) > 0


def test_gathered_bytes_are_those_of_a_cpu_that_shares_no_rows(accelerator: Accelerator) -> None:
    loaded = _large_revision()
    seeds = np.arange(5)

    of_gpu = engine_of(loaded, accelerator).infer("x2", seeds, 1).gathered_bytes

    assert of_gpu == infer_batch(loaded, "x2", seeds, 1).gathered_bytes


@pytest.mark.parametrize(
    ("seeds", "largest", "bounds"),
    [(1, 4, [0, 1]), (4, 4, [0, 4]), (5, 4, [0, 1, 5]), (8, 4, [0, 4, 8]), (11, 4, [0, 3, 7, 11])],
)
def test_only_the_first_chunk_is_not_full(seeds: int, largest: int, bounds: list[int]) -> None:
    assert chunk_bounds(seeds, largest) == bounds


def test_warm_up_captures_all_that_any_batch_needs(interposed: Interposed) -> None:
    engine = engine_of(revision(), interposed)
    engine.warm_up()
    captured = list(interposed.captured)

    for seeds in (*range(1, 6), 2 * LANES + 1):
        engine.infer("x1", some_seeds(seeds), 1)

    assert interposed.captured == captured
    assert set(captured) == {(name, bucket, False, False) for name in ("x1", "x2") for bucket in (1, 2)}


def test_what_does_not_fit_comes_over_the_link(accelerator: Accelerator) -> None:
    loaded = revision()
    engine = engine_of(loaded, accelerator, means(CachePolicy.NONE, limit_bytes=_required(loaded)))
    seeds = some_seeds(5)

    answer = engine.infer("x1", seeds, 3)

    _assert_alike(answer, infer_batch(loaded, "x1", seeds, 3))
    stats = engine.stats()
    assert stats.memory_bytes["tables"] == stats.memory_bytes["graph"] == stats.memory_bytes["cache"] == 0
    assert stats.link_bytes == answer.gathered_bytes
    if isinstance(accelerator, Twin):  # a GPU may have to copy arrays that share a page
        assert stats.problem is None


@pytest.mark.parametrize("fanouts", [(5,), (4, 3)], ids=str)
def test_what_comes_over_the_link_is_counted_by_where_the_array_lies(
    fanouts: tuple[int, ...], accelerator: Accelerator
) -> None:
    """Own rows of a projected table are an array apart: one may be on the device, and the other not."""
    loaded = projected_revision("GraphSAGE", fanouts, Storage.FLOAT32)
    resident, seeds = make_resident(loaded, accelerator, means(CachePolicy.NONE)), some_seeds(4)
    here, there = frozenset[str](), frozenset({"projected"})
    engines: list[GpuEngine] = []  # the first that goes releases what all of them have

    def link_bytes(own: frozenset[str], neighbours: frozenset[str]) -> int:
        engines.append(GpuEngine(loaded, replace(resident, own_on_host=own, on_host=neighbours)))
        gathered.append(engines[-1].infer("projected", seeds, 1).gathered_bytes)
        return engines[-1].stats().link_bytes

    gathered: list[int] = []
    of_own, of_neighbours = link_bytes(there, here), link_bytes(here, there)
    assert of_own + of_neighbours == link_bytes(there, there) == gathered[0]
    assert link_bytes(here, here) == 0
    row_bytes = 4 * loaded.variants["projected"].columns
    assert of_own == len(seeds) * row_bytes or (len(fanouts) > 1 and of_own > len(seeds) * row_bytes)


def test_own_rows_that_do_not_fit_are_known_to_lie_on_the_host(accelerator: Accelerator) -> None:
    loaded = projected_revision("GraphSAGE", (4, 3), Storage.FLOAT32)
    parts = {part.name: part.size_bytes for part in parts_of(loaded)}
    room = sum(parts.values()) - parts["projected-float32 own rows"]

    resident = make_resident(loaded, accelerator, means(CachePolicy.NONE, _required(loaded) + room))

    assert (resident.own_on_host, resident.on_host) == ({"projected"}, frozenset())


def _required(loaded: LoadedRevision) -> int:
    """Of memory, without which nothing goes."""
    ledger = Ledger()
    ample = engine_of(loaded, Twin(), means(CachePolicy.NONE, ledger=ledger)).stats().memory_bytes
    return ample["weights"] + ample["buffers"]


def test_less_than_the_least_memory_is_an_error_that_says_how_much(accelerator: Accelerator) -> None:
    loaded = revision()
    ledger = Ledger()

    with pytest.raises(DeviceError, match=r"need [\d,]+ bytes of its memory, of which 1,000 are to be had"):
        engine_of(loaded, accelerator, means(limit_bytes=1000, ledger=ledger))

    assert ledger.claims == []


def test_two_revisions_share_the_budget_and_the_second_gets_less(accelerator: Accelerator) -> None:
    loaded, ledger = revision(), Ledger()
    limit = _required(loaded) * 2 + loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes + 4 * 16 * NODES
    first = engine_of(loaded, accelerator, means(limit_bytes=limit, ledger=ledger))
    second = engine_of(loaded, accelerator, means(limit_bytes=limit, ledger=ledger))

    taken = [sum(engine.stats().memory_bytes.values()) for engine in (first, second)]

    assert taken[1] < taken[0]
    assert sum(taken) <= limit
    seeds = some_seeds(3)
    _assert_alike(second.infer("x1", seeds, 1), first.infer("x1", seeds, 1))


def test_an_engine_that_nobody_refers_to_releases_what_it_held(accelerator: Accelerator) -> None:
    ledger = Ledger()
    loaded = revision()
    engine = engine_of(loaded, accelerator, means(limit_bytes=_required(loaded), ledger=ledger))
    engine.infer("x1", some_seeds(2), 1)
    assert len(ledger.claims) == 1

    del engine
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "gpu-release":
            thread.join()

    assert ledger.claims == []
    if isinstance(accelerator, Twin):
        assert accelerator.registered == {}


class TestCached:
    """A table that is larger than the memory, and a cache of a part of it."""

    @pytest.fixture
    def loaded(self) -> LoadedRevision:
        return _large_revision()

    @pytest.fixture
    def limit_bytes(self, loaded: LoadedRevision) -> int:
        """For the graph, and 10 MB: not for the table."""
        return _required(loaded) + loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes + 10_000_000

    @pytest.mark.parametrize("policy", [CachePolicy.FREQUENCY, CachePolicy.PRESAMPLED])
    def test_answers_are_the_cpus(
        self, policy: CachePolicy, loaded: LoadedRevision, limit_bytes: int, accelerator: Accelerator
    ) -> None:
        engine = engine_of(loaded, accelerator, means(policy, limit_bytes))
        assert 0 < engine.stats().memory_bytes["cache"] <= 10_000_000 < TABLE_BYTES
        engine.warm_up()
        seeds = some_seeds(5, LARGE_NODES)

        for variant in loaded.variants:
            _assert_alike(engine.infer(variant, seeds, 3), infer_batch(loaded, variant, seeds, 3))

    @only_twins
    def test_a_cache_may_lie_on_two_devices(self, loaded: LoadedRevision, limit_bytes: int) -> None:
        twin = Twin(lenders=(torch.device("cpu"),))
        resident = make_resident(loaded, twin, means(CachePolicy.DEGREE, limit_bytes))
        engine = GpuEngine(loaded, resident)
        seeds = some_seeds(5, LARGE_NODES)

        engine.warm_up()

        _assert_alike(engine.infer("x1", seeds, 3), infer_batch(loaded, "x1", seeds, 3))
        here, there = resident.caches["x1"].memory_bytes
        assert max(here, there) < limit_bytes < here + there

    def test_a_live_switch_finds_room_beside_a_cache(
        self, loaded: LoadedRevision, limit_bytes: int, accelerator: Accelerator
    ) -> None:
        ledger = Ledger()
        first = engine_of(loaded, accelerator, means(CachePolicy.DEGREE, limit_bytes, ledger))
        assert first.has_cache

        second = engine_of(_large_revision(), accelerator, means(CachePolicy.DEGREE, limit_bytes, ledger))

        assert "another revision had" not in (first.stats().problem or "")
        assert "another revision had" in (second.stats().problem or "")
        seeds = some_seeds(3, LARGE_NODES)
        _assert_alike(second.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))
        assert sum(sum(engine.stats().memory_bytes.values()) for engine in (first, second)) <= limit_bytes

    @only_twins
    def test_rows_that_were_altered_for_a_while_are_not_answered_from_the_cache(
        self, loaded: LoadedRevision, limit_bytes: int
    ) -> None:
        """The file is written to in place, the updater copies what it has then, and somebody puts it back."""
        resident = make_resident(loaded, Twin(), means(CachePolicy.FIFO, limit_bytes))
        engine, cache = GpuEngine(loaded, resident), resident.caches["x1"]
        cache.begin()
        rows, seeds = loaded.variants["x1"].table.rows.values, some_seeds(4, LARGE_NODES)
        rows.setflags(write=True)
        expected, kept = infer_batch(loaded, "x1", seeds, 3), rows.copy()
        rows *= 5
        engine.infer("x1", seeds, 3)
        cache.run_round()
        rows[...] = kept
        assert not np.allclose(engine.infer("x1", seeds, 3).scores, expected.scores), "as long as nobody says so"

        engine.forget_copies()

        _assert_alike(engine.infer("x1", seeds, 3), expected)
        assert cache.run_round().refreshed > 0
        before = engine.stats().hits
        _assert_alike(engine.infer("x1", seeds, 3), expected)
        cache.run_round()
        assert engine.stats().hits > before, "and they are copied again"

    @only_twins
    @pytest.mark.parametrize("limited", [True, False], ids=["within a limit", "within what is free"])
    def test_after_a_live_switch_a_revision_is_given_what_the_one_before_had(
        self, loaded: LoadedRevision, limit_bytes: int, limited: bool
    ) -> None:
        """Switch after switch: it says when it would have more, and loaded again beside itself, it has it."""
        ledger, room = Ledger(), limit_bytes + 100_000
        limit = room if limited else None

        def load() -> Resident:
            # What is free, is so but for what is claimed, and the share and the reserve that are left alone.
            free = 2**40 if limited else int((room - ledger.claimed_bytes + RESERVE_BYTES) / 0.95) + 2
            twins.append(Twin(free))
            return make_resident(loaded, twins[-1], means(CachePolicy.DEGREE, limit, ledger))

        def release(resident: Resident) -> None:
            resident.release()
            if not limited:
                for twin in twins:
                    twin.free = int((room - ledger.claimed_bytes + RESERVE_BYTES) / 0.95) + 2

        twins: list[Twin] = []
        answering = load()
        alone = dict(answering.memory_bytes), answering.cache_bytes
        assert alone[1][0] > 5_000_000
        assert not answering.would_gain()
        for _ in range(2):
            cramped = load()
            assert cramped.cache_bytes == (0,)
            assert any("another revision had" in problem for problem in cramped.problems)
            assert not cramped.would_gain(), "the other one still has it"
            release(answering)
            assert cramped.would_gain()

            answering = load()
            assert not cramped.would_gain()
            release(cramped)
            assert dict(answering.memory_bytes) == alone[0]
            assert answering.cache_bytes[0] == pytest.approx(alone[1][0], rel=1e-3)
            assert answering.problems == ()
            assert not answering.would_gain()
        release(answering)
        assert ledger.claims == []

    @only_twins
    def test_memory_of_other_gpus_is_shared_by_revisions_and_said(
        self, loaded: LoadedRevision, limit_bytes: int
    ) -> None:
        ledger, twin = Ledger(), Twin(lenders=(torch.device("cpu"),))
        wanted = means(CachePolicy.DEGREE, limit_bytes, ledger)
        first = engine_of(loaded, twin, wanted)
        lent = ledger.of_lender(0).claimed_bytes

        second = engine_of(_large_revision(), twin, wanted)

        assert first.stats().memory_bytes["lent"] == lent > 0
        assert ledger.of_lender(0).claimed_bytes <= limit_bytes
        assert second.stats().memory_bytes.get("lent", 0) == ledger.of_lender(0).claimed_bytes - lent
        first.give_back_cache()
        assert "lent" not in first.stats().memory_bytes
        assert ledger.of_lender(0).claimed_bytes == second.stats().memory_bytes.get("lent", 0)

    def test_a_cache_that_is_given_back_is_anothers_to_take(
        self, loaded: LoadedRevision, limit_bytes: int, accelerator: Accelerator
    ) -> None:
        ledger = Ledger()
        wanted = means(CachePolicy.DEGREE, limit_bytes, ledger)
        first = engine_of(loaded, accelerator, wanted)

        first.give_back_cache()

        assert ledger.claimed_bytes == sum(first.stats().memory_bytes.values())
        second = engine_of(_large_revision(), accelerator, wanted)
        assert second.has_cache
        assert "another revision had" not in (second.stats().problem or "")

    def test_a_cache_that_is_given_back_is_read_no_more(
        self, loaded: LoadedRevision, limit_bytes: int, accelerator: Accelerator
    ) -> None:
        engine = engine_of(loaded, accelerator, means(CachePolicy.DEGREE, limit_bytes))
        seeds = some_seeds(5, LARGE_NODES)
        engine.infer("x1", seeds, 3)

        engine.give_back_cache()

        assert not engine.has_cache
        assert engine.stats().memory_bytes["cache"] == 0
        _assert_alike(engine.infer("x1", seeds, 3), infer_batch(loaded, "x1", seeds, 3))


@only_twins
class TestPinning:
    def test_a_graph_that_cannot_be_pinned_goes_onto_the_device_first(self) -> None:
        loaded = revision()
        room = loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes + 100
        twin = Twin(refuse=_refuse(lambda size_bytes: size_bytes < 16_384))

        engine = engine_of(loaded, twin, means(CachePolicy.NONE, _required(loaded) + room))

        assert engine.stats().memory_bytes["graph"] == loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes

    def test_a_graph_that_neither_can_be_pinned_nor_fits_is_an_error(self) -> None:
        loaded, ledger = revision(), Ledger()
        twin = Twin(refuse=_refuse(lambda _: True))

        with pytest.raises(DeviceError, match=r"graph: .*cannot be pinned.*RLIMIT_MEMLOCK"):
            engine_of(loaded, twin, means(limit_bytes=_required(loaded), ledger=ledger))

        assert ledger.claims == []
        assert twin.registered == {}

    def test_a_table_that_cannot_be_pinned_leaves_its_variants_to_the_cpu(self) -> None:
        loaded = revision()
        projected = projected_revision("GraphSAGE", (4, 3), Storage.FLOAT32)
        both = _with_variants(loaded, projected)
        room = loaded.variants["x1"].table.rows.values.nbytes
        graph_bytes = loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes
        twin = Twin(refuse=_refuse(lambda _: True))

        engine = engine_of(both, twin, means(CachePolicy.NONE, _required(both) + graph_bytes + room))

        assert engine.variants == {"x1", "x2"}
        assert "projected is computed on the CPU" in (engine.stats().problem or "")

    def test_a_copy_is_pinned_and_said_where_mappings_cannot_be(self) -> None:
        loaded = revision()
        twin = Twin(refuse=lambda _size, read_only: "CUDA_ERROR_NOT_SUPPORTED" if read_only else None)

        engine = engine_of(loaded, twin, means(CachePolicy.NONE, _required(loaded)))

        assert "CUDA_ERROR_NOT_SUPPORTED" in (engine.stats().problem or "")
        seeds = some_seeds(3)
        _assert_alike(engine.infer("x1", seeds, 1), infer_batch(loaded, "x1", seeds, 1))


def _refuse(wanted: Callable[[int], bool]) -> Callable[[int, bool], str | None]:
    return lambda size_bytes, _read_only: "CUDA_ERROR_OUT_OF_MEMORY" if wanted(size_bytes) else None


def _with_variants(loaded: LoadedRevision, other: LoadedRevision) -> LoadedRevision:
    return replace(loaded, variants={**loaded.variants, **other.variants})


@pytest.mark.gpu
@needs_gpu()
class TestOnGpu:
    def test_graphs_of_two_engines_run_at_once(self) -> None:
        """While one is warmed up, which captures, the other answers."""
        accelerator = use_first_gpu()
        loaded = revision()
        engine = engine_of(loaded, accelerator)
        engine.warm_up()
        seeds = some_seeds(40)
        expected = infer_batch(loaded, "x1", seeds, 1)
        ended = threading.Event()
        failures: list[BaseException] = []

        def warm_up_others() -> None:
            try:
                for _ in range(5):
                    engine_of(loaded, accelerator).warm_up()
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=warm_up_others)
        thread.start()
        while not ended.is_set():
            _assert_alike(engine.infer("x1", seeds, 1), expected)
        thread.join()
        assert failures == []

    def test_pages_may_be_released_by_another_thread_and_then_pinned_again(self) -> None:
        accelerator = use_first_gpu()
        array = np.ones((64, 4096), np.float32)

        for _ in range(2):
            pinned = pin("x", array, accelerator, HostMemory())
            assert pinned.array is array
            thread = threading.Thread(target=pinned.release)
            thread.start()
            thread.join()

    def test_kernels_read_a_mapped_file_or_its_copy(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.arange(2**20, dtype=np.float32))
        accelerator = use_first_gpu()
        pinned = pin("x", map_array(tmp_path / "x.npy"), accelerator, HostMemory())

        on_device = tensor_over(pinned.array).to(accelerator.device, non_blocking=True)

        torch.cuda.synchronize()
        assert torch.equal(on_device.cpu(), torch.arange(2**20, dtype=torch.float32))
        pinned.release()

    def test_stages_take_time_and_add_up_to_less_than_passed(self) -> None:
        runner = use_first_gpu().runner()
        numbers = torch.ones(2**24, device="cuda")

        for _ in range(3):
            started = time.perf_counter()
            runner.run("a key", [lambda: numbers.mul_(1.0), lambda: numbers.add_(0.0)])
            stages = runner.wait()
            passed_ms = (time.perf_counter() - started) * 1e3
            assert len(stages) == 2
            assert min(stages) > 0
            assert sum(stages) <= passed_ms

    def test_what_failed_while_capturing_is_raised_and_what_was_forgotten_is_captured_anew(self) -> None:
        runner = use_first_gpu().runner()
        numbers = torch.ones(16, device="cuda")

        def add() -> None:
            numbers.add_(1.0)

        def fail() -> None:
            if torch.cuda.is_current_stream_capturing():
                raise torch.OutOfMemoryError("CUDA out of memory")

        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                runner.run("a key", [add, fail])
            runner.abandon()
            runner.forget()
        runner.run("a key", [add])
        assert len(runner.wait()) == 1

    def test_float32_products_are_not_rounded_to_tf32(self) -> None:
        use_first_gpu()
        rows, weight = torch.randn(64, 512), torch.randn(512, 64)
        exact = rows.double() @ weight.double()
        found = (rows.cuda() @ weight.cuda()).cpu().double()
        assert float((found - exact).abs().max()) < 1e-3
