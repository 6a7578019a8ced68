"""An engine that gathers once what a chunk reads several times: the same answers, less link; measured at start."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
from tests.support.gpu.gpu_revisions import engine_of, means, revision, some_seeds, use_small_chunks
from tests.support.gpu.interposed import Interposed
from tests.support.gpu.interpreter import skip_overflow_checks

from gnnserve_api.device import CachePolicy
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.memory import Ledger
from gnnserve_worker.gpu.sharing import SharingCost, decide_sharing, share_where_it_pays
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision

NODES, WIDTH = 20_000, 160
BUCKETS = (1, 2)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, BUCKETS[-1])
    skip_overflow_checks(monkeypatch)


@pytest.fixture(scope="module")
def loaded() -> LoadedRevision:
    return revision(nodes=NODES, width=WIDTH)


def _engine(
    loaded: LoadedRevision, accelerator: Accelerator, policy: CachePolicy, ledger: Ledger | None = None
) -> GpuEngine:
    """The graph in the GPU's memory with room for 10 MB beside it, which the table does not fit into."""
    ample = engine_of(loaded, accelerator, means(CachePolicy.NONE)).stats().memory_bytes
    needed = ample["weights"] + ample["buffers"] + ample["graph"]
    return engine_of(loaded, accelerator, means(policy, needed + 10_000_000, ledger))


