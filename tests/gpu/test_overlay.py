"""What requests bring along, on a GPU: the CPU's answers, whatever the architecture, the table and where it lies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import engine_of, means, use_small_chunks
from tests.support.gpu.gpu_twin import Twin
from tests.support.gpu.interposed import Interposed
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.overlays.overlays import ARCHITECTURES, FEATURES, NODES, World, revision_over

import gnnserve_worker.gpu.buffers as buffers_module
import gnnserve_worker.gpu.kernels.attention as attention_module
import gnnserve_worker.gpu.kernels.gather as gather_module
import gnnserve_worker.gpu.served as served_module
import gnnserve_worker.gpu.viewed as viewed_module
from gnnserve_api.device import CachePolicy
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.profile import NewNodesLatency
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Architecture, Model
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceAggregation, DeviceRows, DeviceTable, PaddedTree
from gnnserve_worker.gpu.buffers import plan_lane
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.failure import GuardedEngine, Trust
from gnnserve_worker.gpu.memory import Ledger
from gnnserve_worker.gpu.resident import LANES, make_resident
from gnnserve_worker.gpu.served import serve_on_gpu
from gnnserve_worker.gpu.table_caches import make_cache, plan_caches, readers_of
from gnnserve_worker.inference.batch import Inference, infer_batch
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.tables.table import Aggregator, Own

FANOUTS = (3, 2)
CACHE_BYTES = 16_000
"""For half of the rows, beside what finds them."""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 4)
    skip_overflow_checks(monkeypatch)


def _world() -> World:
    world = World(21, EdgeRules(Direction.UNDIRECTED), new=3, overridden=2)
    gaining = next(node for node in world.edges.ravel() if node < NODES and node not in world.overridden)
    world.seeds = np.array([NODES, *world.overridden, gaining, 7, NODES + 2, NODES + 1])
    return world


def _revision(
    world: World,
    architecture: str = "GraphSAGE",
    storage: Storage = Storage.FLOAT32,
    fanouts: tuple[int, ...] = FANOUTS,
) -> LoadedRevision:
    scaling = Scaling(Normalization.L2_ROW_NORMALIZE)
    order = np.arange(FEATURES)[::-1]
    return revision_over(architecture, world.graph, world.features, scaling, storage, order, fanouts)


@dataclass(slots=True)
class Batch:
    """Requests with an overlay, with a seed, and with neither: one chunk has seeds of the second alone, the last one of
    the third."""

    world: World
    seeds: np.ndarray = field(init=False)
    view: BatchView = field(init=False)

    def __post_init__(self) -> None:
        overlay, numbered = self.world.arranged()
        parts = [Part(len(numbered), overlay, None), Part(2, overlay, 5), Part(7, None, 17), Part(4, None, None)]
        self.seeds = np.concatenate([numbered, numbered[:2], [3, 1, 5, 2, 6, 8, 11], [4, 9, 12, 30]]).astype(np.int64)
        view = view_of(NODES, parts, self.seeds)
        assert view is not None
        self.view = view


def _assert_alike(one: Inference, other: Inference) -> None:
    np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-5 * float(np.abs(other.scores).max()))
    assert one.gathered_bytes >= other.gathered_bytes > 0


def _assert_answers_are_the_cpus(loaded: LoadedRevision, engine: GpuEngine, world: World) -> None:
    for variant in loaded.variants:
        batch = Batch(world)
        found = engine.infer(variant, batch.seeds, 11, view=batch.view)
        _assert_alike(found, infer_batch(loaded, variant, batch.seeds, 11, view=batch.view))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_of_mixed_batches_are_the_cpus(architecture: str, accelerator: Accelerator) -> None:
    world = _world()
    loaded = _revision(world, architecture)

    _assert_answers_are_the_cpus(loaded, engine_of(loaded, accelerator), world)


def test_a_seed_that_a_request_repeats_is_computed_once(accelerator: Accelerator) -> None:
    world = _world()
    loaded = _revision(world)
    engine = engine_of(loaded, accelerator)
    overlay, numbered = world.arranged()
    once = engine.infer("x1", numbered[:3].copy(), 11, view=view_of(NODES, [Part(3, overlay, None)], numbered[:3]))
    repeated = np.tile(numbered[:3], 4)
    found = engine.infer("x1", repeated, 11, view=view_of(NODES, [Part(12, overlay, None)], repeated))

    np.testing.assert_allclose(found.scores, np.tile(once.scores, (4, 1)), rtol=0, atol=1e-5)
    assert found.gathered_bytes == once.gathered_bytes


@pytest.mark.parametrize(
    ("architecture", "storage"),
    [
        *(("GraphSAGE", storage) for storage in (Storage.FLOAT16, Storage.BFLOAT16, Storage.INT8)),
        ("GAT", Storage.INT8),
    ],
)
def test_rows_behind_are_stored_as_the_tables_are(
    architecture: str, storage: Storage, accelerator: Accelerator
) -> None:
    world = _world()
    loaded = _revision(world, architecture, storage)

    _assert_answers_are_the_cpus(loaded, engine_of(loaded, accelerator), world)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_a_chunk_is_sampled_in_pieces_on_several_processors(
    architecture: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewed_module, "count_parts", lambda seeds, _: min(2, seeds))
    world = _world()
    made = _revision(world, architecture, Storage.INT8)
    loaded = replace(made, variants={"projected": made.variants["projected"]})

    _assert_answers_are_the_cpus(loaded, engine_of(loaded, accelerator), world)


class TestPlacement:
    @pytest.fixture
    def world(self) -> World:
        return _world()

    @pytest.fixture
    def loaded(self, world: World) -> LoadedRevision:
        """One variant: its table is the only one."""
        made = _revision(world)
        return replace(made, variants={"x1": made.variants["x1"]})

    def test_rows_behind_a_table_on_the_gpu_come_over_the_link(
        self, world: World, loaded: LoadedRevision, accelerator: Accelerator
    ) -> None:
        engine, batch = engine_of(loaded, accelerator), Batch(world)

        read = engine.infer("x1", batch.seeds, 11, view=batch.view).gathered_bytes

        assert 0 < engine.stats().link_bytes < read / 2
        assert engine.stats().link_bytes % (4 * FEATURES) == 0

    def test_answers_are_the_cpus_from_a_table_on_the_host(
        self, world: World, loaded: LoadedRevision, accelerator: Accelerator
    ) -> None:
        engine, batch = engine_of(loaded, accelerator, means(CachePolicy.NONE, _required(loaded))), Batch(world)

        answer = engine.infer("x1", batch.seeds, 11, view=batch.view)

        _assert_alike(answer, infer_batch(loaded, "x1", batch.seeds, 11, view=batch.view))
        assert engine.stats().memory_bytes["tables"] == 0
        assert engine.stats().link_bytes == answer.gathered_bytes

    def test_answers_are_the_cpus_through_a_cache(
        self, world: World, loaded: LoadedRevision, accelerator: Accelerator
    ) -> None:
        """The cache knows the table's rows alone: neither its directory nor its counters have a place for others."""
        rows = {"the table": loaded.variants["x1"].table.rows}
        resident = make_resident(loaded, accelerator, means(CachePolicy.NONE, _required(loaded)))
        plan = plan_caches(loaded, rows, {"the table": CACHE_BYTES}, [])["the table"]
        readers = readers_of(loaded, rows["the table"])
        table = resident.tables["x1"].rows
        cache = make_cache(plan, table, loaded, readers, CachePolicy.DEGREE, accelerator)
        resident.caches["x1"] = cache
        engine = GpuEngine(loaded, resident)
        cache.begin()
        stored, batch = cache.view.accesses.numel(), Batch(world)

        answer = engine.infer("x1", batch.seeds, 11, view=batch.view)

        _assert_alike(answer, infer_batch(loaded, "x1", batch.seeds, 11, view=batch.view))
        hits, misses = cache.view.totals.tolist()
        assert hits > 0
        assert cache.view.accesses.sum() == hits + misses
        assert stored == NODES
        behind_bytes = engine._uncached_link_bytes
        assert (hits + misses) * 4 * FEATURES + behind_bytes == answer.gathered_bytes


