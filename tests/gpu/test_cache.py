"""The feature cache on tensors: of the CPU here, one or several as devices; and of GPUs where there are some."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tests.support.graphs.graphs import random_graph
from tests.support.lacks import lacks_gpu

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching import sharding
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.policy import ResidencyChanges
from gnnserve_worker.caching.sharding import CachePlan, plan_cache
from gnnserve_worker.caching.updater import Rhythm
from gnnserve_worker.gpu import cache as cache_module
from gnnserve_worker.gpu.arrays import DeviceAggregation, DeviceGraph, DeviceRows, PaddedTree
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.tables.table import Aggregator, Own

CPU = torch.device("cpu")
NODES = 300
COLUMNS = 80
PATIENT = Rhythm(batches=10**9, seconds=3600.0)


def rows_of(dtype=torch.float32, nodes=NODES, columns=COLUMNS):
    generator = torch.Generator().manual_seed(7)
    if dtype == torch.int8:
        values = torch.randint(-127, 128, (nodes, columns), generator=generator, dtype=torch.int8)
        return DeviceRows(values, torch.rand(nodes, generator=generator))
    return DeviceRows(torch.randn(nodes, columns, generator=generator).to(dtype), None)


def plan_of(rows, slots=(120,), nodes=NODES):
    columns = sharding.LINE_BYTES // rows.item_bytes
    blocks = -(-rows.stride // columns)
    return CachePlan(nodes, blocks, columns, sharding.LINE_BYTES, tuple(slots))


def cache_of(rows, policy=CachePolicy.LFU, slots=(120,), weights=None, rhythm=PATIENT):
    plan = plan_of(rows, slots)
    built = build_policy(policy, plan.items, plan.capacity, weights)
    cache = FeatureCache(rows, plan, built, [CPU] * len(slots), rhythm)
    cache.begin()
    return cache


def read(cache, nodes, blocks):
    """What a kernel counts when a variant that touches so many blocks reads `nodes`."""
    ticket = cache.enter()
    cache.view.accesses[blocks - 1] += torch.bincount(torch.tensor(nodes), minlength=NODES).int()
    cache.leave(ticket)


def cached_blocks(cache, rows):
    """By item: what a kernel would read from the cache, as the rows' own numbers."""
    view = cache.view
    found = {}
    for block, node in (view.directory >= 0).nonzero().tolist():
        slot = int(view.directory[block, node])
        pool = cache._storage._pools[slot // view.slots_per_device]
        assert pool.data_ptr() == int(view.pools[slot // view.slots_per_device])
        found[block * NODES + node] = pool[slot % view.slots_per_device]
    return found


def expected_block(rows, item, columns):
    block = torch.zeros(columns, dtype=rows.values.dtype)
    part = rows.values[item % NODES, item // NODES * columns : (item // NODES + 1) * columns]
    block[: len(part)] = part
    return block


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("slots", [(120,), (50, 20, 50)], ids=["one device", "three devices"])
def test_slots_hold_exactly_the_rows_that_the_directory_names(dtype, slots):
    rows = rows_of(dtype)
    cache = cache_of(rows, slots=slots)
    rng = np.random.default_rng(5)
    for _ in range(4):
        for blocks in range(1, cache.view.directory.shape[0] + 1):
            read(cache, rng.integers(0, NODES, 60), blocks)
        cache.run_round()
        found = cached_blocks(cache, rows)
        assert sorted(found) == cache._slots.readable().tolist()
        assert len(found) > 40
        for item, block in found.items():
            assert torch.equal(block, expected_block(rows, item, cache.view.block_columns))
    assert cache.stats().admissions - cache.stats().evictions == len(found)


def test_several_devices_keep_what_one_of_the_same_size_would():
    rows = rows_of()
    one, three = cache_of(rows, slots=(120,)), cache_of(rows, slots=(40, 40, 40))
    for cache in (one, three):
        rng = np.random.default_rng(2)
        for _ in range(3):
            read(cache, 3 * rng.integers(0, NODES // 3, 80), 2)
            cache.run_round()
    assert one._slots.readable().tolist() == three._slots.readable().tolist()
    devices = {slot // three.view.slots_per_device for slot in three.view.directory[three.view.directory >= 0].tolist()}
    assert devices == {0, 1, 2}


def test_rows_that_are_kept_from_the_start_are_there_before_the_first_batch():
    rows = rows_of()
    weights = np.zeros(plan_of(rows).items, dtype=np.float32)
    weights[[5, 17, NODES + 5]] = 1.0
    cache = cache_of(rows, CachePolicy.DEGREE, weights=weights)
    assert {5, 17, NODES + 5} <= set(cached_blocks(cache, rows))


def test_a_narrow_variant_needs_the_first_blocks_and_a_wider_one_fetches_only_the_rest():
    rows = rows_of()
    cache = cache_of(rows)
    read(cache, [1, 2], 1)
    cache.run_round()
    assert cache._slots.readable().tolist() == [1, 2]
    before = cache.stats().admissions
    read(cache, [1, 2], 3)
    cache.run_round()
    assert cache._slots.readable().tolist() == [1, 2, NODES + 1, NODES + 2, 2 * NODES + 1, 2 * NODES + 2]
    assert cache.stats().admissions - before == 4


def test_counts_are_differences_and_survive_an_int32_that_wraps_around(monkeypatch):
    monkeypatch.setattr(cache_module, "COUNTERS_AT_ONCE", 100)  # several portions
    cache = cache_of(rows_of())
    cache.view.accesses[1, 299] = 2**31 - 1
    cache.run_round()
    cache.view.accesses[1, 299] += 3
    cache.view.accesses[0, 299] += 1
    cache.view.accesses[2, 0] += 2
    reads = cache._storage.take_reads()
    assert dict(zip(reads.items.tolist(), reads.times.tolist(), strict=True)) == {
        0: 2, NODES: 2, 2 * NODES: 2, 299: 4, NODES + 299: 3,
    }  # fmt: skip
    assert len(cache._storage.take_reads().items) == 0


def test_what_was_read_to_warm_up_is_not_taken_for_traffic():
    cache = cache_of(rows_of())
    read(cache, [1, 2], 3)
    cache.start()
    cache.stop()
    read(cache, [5], 1)
    assert cache._storage.take_reads().items.tolist() == [5]


def test_a_row_that_changed_is_never_served_from_the_cache():
    rows = rows_of()
    cache = cache_of(rows)
    read(cache, [1, 2], 3)
    cache.run_round()
    rows.values[2] = 5.0
    cache.invalidate(np.array([2]))
    assert sorted(cached_blocks(cache, rows)) == [1, NODES + 1, 2 * NODES + 1]
    cache.run_round()
    assert cached_blocks(cache, rows)[NODES + 2].eq(5.0).all()


def test_the_thread_keeps_up_with_what_is_read_and_invalidated():
    rows = rows_of()
    cache = cache_of(rows, rhythm=Rhythm(batches=2, seconds=0.001))
    cache.start()
    nap = threading.Event()
    while len(cache._slots.readable()) < 6:
        read(cache, [1, 2], 3)
        nap.wait(1e-3)
    rows.values[1] = -1.0
    cache.invalidate(np.array([1]))
    while NODES + 1 not in (found := cached_blocks(cache, rows)):
        nap.wait(1e-3)
    assert found[NODES + 1].eq(-1.0).all()
    cache.stop()
    assert cache.problem is None
    assert cache.rounds.rounds > 0
    assert cache.last_round is not None


def test_all_tensors_together_stay_within_the_planned_memory():
    rows = rows_of()
    plan = plan_cache(nodes=NODES, columns=COLUMNS, widths=[80, 20], item_bytes=4, budgets_bytes=[250_000, 170_000])
    policy = build_policy(CachePolicy.FIFO, plan.items, plan.capacity)
    cache = FeatureCache(rows, plan, policy, [CPU, CPU])
    view, storage = cache.view, cache._storage
    first = [view.directory, view.accesses, view.totals, view.pools, storage._seen, storage._pools[0]]
    assert sum(tensor.nbytes for tensor in first) <= cache.memory_bytes[0] <= 250_000
    assert storage._pools[1].nbytes <= cache.memory_bytes[1] <= 170_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 5}, "planned for 5 nodes"),
        ({"block_columns": 64}, "64 columns in 128 bytes"),
        ({"slots": (60, 60)}, "planned for 2 devices, and there are 1"),
        ({"slots": (1,)}, "there is room for 1 of 900"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    rows = rows_of()
    plan = plan_of(rows)
    policy = build_policy(CachePolicy.LFU, plan.items, plan.capacity)
    values = {name: getattr(plan, name) for name in ("nodes", "blocks", "block_columns", "block_bytes", "slots")}
    with pytest.raises(ValueError, match=message):
        FeatureCache(rows, CachePlan(**(values | change)), policy, [CPU])


def host(values, device):
    """As rows lie in the host's memory."""
    return DeviceRows(values.pin_memory() if device.type == "cuda" else values, None)


def devices_of(device, count):
    """As many as there are, over and over."""
    return [torch.device("cuda", i % torch.cuda.device_count()) if device.type == "cuda" else CPU for i in range(count)]


@pytest.mark.parametrize("slots", [(90,), (30, 40)], ids=["one device", "two devices"])
@pytest.mark.parametrize("columns", [80, 40, 10])
def test_answers_are_the_same_with_and_without_the_cache(slots, columns, device):
    graph = random_graph(NODES, 1)
    rows = host(rows_of().values, device)
    plan = plan_of(rows, slots)
    policy = build_policy(CachePolicy.LFU, plan.items, plan.capacity)
    cache = FeatureCache(rows, plan, policy, devices_of(device, len(slots)), PATIENT)
    cache.begin()
    tree = PaddedTree.allocate(4, (4, 3), device)
    aggregation = DeviceAggregation(Aggregator.MEAN, Own.BESIDE, own_factor=0.0, bias=None, relu=False)
    device_graph = DeviceGraph(torch.tensor(graph.indptr, device=device), torch.tensor(graph.indices, device=device))
    outs = [torch.zeros(tree.rows, 2 * columns, device=device) for _ in range(2)]
    for key in range(3):
        seeds, keys = torch.tensor([1, 2, 3, 4], device=device), torch.tensor([key % 2], device=device)
        sample_tree(device_graph, seeds, keys, tree)
        ticket = cache.enter()
        gather_rows(rows, rows, columns, tree, aggregation, outs[0], cache.view)
        settle(device)
        cache.leave(ticket)
        gather_rows(rows, rows, columns, tree, aggregation, outs[1], None)
        # Compiled, narrower tiles are summed in another order.
        torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=1e-5 if device.type == "cuda" else 0)
        cache.run_round()
    blocks = -(-columns // cache.view.block_columns)
    stats = cache.stats()
    assert stats.hits > 0
    assert (stats.hits + stats.misses) % blocks == 0
    assert stats.link_bytes == (stats.misses + stats.admissions) * sharding.LINE_BYTES


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


VERSIONS = tl.constexpr(1 << 12)
"""A row is a number of node · VERSIONS + version, in every column."""


@triton.jit
def _look(directory, pools, wanted, oldest, counts, slots_per_device, COLUMNS: tl.constexpr):
    """Look a node up, read its row where that says, and judge it. counts: int64 [hits, torn, misplaced, stale]."""
    node = tl.load(wanted + tl.program_id(0))
    slot = tl.load(directory + node, cache_modifier=".cg")
    if slot >= 0:
        pool = tl.load(pools + slot // slots_per_device)
        row = (pool + (slot % slots_per_device).to(tl.int64) * COLUMNS * 4).to(tl.pointer_type(tl.int32))
        at_least = tl.load(oldest + node, cache_modifier=".cg")
        words = tl.load(row + tl.arange(0, COLUMNS), cache_modifier=".cg")
        low = tl.min(words, axis=0)
        tl.atomic_add(counts, 1)
        tl.atomic_add(counts + 1, (low != tl.max(words, axis=0)).to(tl.int64))
        tl.atomic_add(counts + 2, (low // VERSIONS != node).to(tl.int64))
        tl.atomic_add(counts + 3, (low % VERSIONS < at_least).to(tl.int64))


@pytest.mark.parametrize("count", [1, 2])
def test_kernels_read_no_wrong_row_while_the_cache_changes(count, device):
    """On a GPU, graphs that are replayed look up and read rows, while threads evict, admit, change and invalidate."""
    on_gpu = device.type == "cuda"
    nodes, columns, batch, batches = (5000, 128, 1 << 16, 3000) if on_gpu else (60, 32, 24, 40)
    values = (torch.arange(nodes, dtype=torch.int32) * VERSIONS.value)[:, None].expand(nodes, columns).contiguous()
    rows = host(values.view(torch.float32), device)
    plan = CachePlan(nodes, 1, columns, columns * 4, (nodes // 2 // count,) * count)
    policy = build_policy(CachePolicy.FIFO, plan.items, plan.capacity)
    cache = FeatureCache(rows, plan, policy, devices_of(device, count))
    view, whole = cache.view, rows.values.view(torch.int32)
    wanted = torch.randint(0, nodes, (batch,), device=device)
    oldest = torch.zeros(nodes, dtype=torch.int32, device=device)
    counts = torch.zeros(4, dtype=torch.int64, device=device)

    def look():
        wanted.copy_((wanted * 48271 + 11) % nodes)
        _look[(batch,)](view.directory, view.pools, wanted, oldest, counts, view.slots_per_device, columns)

    replay = captured(look, device) if on_gpu else look
    counts.zero_()
    draws = np.random.default_rng(0)
    order = draws.permutation(nodes)
    inside, outside = order[: plan.capacity].copy(), order[plan.capacity :].copy()
    cache._slots.fill(inside)
    settle(device)
    portion = nodes // 20
    stopped = threading.Event()
    newest = np.zeros(nodes, dtype=np.int32)

    def exchange():
        draws = np.random.default_rng(1)
        while not stopped.is_set():
            going, coming = (draws.choice(len(side), portion, replace=False) for side in (inside, outside))
            evicted, admitted = inside[going], outside[coming]
            cache._slots.change(ResidencyChanges(evicted, admitted))
            inside[going], outside[coming] = admitted, evicted
            cache._slots.refresh(portion)

    def change():
        draws = np.random.default_rng(2)
        with torch.cuda.stream(torch.cuda.Stream(device)) if on_gpu else nullcontext():
            while not stopped.is_set() and newest.max() < VERSIONS.value - 1:
                some = draws.choice(nodes, 4, replace=False)
                newest[some] += 1
                whole[torch.tensor(some)] += 1
                cache.invalidate(some)
                # Waits for its own stream alone, as the array is not pinned.
                oldest.copy_(torch.tensor(newest))

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(exchange), pool.submit(change)]
        try:
            for done in itertools.count():
                ticket = cache.enter()
                try:
                    replay()
                finally:
                    cache.leave(ticket)
                is_enough = done >= batches and cache.stats().evictions > 10 * portion and newest.sum() > 40
                if is_enough or any(other.done() for other in others):
                    break
        finally:
            stopped.set()
        for other in others:
            other.result()
    hits, *wrong = counts.tolist()
    assert hits > batch * batches // 10
    assert wrong == [0, 0, 0], "torn, misplaced, stale"


def captured(work, device):
    """A CUDA graph of it, and what replays it and waits until it has ended."""
    stream = torch.cuda.Stream(device, priority=-1)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()

    def replay():
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()

    return replay


@pytest.mark.gpu
def test_a_gpus_slots_hold_the_rows_and_counts_are_taken(monkeypatch, device):
    if device.type != "cuda":
        lacks_gpu()
    monkeypatch.setattr(cache_module, "COUNTERS_AT_ONCE", 100)
    on_host = rows_of()
    rows = host(on_host.values, device)
    plan = plan_of(rows)
    policy = build_policy(CachePolicy.LFU, plan.items, plan.capacity)
    cache = FeatureCache(rows, plan, policy, [device], PATIENT)
    cache.begin()
    cache.view.accesses[2, :20] += 1
    settle(device)
    cache.run_round()
    cache._storage.wait_for_readers()
    directory = cache.view.directory.cpu()
    assert (directory >= 0).sum() == 60
    for item in cache._slots.readable().tolist():
        slot = int(directory[item // NODES, item % NODES])
        block = cache._storage._pools[0][slot].cpu()
        assert torch.equal(block, expected_block(on_host, item, plan.block_columns))
    cache.invalidate(np.array([3]))
    assert int(cache.view.directory[0, 3]) == -1