@pytest.mark.parametrize("policy", [CachePolicy.NONE, CachePolicy.DEGREE])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT"])
def test_answers_are_the_cpus_and_less_comes_over_the_link(
    architecture: str, policy: CachePolicy, accelerator: Accelerator
) -> None:
    loaded = revision(architecture, nodes=NODES, width=WIDTH, heads=2 if architecture == "GAT" else None)
    engine = _engine(loaded, accelerator, policy)
    seeds = some_seeds(5, NODES)
    assert engine.sharing == loaded.variants.keys()

    def link_bytes(shared_from: dict[str, int]) -> tuple[int, int, int]:
        engine.share_rows(shared_from)
        before = engine.stats()
        answer = engine.infer("x1", seeds, 3)
        after = engine.stats()
        expected = infer_batch(loaded, "x1", seeds, 3).scores
        np.testing.assert_allclose(answer.scores, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
        gathered = answer.gathered_bytes
        return after.link_bytes - before.link_bytes, after.repeated_rows - before.repeated_rows, gathered

    assert engine.has_cache == (policy is not CachePolicy.NONE)
    direct, shared = link_bytes({}), link_bytes({"x1": 1})

    assert direct[1] == 0 < shared[1]
    assert direct[2] == shared[2], "what a batch gathers is what it reads"
    if not engine.has_cache:  # which counts its misses itself, round by round
        assert shared[0] == direct[0] - shared[1] * 4 * WIDTH


def test_only_chunks_that_are_large_enough_share_rows(loaded: LoadedRevision, interposed: Interposed) -> None:
    engine = _engine(loaded, interposed, CachePolicy.NONE)
    engine.share_rows({"x1": 2})

    engine.infer("x1", some_seeds(3, NODES), 1)
    engine.infer("x2", some_seeds(2, NODES), 1)

    assert set(interposed.captured) == {("x1", 1, False, False), ("x1", 2, False, True), ("x2", 2, False, False)}


def test_where_every_table_is_in_the_gpus_memory_there_is_nothing_to_share(accelerator: Accelerator) -> None:
    engine = engine_of(revision(), accelerator)

    assert engine.sharing == set()
    with pytest.raises(ValueError, match="none over the link: x1"):
        engine.share_rows({"x1": 1})
    assert share_where_it_pays(engine, some_seeds(2), rounds=1) == {}


def test_its_room_is_taken_from_the_cache_and_counted_as_buffers(
    loaded: LoadedRevision, accelerator: Accelerator
) -> None:
    ledger = Ledger()
    engine = _engine(loaded, accelerator, CachePolicy.DEGREE, ledger)
    before = engine.stats().memory_bytes
    assert sum(before.values()) == ledger.claimed_bytes

    engine.give_back_distinct_room()

    after = engine.stats().memory_bytes
    assert engine.sharing == set()
    assert before["buffers"] > after["buffers"]
    assert sum(after.values()) == ledger.claimed_bytes
    assert {**before, "buffers": 0} == {**after, "buffers": 0}
    seeds = some_seeds(3, NODES)
    expected = infer_batch(loaded, "x1", seeds, 3).scores
    np.testing.assert_allclose(engine.infer("x1", seeds, 3).scores, expected, atol=1e-4)


class _Clock:
    """A clock by which batches take as long as a test says, by whether they share rows."""

    def __init__(self, engine: GpuEngine, took_ms: Callable[[bool], float]) -> None:
        self._engine, self._took_ms = engine, took_ms
        self._now_s, self._asked = 0.0, 0

    def __call__(self) -> float:
        self._asked += 1
        if self._asked % 2 == 0:
            self._now_s += self._took_ms(bool(self._engine._shared_from)) / 1e3
        return self._now_s


def test_rows_are_shared_where_that_was_faster_and_the_log_says_so(
    loaded: LoadedRevision, interposed: Interposed, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _engine(loaded, interposed, CachePolicy.NONE)

    with caplog.at_level(logging.INFO):
        costs = share_where_it_pays(
            engine, some_seeds(4, NODES), 1, _Clock(engine, lambda shared: 1.0 if shared else 2.0)
        )

    assert {name: (cost.seeds, cost.pays) for name, cost in costs.items()} == {"x1": (2, True), "x2": (2, True)}
    assert "x1 that are read several times are shared in parts of 1 seeds or more: 1.000 ms, and 2.000" in caplog.text
    captured = list(interposed.captured)
    repeated = engine.stats().repeated_rows
    engine.infer("x1", some_seeds(5, NODES), 1)
    assert engine.stats().repeated_rows > repeated
    assert interposed.captured == captured, "what was measured is captured"


def test_where_it_was_no_faster_its_room_is_given_back_and_nothing_else_is_captured_anew(
    loaded: LoadedRevision, interposed: Interposed, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _engine(loaded, interposed, CachePolicy.NONE)

    def decide(warm: GpuEngine) -> None:
        share_where_it_pays(warm, some_seeds(4, NODES), 1, _Clock(warm, lambda _: 1.0))

    with caplog.at_level(logging.INFO):
        engine.warm_up(decide)

    assert "x1 that are read several times are not shared: 1.000 ms, and 1.000 without" in caplog.text
    assert engine.sharing == set()
    captured, repeated = list(interposed.captured), engine.stats().repeated_rows
    engine.infer("x1", some_seeds(5, NODES), 1)
    assert interposed.captured == captured
    assert engine.stats().repeated_rows == repeated


def test_no_rounds_measure_nothing(loaded: LoadedRevision, accelerator: Accelerator) -> None:
    engine = _engine(loaded, accelerator, CachePolicy.NONE)

    assert share_where_it_pays(engine, np.zeros(0, np.int64), rounds=1) == {}
    assert share_where_it_pays(engine, some_seeds(2, NODES), rounds=0) == {}
    assert (engine.sharing, engine.stats().repeated_rows) == (set(), 0)


@pytest.mark.parametrize(
    ("saved", "shared_from"),
    [
        pytest.param({256: 0.5, 128: 0.5, 64: 0.5, 32: 0.5}, 32, id="all chunks"),
        pytest.param({256: 0.5, 128: 0.5, 64: 0.0, 32: 0.5}, 128, id="down to the first that it does not pay for"),
        pytest.param({256: 0.04, 128: 0.5, 64: 0.5, 32: 0.5}, None, id="none, where the largest gain next to nothing"),
        pytest.param({256: -0.5}, None, id="none, where it costs"),
    ],
)
def test_the_smallest_chunk_that_it_pays_for_is_found_from_the_largest(
    saved: dict[int, float], shared_from: int | None
) -> None:
    measured: list[int] = []

    def measure(seeds: int) -> SharingCost:
        measured.append(seeds)
        return SharingCost(seeds, 1.0, 1.0 - saved[seeds])

    found, largest = decide_sharing((32, 64, 128, 256), measure)

    assert found == shared_from
    assert largest == SharingCost(256, 1.0, 1.0 - saved[256])
    assert measured == sorted(measured, reverse=True)
