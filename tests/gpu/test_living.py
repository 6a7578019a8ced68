"""A graph that changes, on a GPU: the CPU's answers at every offset, wherever lists and rows lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.changes.living import DEEPER, FEATURES, MODELS, ROOM_BYTES, VARIANTS, PlainGraph, batch_of, generated
from tests.support.gpu.gpu_revisions import means, use_small_chunks
from tests.support.gpu.gpu_twin import Twin
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.lacks import needs_no_gpu
from tests.support.overlays.overlays import arrange_overlay

import gnnserve_worker.gpu.living as living_module
import gnnserve_worker.gpu.served as served_module
from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import DeviceError, DeviceLostError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.gpu.accelerator import Accelerator, RowsToWrite
from gnnserve_worker.gpu.buffers import plan_lane
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.failure import GuardedEngine, Trust
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.networks import weights_bytes
from gnnserve_worker.gpu.placement import roots_bytes, scales_bytes
from gnnserve_worker.gpu.resident import LANES, Means, make_resident
from gnnserve_worker.gpu.served import serve_on_gpu
from gnnserve_worker.gpu.table_caches import make_cache, plan_caches, readers_of
from gnnserve_worker.inference.batch import Inference, infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import Part, view_of

NODES = 40
UNDIRECTED = EdgeRules(Direction.UNDIRECTED)
DIRECTED = EdgeRules(Direction.DIRECTED)
only_twins = needs_no_gpu("a GPU's memory is larger than that of these tests")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 4)
    skip_overflow_checks(monkeypatch)
    monkeypatch.setattr(living_module, "FEWEST_NODES", 64)
    monkeypatch.setattr(living_module, "FEWEST_ENTRIES", 2048)


class World:
    """A graph that changes, and a GPU's engine over it."""

    def __init__(
        self,
        root: Path,
        accelerator: Accelerator,
        architecture: str = "GraphSAGE",
        *,
        rules: EdgeRules = UNDIRECTED,
        variants: dict[str, object] = VARIANTS,
        means_of: Callable[[LoadedRevision], Means] = lambda _: means(),
    ) -> None:
        self.plain = PlainGraph(NODES, 3, rules)
        made = generated(
            root, "living", architecture, self.plain.built(), variants=variants, max_delta_bytes=ROOM_BYTES
        )
        drawing = {name: replace(one, fanouts=(3, 2, 2)[: len(one.fanouts)]) for name, one in made.variants.items()}
        self.loaded = replace(made, variants=drawing)
        self.living = LivingRevision(self.loaded, ROOM_BYTES)
        self.draw, self.fresh = np.random.default_rng(4), [*range(10_000, 9_000, -1)]
        self.means = means_of(self.loaded)
        written = self.living.note_written()
        self.engine = GpuEngine(self.loaded, make_resident(self.loaded, accelerator, self.means), written)

    def change(self, batches: int = 3, size: int = 8) -> None:
        """Apply random batches, as one group."""
        drawn = [self.plain.random_batch(self.draw, size, self.fresh) for _ in range(batches)]
        self.living.apply(self.living.offset + 1, drawn)

    def seeds(self) -> np.ndarray:
        """Old nodes and the newest ones."""
        count = self.living.graph.ids.count
        return np.concatenate([self.draw.integers(0, NODES, 5), np.arange(count - 4, count)])

    def assert_answers_are_the_cpus(self, names: list[str] | None = None) -> None:
        infer = self.living.guarded(self.engine.infer)
        for name in names or [*self.loaded.variants]:
            seeds = self.seeds()
            assert_alike(infer(name, seeds, 11), infer_batch(self.loaded, name, seeds, 11), name)


def assert_alike(one: Inference, other: Inference, name: str = "") -> None:
    size = float(np.abs(other.scores).max())
    np.testing.assert_allclose(one.scores, other.scores, rtol=0, atol=1e-5 * size, err_msg=name)


