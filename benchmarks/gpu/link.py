"""Bandwidth of the link between host and GPU: large copies, a streaming read in place, and the gathering of rows.

The first two are the limit, of which the better one counts; the third is the worker's own kernel, on rows as wide as
the paper's data sets have them, in places drawn at random over two gigabytes of pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks.engine.paper_tables import FACTORS, GRAPHS
from benchmarks.gpu.figures import Row, gigabytes_per_s, summarize
from benchmarks.shapes import FANOUTS
from gnnserve_api.variants import Storage, columns_of
from gnnserve_worker.gpu.arrays import DeviceAggregation, DeviceRows, PaddedTree
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import Aggregator, Own

_STREAM_BYTES = 2**28
_TABLE_BYTES = 2**31
_SEEDS = 1024
_RUNS = 12
_TILE = 4096


def measure_bandwidth(*, quick: bool) -> Row:
    source = _pinned_numbers(_TABLE_BYTES // 4 if quick else _TABLE_BYTES)
    limits = _limits(source)
    limit = limits["limit_gigabytes_per_s"]
    rows = []
    for name, factor in _cases(quick):
        row = _gather_rate(source, name, factor, limit, _RUNS)
        rows.append(row)
        rate, share = row["gigabytes_per_s"], row["share_of_limit"]
        print(f"  gather {name:8s} {factor}x {rate:6.1f} GB/s, {share:.0%} of the limit", flush=True)
    return {**limits, "gather": rows}


def compile_kernels(*, quick: bool) -> None:
    """What `measure_bandwidth` runs, so that it finds it compiled: with the machine to itself it is over in seconds."""
    source = _pinned_numbers(_STREAM_BYTES // 8)
    for name, factor in _cases(quick):
        _gather_rate(source, name, factor, 1.0, runs=1)


def _cases(quick: bool) -> list[tuple[str, int]]:
    return [(name, factor) for name in (["flickr"] if quick else GRAPHS) for factor in FACTORS]


def measure_limit(*, quick: bool) -> Row:
    return _limits(_pinned_numbers(_STREAM_BYTES // 2 if quick else _STREAM_BYTES))


def _pinned_numbers(size_bytes: int) -> Tensor:
    source = torch.empty(size_bytes // 4, dtype=torch.float32, pin_memory=True)
    source.numpy()[:] = np.random.default_rng(0).standard_normal(1024, np.float32).repeat(len(source) // 1024)
    return source


def _limits(source: Tensor) -> Row:
    copied = _copy_rate(source)
    print(f"  large copies      {copied:6.1f} GB/s", flush=True)
    streamed = _stream_rate(source)
    print(f"  read in place     {streamed:6.1f} GB/s", flush=True)
    return {
        "copy_gigabytes_per_s": copied,
        "stream_gigabytes_per_s": streamed,
        "limit_gigabytes_per_s": max(copied, streamed),
    }


def timed_ms(run: Callable[[], object], runs: int, prepare: Callable[[int], object] = lambda _: None) -> list[float]:
    """Time on the device's own clock, after one run that does not count, in which kernels are compiled and memory is
    allocated. `prepare` is given the number of the run, and not timed."""
    prepare(0)
    run()
    torch.cuda.synchronize()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
    for number, (begin, end) in enumerate(marks, start=1):
        prepare(number)
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in marks]


def _copy_rate(source: Tensor) -> float:
    part = source[: _STREAM_BYTES // 4]
    target = torch.empty_like(part, device="cuda", pin_memory=False)
    times = timed_ms(lambda: target.copy_(part, non_blocking=True), _RUNS)
    return gigabytes_per_s(part.nbytes, min(times))


def _stream_rate(source: Tensor) -> float:
    part = source[: _STREAM_BYTES // 4]
    programs = 16 * torch.cuda.get_device_properties(0).multi_processor_count
    sums = torch.empty(programs, device="cuda")

    def read() -> None:
        _read_all[(programs,)](part, sums, part.numel(), TILE=_TILE, num_warps=4)

    return gigabytes_per_s(part.nbytes, min(timed_ms(read, _RUNS)))


@triton.jit
def _read_all(source, sums, numbers, TILE: tl.constexpr):  # noqa: ANN001, ANN202 - pointers and integers of a kernel
    """Each program reads every n-th tile, 16 bytes a lane."""
    total = tl.zeros([TILE], tl.float32)
    offsets = tl.arange(0, TILE)
    for start in range(tl.program_id(0) * TILE, numbers, tl.num_programs(0) * TILE):
        total += tl.load(source + start + offsets, mask=start + offsets < numbers, other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(total))


@dataclass(frozen=True, slots=True)
class RandomTrees:
    """Every place is taken by a node drawn at random, in every run by another one: nothing is read twice, and what an
    earlier run left in the GPU's own cache is of no use."""

    tree: PaddedTree
    ids: tuple[Tensor, ...]
    rows_read: int

    @staticmethod
    def draw(nodes: int, runs: int) -> RandomTrees:
        device = torch.device("cuda")
        tree = PaddedTree.allocate(_SEEDS, FANOUTS, device)
        draw, places = np.random.default_rng(1), tree.ids.numel()
        ids = [
            torch.from_numpy(draw.choice(nodes, places, replace=nodes < places).astype(np.int32)).to(device)
            for _ in range(runs + 1)
        ]
        counts = np.concatenate(
            [np.full(tree.ends[d] - tree.begin(d), fanout, np.int32) for d, fanout in enumerate(FANOUTS)]
        )
        tree.counts.copy_(torch.from_numpy(counts))
        return RandomTrees(tree, tuple(ids), int(counts.sum()))

    def use(self, number: int) -> None:
        self.tree.ids.copy_(self.ids[number])


def _gather_rate(source: Tensor, graph: str, factor: int, limit: float, runs: int) -> Row:
    """Means of neighbours alone: each row is read once, so that the bytes are known."""
    features = GRAPHS[graph].features
    columns, stride = columns_of(features, factor), FORMATS[Storage.FLOAT32].padded_columns(features)
    nodes = source.numel() // stride
    rows = DeviceRows(source[: nodes * stride].view(nodes, stride), None)
    drawn = RandomTrees.draw(nodes, runs)
    aggregation = DeviceAggregation(Aggregator.MEAN, Own.ADDED, own_factor=0.0, bias=None, relu=False)
    out = torch.empty(drawn.tree.rows, columns, device="cuda")
    times = summarize(
        timed_ms(lambda: gather_rows(rows, rows, columns, drawn.tree, aggregation, out, None), runs, drawn.use)
    )
    read_bytes = drawn.rows_read * columns * 4
    rate = gigabytes_per_s(read_bytes, times.p50_ms)
    return {
        "graph": graph, "factor": factor, "columns": columns, "row_bytes": columns * 4, "read_bytes": read_bytes,
        "gigabytes_per_s": rate, "share_of_limit": round(rate / limit, 3), **times.describe(),
    }  # fmt: skip