def _required(loaded: LoadedRevision) -> int:
    """Memory without which nothing goes."""
    ample = engine_of(loaded, Twin(), means(CachePolicy.NONE)).stats().memory_bytes
    return ample["weights"] + ample["buffers"]


def test_a_chunk_that_reads_more_rows_than_there_is_room_for_is_computed_by_the_cpu(
    interposed: Interposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world()
    loaded = _revision(world)
    monkeypatch.setattr(buffers_module, "_BEHIND_BYTES", 16)
    engine, batch = engine_of(loaded, interposed), Batch(world)

    answer = engine.infer("x1", batch.seeds, 11, view=batch.view)

    _assert_alike(answer, infer_batch(loaded, "x1", batch.seeds, 11, view=batch.view))
    assert interposed.captured == [("x1", 4, True, False), ("x1", 4, False, False)], "the last two, which bring nothing"


def test_the_cpu_answers_a_batch_with_an_overlay_that_failed(interposed: Interposed) -> None:
    world = _world()
    loaded = _revision(world)
    guarded = GuardedEngine(loaded, engine_of(loaded, interposed), Trust(), may_fall_back=True)
    batch = Batch(world)
    interposed.failures = [RuntimeError("CUDA error: unspecified launch failure")]

    answer = guarded.infer("x1", batch.seeds, 11, view=batch.view)

    _assert_alike(answer, infer_batch(loaded, "x1", batch.seeds, 11, view=batch.view))
    assert guarded.stats().device == "CPU"


def test_an_overlay_that_the_cpu_cannot_prepare_fails_alone(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world()
    loaded = _revision(world)
    guarded = GuardedEngine(loaded, engine_of(loaded, accelerator), Trust(), may_fall_back=False)
    batch = Batch(world)
    with monkeypatch.context() as patch:
        patch.setattr(RowMaker, "make", _lack_memory)
        with pytest.raises(MemoryError, match="of the host"):
            guarded.infer("x1", batch.seeds, 11, view=batch.view)

    answer = guarded.infer("x1", batch.seeds, 11, view=batch.view)

    _assert_alike(answer, infer_batch(loaded, "x1", batch.seeds, 11, view=batch.view))
    assert guarded.stats().device == accelerator.name


def _lack_memory(*_: object) -> None:
    raise MemoryError("out of memory of the host")


def test_warm_up_captures_what_batches_with_overlays_need(interposed: Interposed) -> None:
    world = _world()
    made = _revision(world)
    loaded = replace(made, variants={"x2": made.variants["x2"]})
    engine = engine_of(loaded, interposed)
    engine.warm_up()
    captured = list(interposed.captured)
    batch = Batch(world)

    engine.infer("x2", batch.seeds, 11, view=batch.view)

    assert interposed.captured == captured
    assert set(captured) == {("x2", bucket, viewed, False) for bucket in (1, 2, 4) for viewed in (False, True)}
    assert len(captured) == 6 + 2 * (LANES - 1)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT"])
def test_batches_without_overlays_run_kernels_that_know_of_none(
    architecture: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled without the arguments that are None, these kernels are those of a worker that knows no overlays."""
    launched: list[tuple[Any, ...]] = []
    for module in (gather_module, attention_module):
        launch = module.launch

        def recorded(kernel: Any, programs: int, *arguments: Any, launch: Any = launch, **constants: Any) -> None:
            parameters = kernel.arg_names[: len(arguments)]
            launched.append(
                tuple(
                    name
                    for name, given in zip(parameters, arguments, strict=True)
                    if "behind" in name and given is not None
                )
            )
            launch(kernel, programs, *arguments, **constants)

        monkeypatch.setattr(module, "launch", recorded)
    world = _world()
    loaded = _revision(world, architecture, Storage.INT8)
    engine, batch = engine_of(loaded, accelerator), Batch(world)

    engine.infer("x1", np.arange(9), 11)
    plain = set(launched)
    launched.clear()
    engine.infer("x1", batch.seeds, 11, view=batch.view)

    assert plain == {()}
    assert ("behind", "behind_scales", "own_behind", "own_behind_scales") in launched


def test_rooms_are_counted_only_where_rows_can_be_made() -> None:
    made = _revision(_world(), "GCN").variants["x1"]

    sizes, without = plan_lane([made]), plan_lane([replace(made, rows=None)])

    # What the neighbours of 10 places weigh, and 4 rows themselves; of each seed.
    assert sizes.share_numbers == sizes.seeds * (1 + 3 + 6 + 1 + 3)
    assert sizes.device_bytes == without.device_bytes + 4 * sizes.share_numbers
    assert sizes.behind_bytes == buffers_module.BEHIND_ROWS * made.table.rows.values.strides[0]
    assert (without.share_numbers, without.behind_bytes) == (0, 0)


def test_rows_of_another_kind_are_not_behind_a_table(device: torch.device) -> None:
    rows, others = (DeviceRows(torch.zeros(4, width, device=device), None) for width in (16, 32))
    tree = PaddedTree.allocate(1, (2,), device)
    aggregation = DeviceAggregation(Aggregator.SUM, Own.ADDED, 1.0, None, relu=False)
    out = torch.zeros(tree.rows, 16, device=device)

    with pytest.raises(ValueError, match=r"rows are 16 numbers of torch.float32, and those behind them 32"):
        gather_module.gather_rows(rows, rows, 16, tree, aggregation, out, None, behind=DeviceTable(others, others))


def test_a_revision_from_its_files_is_served_with_overlays(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From requests' arrays to scores, by the functions that the protocols call; arrays are mapped, read-only ones."""
    monkeypatch.setattr(served_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_ROUNDS", (1, 1))
    monkeypatch.setattr(served_module, "_NEW_NODES_ROUNDS", (1, 1))
    variants = [
        MadeUpVariant("x1", 1, "features", Storage.INT8, "float32"),
        MadeUpVariant("projected", 1, "projected", Storage.FLOAT16, "float32"),
    ]
    network = Model(architecture=Architecture.GRAPHSAGE, hidden=8, fanouts=FANOUTS).network(3)
    repository = Repository(tmp_path, "tests", "service")
    made = publish_made_up(repository, made_up_graph(NODES, 5, FEATURES, 3), network, variants)
    loaded = _measured_at_one_seed(load_revision(repository, made.revision))
    served = serve_on_gpu(
        loaded, served_revision(loaded), CachePolicy.FREQUENCY, None, may_fall_back=False,
        use=lambda: accelerator, ledger=Ledger(), trust=Trust(),
    )  # fmt: skip
    profiled = [variant.new_nodes for variant in served.manifest.profile.variants]
    assert [[(point.seeds, point.feature_bytes, point.runs) for point in points] for points in profiled] == [
        [(2, 4 * FEATURES * 2, 1)], []
    ]  # fmt: skip
    assert 0 < profiled[0][0].overlay_ms < profiled[0][0].p50_ms != 99
    support = served.compute.overlays.support
    features = np.random.default_rng(1).normal(size=(3, FEATURES)).astype(np.float32)
    edges = np.array([[NODES, 4], [5, NODES], [6, 4], [NODES + 1, NODES]])
    overlay, asked = support.arrange(features, np.array([9]), edges, np.array([NODES, 4, 9, NODES + 1]))

    for variant in loaded.variants:
        seeds = np.concatenate([asked, [7]])
        view = view_of(NODES, [Part(4, overlay, None), Part(1, None, None)], seeds)
        answer = served.compute.infer(variant, seeds, 3, view=view)

        _assert_alike(answer, infer_batch(loaded, variant, seeds, 3, view=view))
        assert answer.times.overlay_ms > 0
    assert served.compute.device_stats().link_bytes > 0


def _measured_at_one_seed(loaded: LoadedRevision) -> LoadedRevision:
    """The interpreter takes its time for larger batches. New nodes are profiled of the first variant."""
    assert loaded.manifest is not None
    profile = loaded.manifest.profile
    first, *others = [msgspec.structs.replace(each, latency=each.latency[:1]) for each in profile.variants]
    new = NewNodesLatency(seeds=2, edges=1, feature_bytes=1, runs=9, p50_ms=99, p99_ms=99, overlay_ms=1)
    variants = (msgspec.structs.replace(first, new_nodes=(new,)), *others)
    measured = msgspec.structs.replace(profile, variants=variants)
    return replace(loaded, manifest=msgspec.structs.replace(loaded.manifest, profile=measured))