def on_the_host(loaded: LoadedRevision, policy: CachePolicy = CachePolicy.NONE, ledger: Ledger | None = None) -> Means:
    """Memory for what nothing goes without: lists and tables stay in the host's."""
    cut, sizes = living_module.cut_to_room(loaded), plan_lane(loaded.variants.values())
    weights = sum(weights_bytes(variant.network) for variant in loaded.variants.values())
    needed = LANES * sizes.device_bytes + living_module.WRITING_BYTES + weights + scales_bytes(cut) + roots_bytes(cut)
    return means(policy, limit_bytes=needed, ledger=ledger)


@pytest.mark.parametrize("architecture", MODELS)
def test_answers_are_the_cpus_after_every_group_of_changes(
    tmp_path: Path, architecture: str, accelerator: Accelerator
) -> None:
    world = World(tmp_path, accelerator, architecture)
    assert {"x1", "x2", "projected", "stored1"} <= world.engine.variants
    world.assert_answers_are_the_cpus()
    for _ in range(3):
        world.change()
        world.assert_answers_are_the_cpus()


@pytest.mark.parametrize("rules", [UNDIRECTED, DIRECTED], ids=["both ways", "directed"])
def test_rows_of_every_stored_layer_and_storage_are_fetched(
    tmp_path: Path, rules: EdgeRules, accelerator: Accelerator
) -> None:
    world = World(tmp_path, accelerator, rules=rules, variants=DEEPER)
    names = ["x1-int8", "projected-int8", "stored1", "stored2", "stored2-int8"]
    world.assert_answers_are_the_cpus(names)
    world.change()
    world.change()
    world.assert_answers_are_the_cpus(names)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_copies_in_the_hosts_memory_are_written_too(
    tmp_path: Path, architecture: str, accelerator: Accelerator
) -> None:
    world = World(tmp_path, accelerator, architecture, means_of=on_the_host)
    memory = world.engine.stats().memory_bytes
    assert memory["tables"] == 0
    world.assert_answers_are_the_cpus()
    world.change()
    world.assert_answers_are_the_cpus()


def test_cached_rows_that_changed_are_dropped_and_copied_again(tmp_path: Path, accelerator: Accelerator) -> None:
    world = World(tmp_path, accelerator, means_of=on_the_host)
    engine, resident, table = world.engine, world.engine._resident, world.loaded.variants["x1"].table
    cut = living_module.cut_to_room(world.loaded)
    rows = {"the table": cut.variants["x1"].table.rows}
    plan = plan_caches(cut, rows, {"the table": 50_000}, [])["the table"]
    readers = readers_of(cut, rows["the table"])
    cache = make_cache(plan, resident.tables["x1"].rows, cut, readers, CachePolicy.DEGREE, accelerator)
    resident.caches.update({"x1": cache, "x2": cache})
    engine._build_variants()
    cache.begin()
    kept = cache._slots.readable() % plan.nodes
    assert len(kept) > NODES
    world.assert_answers_are_the_cpus(["x1", "x2"])

    drawn = world.draw.normal(size=(3, FEATURES)).astype(np.float32)
    world.living.apply(1, [batch_of(drawn, overrides=[2, 5, 7])])
    world.assert_answers_are_the_cpus(["x1", "x2"])

    assert {*kept} - {*(cache._slots.readable() % plan.nodes)} == {2, 5, 7}
    cache.run_round()
    assert {2, 5, 7} <= {*(cache._slots.readable() % plan.nodes)}
    world.assert_answers_are_the_cpus(["x1", "x2"])
    assert {id(table)} == {id(world.loaded.variants[name].table) for name in resident.caches}


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_requests_with_an_overlay_see_the_changed_graph_too(
    tmp_path: Path, architecture: str, accelerator: Accelerator
) -> None:
    world = World(tmp_path, accelerator, architecture)
    world.change()
    nodes, count = world.loaded.graph.nodes, world.living.graph.ids.count
    assert nodes > 2 * count, "rows behind a table's are numbered beyond the room that the GPU has"
    features = world.draw.normal(size=(2, FEATURES)).astype(np.float32)
    edges = np.array([[3, nodes], [count - 1, nodes], [nodes + 1, nodes]])
    overlay, seeds = arrange_overlay(
        world.loaded.graph, world.plain.rules, features, np.array([3]), edges, np.array([nodes, 3, 8, count - 1])
    )
    view = view_of(nodes, [Part(len(seeds), overlay, None), Part(2, None, 5)], seeds)
    asked = np.concatenate((seeds, [4, count - 2])).astype(np.int64)
    assert view is not None
    for name in ("x2", "projected"):
        found = world.living.guarded(world.engine.infer)(name, asked, 11, view=view)
        assert_alike(found, infer_batch(world.loaded, name, asked, 11, view=view), name)


def grow(world: World, nodes: int) -> None:
    """That many new nodes, each with an edge."""
    new = [world.fresh.pop() for _ in range(nodes)]
    rows = world.draw.normal(size=(nodes, FEATURES)).astype(np.float32)
    world.living.apply(world.living.offset + 1, [batch_of(rows, new, edges=[(id_, 1) for id_ in new])])


@only_twins
@pytest.mark.parametrize("means_of", [lambda _: means(ledger=Ledger()), on_the_host], ids=["GPU", "host"])
def test_a_graph_that_outgrows_its_room_is_placed_anew(
    tmp_path: Path, means_of: Callable[[LoadedRevision], Means]
) -> None:
    twin = Twin()
    world = World(tmp_path, twin, means_of=means_of)
    engine, ledger = world.engine, world.means.ledger
    before, claimed = engine.stats().memory_bytes, ledger.claimed_bytes
    first = engine._resident.graph
    grow(world, 60)
    world.assert_answers_are_the_cpus()
    assert engine._resident.graph is first
    grow(world, 10)
    world.assert_answers_are_the_cpus()
    assert engine._resident.graph is not first
    after = engine.stats().memory_bytes
    assert all(after[part] >= before[part] for part in before)
    assert ledger.claimed_bytes == sum(after.values()), "what was there before is given back"
    assert sum(after.values()) > claimed or after["tables"] == 0
    world.change()
    world.assert_answers_are_the_cpus()


@only_twins
def test_a_graph_that_the_gpu_has_no_room_for_any_more_is_computed_on_the_cpu(tmp_path: Path) -> None:
    twin, trust = Twin(), Trust()
    world = World(tmp_path, twin)
    guarded = GuardedEngine(world.loaded, world.engine, trust, may_fall_back=True)
    world.engine.warm_up()
    grow(world, 70)
    twin.free = 2**29
    seeds = world.seeds()
    found = world.living.guarded(guarded.infer)("x1", seeds, 3)
    np.testing.assert_array_equal(found.scores, infer_batch(world.loaded, "x1", seeds, 3).scores)
    stats = guarded.stats()
    assert stats.device == "CPU"
    assert stats.problem is not None
    assert "weights and buffers need" in stats.problem
    assert trust.lost is None
    assert world.means.ledger.claims == []


@only_twins
def test_with_the_gpu_alone_such_a_worker_ends(tmp_path: Path) -> None:
    twin = Twin()
    world = World(tmp_path, twin)
    guarded = GuardedEngine(world.loaded, world.engine, Trust(), may_fall_back=False)
    grow(world, 70)
    twin.free = 2**29
    with pytest.raises(DeviceLostError, match="weights and buffers need"):
        world.living.guarded(guarded.infer)("x1", world.seeds(), 3)


@only_twins
def test_each_row_is_fetched_once_whatever_was_written_to_it(tmp_path: Path) -> None:
    twin = Twin()
    world = World(tmp_path, twin, variants={**VARIANTS, "stored": [1]})
    infer = world.living.guarded(world.engine.infer)
    rows = world.draw.normal(size=(1, FEATURES)).astype(np.float32)
    for offset in range(1, 6):
        world.living.apply(offset, [batch_of(rows * offset, overrides=[2])])
    infer("x1", world.seeds(), 3)
    once, link_bytes = twin.written_rows, world.engine.stats().link_bytes
    assert link_bytes > once * 8, "what is fetched is counted as traffic of the link"
    infer("x1", world.seeds(), 4)
    assert twin.written_rows == once, "nothing was written since"
    world.living.apply(6, [batch_of(rows, overrides=[2])])
    infer("x1", world.seeds(), 5)
    assert twin.written_rows == 2 * once
    assert 0 < once < 4 * NODES


@only_twins
def test_what_could_not_be_fetched_is_fetched_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, Twin())
    world.change()
    with monkeypatch.context() as patch:
        patch.setattr(Twin, "write", fail_after_one)
        with pytest.raises(RuntimeError, match="out of memory"):
            world.living.guarded(world.engine.infer)("x1", world.seeds(), 3)
    world.assert_answers_are_the_cpus()


def fail_after_one(_: Twin, writes: Iterable[RowsToWrite]) -> int:
    array, places, rows = next(iter(writes))
    array.index_copy_(0, places, rows)
    raise RuntimeError("CUDA error: out of memory")


def test_changes_that_came_while_it_was_loaded_are_fetched(tmp_path: Path, accelerator: Accelerator) -> None:
    world = World(tmp_path, accelerator)
    written = world.living.note_written()
    resident = make_resident(world.loaded, accelerator, means())
    world.change()
    engine = GpuEngine(world.loaded, resident, written)
    engine.warm_up()
    world.change()
    world.engine = engine
    world.assert_answers_are_the_cpus()


@only_twins
def test_memory_that_cannot_be_pinned_leaves_variants_to_the_cpu(tmp_path: Path) -> None:
    twin = Twin(refuse=lambda _size_bytes, _read_only: "CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(DeviceError, match="a copy of it cannot be pinned"):
        World(tmp_path, twin, means_of=on_the_host)
    assert twin.registered == {}


def test_long_lists_are_written_some_at_a_time(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living_module, "_AT_ONCE_BYTES", 64)
    world = World(tmp_path, accelerator)
    world.change(5)
    world.assert_answers_are_the_cpus()


def with_fewest_seeds(loaded: LoadedRevision) -> LoadedRevision:
    """Measured for one seed alone: a thousand take a minute where kernels run as Python."""
    assert loaded.manifest is not None
    change = msgspec.structs.replace
    profile = loaded.manifest.profile
    variants = [change(one, latency=one.latency[:1], new_nodes=one.new_nodes[:1]) for one in profile.variants]
    return replace(loaded, manifest=change(loaded.manifest, profile=change(profile, variants=(*variants,))))


def test_a_served_revision_follows_changes_on_the_gpu(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_ROUNDS", (1, 1))
    monkeypatch.setattr(served_module, "_NEW_NODES_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_NEW_NODES_ROUNDS", (1, 1))
    world = World(tmp_path, accelerator)
    loaded = with_fewest_seeds(world.loaded)
    by_cpu = served_revision(loaded, world.living)
    served = serve_on_gpu(
        loaded, by_cpu, CachePolicy.FREQUENCY, None, may_fall_back=False, use=lambda: accelerator,
        ledger=Ledger(), host=HostMemory(), trust=Trust(),
    )  # fmt: skip
    assert served.compute.device_stats().device == accelerator.name
    before = served.compute.infer("x1", np.array([2]), 3).scores
    world.change()
    assert served.changes.log.offset == 3
    seeds = np.concatenate(([2], world.seeds()))
    found = served.compute.infer("x1", seeds, 3)
    assert_alike(found, infer_batch(world.loaded, "x1", seeds, 3))
    assert np.abs(found.scores[0] - before[0]).max() > 0
    with world.living._computing:
        waiting = threading.Thread(target=served.compute.infer, args=("x1", seeds, 3))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive(), "no batch runs while changes are applied"
    waiting.join()
