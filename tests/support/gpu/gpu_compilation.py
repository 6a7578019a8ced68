"""Compiles every kernel for GPUs that are not there: what the wrappers would launch, to PTX and machine code.

Run as a program, since triton decides when kernels are defined whether they are compiled or interpreted. It prints one
JSON object, an `_Outcome`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnserve_worker.gpu.kernels.bounds import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[3]
_MOST_KEPT = 4
"""Outcomes of other sources that are kept, of other branches for instance."""


@dataclass(frozen=True)
class Compiled:
    architecture: int
    case: str
    kernel: str
    ptx: str
    registers: int
    """Registers of a lane."""
    spilled_bytes: int
    """Bytes of a lane's stack and local memory: kernels of Triton have nothing there but spilled registers."""
    atomics: list[str]
    """Instructions of the machine code that add to memory: RED does not wait for what was there, ATOM does."""


@dataclass(frozen=True)
class _Outcome:
    compiled: list[Compiled]
    sources: dict[str, str] = field(default_factory=dict)
    """Digests of all files of ours that were imported for it, by their path in the repository."""
    versions: str = ""
    """The versions of Python and of the packages that compile."""

    @classmethod
    def of(cls, text: str) -> _Outcome:
        told = json.loads(text)
        return cls([Compiled(**each) for each in told.pop("compiled")], **told)

    def is_of_today(self) -> bool:
        paths = {name: ROOT / name for name in self.sources}
        return self.versions == _versions() and all(
            path.exists() and _digest(path) == self.sources[name] for name, path in paths.items()
        )


def compile_all(folder: Path) -> list[Compiled]:
    """Compiles in another process, whose compiler keeps its files in `folder`; what was found is kept there too, as
    long as nothing changes that was imported for it."""
    kept = sorted(folder.glob("compiled-*.json"), key=lambda path: path.stat().st_mtime)
    for path in reversed(kept):
        if (outcome := _Outcome.of(path.read_text())).is_of_today():
            return outcome.compiled
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    printed = subprocess.run(
        [sys.executable, "-m", "tests.support.gpu.gpu_compilation"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    for path in kept[: 1 - _MOST_KEPT]:
        path.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(printed.stdout)
    name = hashlib.sha256(printed.stdout.encode()).hexdigest()[:16]
    Path(file.name).rename(folder / f"compiled-{name}.json")
    return _Outcome.of(printed.stdout).compiled


def _versions() -> str:
    found = (f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton", "numpy", "numba"))
    return ", ".join((sys.version, *found))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _imported() -> dict[str, str]:
    """The files of this repository that this process has imported, which runs this one."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    paths = {Path(file) for file in files if file is not None}  # torch has modules of no real file
    ours = sorted(path for path in paths if path.is_relative_to(ROOT) and "site-packages" not in path.parts)
    return {str(path.relative_to(ROOT)): _digest(path) for path in ours}


def _main() -> None:
    from triton.runtime.jit import JITFunction

    from gnnserve_worker.gpu.absent_driver import use_absent_card

    seen: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        seen.append((self.__name__, kernel))

    JITFunction.run = compile_only
    found = []
    for architecture in ARCHITECTURES:
        use_absent_card(architecture)
        for case, launch in _cases():
            seen.clear()
            launch()
            for name, kernel in seen:
                found.append(Compiled(architecture, case, name, kernel.asm["ptx"], *_seen_in(kernel.asm["cubin"])))
    print(json.dumps(asdict(_Outcome(found, _imported(), _versions()))))


def _seen_in(cubin: bytes) -> tuple[int, int, list[str]]:
    """Of `_look_at`, kept beside what Triton keeps: to read the code of all kernels takes a processor half a minute."""
    kept = Path(os.environ["TRITON_CACHE_DIR"]) / f"seen-{hashlib.sha256(cubin).hexdigest()[:32]}.json"
    if not kept.exists():
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as file:
            json.dump(_look_at(cubin), file)
        Path(file.name).rename(kept)
    registers, spilled_bytes, atomics = json.loads(kept.read_text())
    return registers, spilled_bytes, atomics


def _look_at(cubin: bytes) -> tuple[int, int, list[str]]:
    """Registers, bytes of local memory, and atomic additions, of the very code that a GPU would load."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said, code = (
            subprocess.run([program, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2]) + int(found[3]), re.findall(r"\b(?:RED|ATOM)G?\.\S*ADD\S*", code)


def _cases() -> Iterator[tuple[str, Any]]:
    """Launches on arrays of a few numbers in the host's memory: only types, alignments and constants matter."""
    import torch

    from gnnserve_api.files.layers import Aggregation
    from gnnserve_worker.gpu.arrays import (
        AttentionRoom,
        CacheView,
        DeviceAggregation,
        DeviceAttention,
        DeviceGraph,
        DeviceRows,
        DeviceTable,
        DeviceWeights,
        DistinctRoom,
        PaddedTree,
        Shares,
    )
    from gnnserve_worker.gpu.kernels.aggregate import aggregate_hidden
    from gnnserve_worker.gpu.kernels.attending import joint_scores, key_scores, share_edges, sum_shares
    from gnnserve_worker.gpu.kernels.attention import score_rows, share_out
    from gnnserve_worker.gpu.kernels.distinct import share_rows
    from gnnserve_worker.gpu.kernels.extremes import REDUCED, reduce_hidden
    from gnnserve_worker.gpu.kernels.first_places import by_first_places
    from gnnserve_worker.gpu.kernels.gather import gather_rows
    from gnnserve_worker.gpu.kernels.sample import sample_tree
    from gnnserve_worker.gpu.room import DeviceRoom
    from gnnserve_worker.tables.table import Aggregator, Own

    host = torch.device("cpu")
    nodes, wide = 4, 640
    graph = DeviceGraph(torch.zeros(nodes + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    key = torch.zeros(1, dtype=torch.int64)

    changing = DeviceGraph(torch.zeros(nodes, 2, dtype=torch.int64), graph.indices)

    def sample(fanouts: tuple[int, ...], graph: DeviceGraph = graph) -> None:
        sample_tree(graph, torch.zeros(8, dtype=torch.int64), key, PaddedTree.allocate(8, fanouts, host))

    for fanouts in ((25, 10), (1024,)):
        yield f"sample {fanouts}", lambda fanouts=fanouts: sample(fanouts)
    yield "sample of a graph that changes", lambda: sample((25, 10), changing)
    places = PaddedTree.allocate(8, (25, 10), host)
    positions = torch.zeros(len(places.ids), dtype=torch.int64)
    yield (
        "sample with positions",
        lambda: sample_tree(graph, torch.zeros(8, dtype=torch.int64), key, places, positions),
    )

    tree = PaddedTree.allocate(8, (25, 10), host)
    mean = DeviceAggregation(Aggregator.MEAN, Own.BESIDE, own_factor=1.0, bias=None, relu=False)
    added = DeviceAggregation(Aggregator.SUM, Own.ADDED, own_factor=1.25, bias=torch.zeros(301), relu=True)
    weights = DeviceWeights(torch.zeros(nodes), graph.indptr)
    weighted = DeviceAggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, None, relu=False, weights=weights)
    weights_of_changing = replace(weighted, weights=DeviceWeights(weights.roots, changing.indptr))
    heads = 8
    attention = DeviceAttention(heads, 0.2, torch.zeros(2 * heads, 602))
    stored = DeviceAttention(heads, 0.2, None)
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int8)

    def rows_of(dtype: torch.dtype, width: int = wide) -> DeviceRows:
        return DeviceRows(torch.zeros(nodes, width, dtype=dtype), torch.zeros(nodes) if dtype == torch.int8 else None)

    def cache_of(dtype: torch.dtype, devices: int) -> CacheView:
        block_columns = 256 // dtype.itemsize
        blocks = -(-wide // block_columns)
        table = torch.zeros(blocks, nodes, dtype=torch.int32)
        pools = torch.zeros(devices, dtype=torch.int64)
        return CacheView(table, pools, 16, block_columns, table.clone(), torch.zeros(2, dtype=torch.int64))

    def gather(
        rows: DeviceRows,
        columns: int,
        aggregation: DeviceAggregation,
        out: torch.dtype,
        devices: int,
        *,
        behind: bool = False,
        shares: Shares | None = None,
    ) -> None:
        shape = (tree.rows, 2 * columns if aggregation.stacked else columns)
        cache = cache_of(rows.values.dtype, devices) if devices else None
        more = DeviceTable(rows, rows) if behind else None
        gather_rows(rows, rows, columns, tree, aggregation, torch.zeros(shape, dtype=out), cache, shares, more)

    for dtype, devices in zip(dtypes, (1, 0, 2, 1), strict=True):
        yield (
            f"gather {dtype} devices={devices}",
            lambda dtype=dtype, devices=devices: gather(rows_of(dtype), 602, mean, torch.bfloat16, devices),
        )
    yield "gather added", lambda: gather(rows_of(torch.float32), 301, added, torch.float32, 1)
    yield "gather weighted", lambda: gather(rows_of(torch.int8), 602, weighted, torch.bfloat16, 1)
    yield (
        "gather weighted of a graph that changes",
        lambda: gather(rows_of(torch.int8), 602, weights_of_changing, torch.bfloat16, 1),
    )

    for dtype, devices in ((torch.float16, 0), (torch.int8, 1)):
        yield (
            f"gather {dtype} devices={devices} behind",
            lambda dtype=dtype, devices=devices: gather(
                rows_of(dtype), 602, mean, torch.bfloat16, devices, behind=True
            ),
        )
    known = Shares(torch.zeros(tree.ends[-1], 1), torch.zeros(tree.rows, 1))
    yield (
        "gather weighed before",
        lambda: gather(rows_of(torch.int8), 602, weighted, torch.bfloat16, 0, behind=True, shares=known),
    )

    def attend(
        rows: DeviceRows, columns: int, attention: DeviceAttention, devices: int, *, behind: bool = False
    ) -> None:
        cache = cache_of(rows.values.dtype, devices) if devices else None
        aggregation = DeviceAggregation(Aggregator.ATTENTION, Own.ADDED, 1.0, None, relu=False, attention=attention)
        shares = room()
        more = DeviceTable(rows, rows) if behind else None
        score_rows(rows, columns, tree, attention, shares, cache, rows if behind else None)
        share_out(tree, tree.rows, attention, shares)
        out = torch.zeros(tree.rows, aggregation.width(columns))
        gather_rows(rows, rows, columns, tree, aggregation, out, cache, shares.shares, more)

    def room() -> AttentionRoom:
        shares = Shares(torch.zeros(tree.ends[-1], heads), torch.zeros(tree.rows, heads))
        return AttentionRoom(torch.zeros(tree.ends[-1], 2 * heads), shares)

    yield "attention", lambda: attend(rows_of(torch.float32), 602, attention, 1)
    yield "attention int8", lambda: attend(rows_of(torch.int8), 602, attention, 0)
    yield "attention behind", lambda: attend(rows_of(torch.int8), 602, attention, 1, behind=True)
    yield "attention stored", lambda: attend(rows_of(torch.float16), 144, stored, 1)

    def share(rows: DeviceRows, columns: int, devices: int, attention: DeviceAttention | None = None) -> None:
        cache = cache_of(rows.values.dtype, devices) if devices else None
        places = DistinctRoom.allocate(tree.ids.numel(), 4 * wide * tree.ids.numel(), host)
        scored = attention is not None
        distinct = share_rows(rows, columns, tree, cache, places, reads_own=True, reads_scores=scored)
        aggregation = mean
        attended = None
        if attention is not None:
            aggregation = DeviceAggregation(Aggregator.ATTENTION, Own.ADDED, 1.0, None, relu=False, attention=attention)
            attended = room()
            score_rows(rows, columns, tree, attention, attended, cache, None, distinct)
        out = torch.zeros(tree.rows, aggregation.width(columns), dtype=torch.float32)
        shares = None if attended is None else attended.shares
        gather_rows(rows, rows, columns, tree, aggregation, out, cache, shares, None, distinct)

    yield "shared rows", lambda: share(rows_of(torch.float32), 602, 1)
    yield "shared rows int8", lambda: share(rows_of(torch.int8), 602, 0)
    yield "shared rows attention", lambda: share(rows_of(torch.float16), 602, 2, attention)
    yield "gather short", lambda: gather(rows_of(torch.int8, 2), 1, mean, torch.float32, 0)

    def aggregate(width: int, aggregation: DeviceAggregation, out: torch.dtype) -> None:
        shape = (tree.seeds, 2 * width if aggregation.stacked else width)
        hidden = torch.zeros(tree.rows, width)
        aggregate_hidden(hidden, tree, tree.seeds, aggregation, torch.zeros(shape, dtype=out))

    yield "aggregate", lambda: aggregate(128, mean, torch.bfloat16)
    yield "aggregate added", lambda: aggregate(301, added, torch.float32)

    def aggregate_attending() -> None:
        aggregation = DeviceAggregation(Aggregator.ATTENTION, Own.ADDED, 1.0, None, relu=False, attention=attention)
        hidden, out = torch.zeros(tree.rows, 128), torch.zeros(tree.seeds, heads * 128)
        aggregate_hidden(hidden, tree, tree.seeds, aggregation, out, room().shares)

    yield "aggregate attending", aggregate_attending
    yield "aggregate weighted", lambda: aggregate(128, weighted, torch.bfloat16)
    yield "aggregate weighted of a graph that changes", lambda: aggregate(128, weights_of_changing, torch.bfloat16)

    yield "lists by node", lambda: by_first_places(tree, DeviceRoom(2**20, host))

    def reduce(kind: Aggregation) -> None:
        reduce_hidden(torch.zeros(tree.ends[-1], 128), tree, tree.rows, kind, torch.zeros(tree.rows, 128))

    for kind in REDUCED:
        yield f"aggregate {kind}", lambda kind=kind: reduce(kind)

    def attend_listed(score: Callable[[torch.Tensor, torch.Tensor | None], None], *, loops: bool, apart: bool) -> None:
        scores, own = torch.zeros(tree.ends[-1], heads), torch.zeros(tree.rows, heads) if loops else None
        score(scores, own)
        shares, hidden = room().shares, torch.zeros(tree.ends[-1], 128)
        share_edges(scores, None, own, 0.0, tree, tree.rows, shares, has_self_loops=loops)
        of_head = 128 // heads if apart else 128
        out = torch.zeros(tree.rows, heads, of_head)
        sum_shares(hidden, tree, tree.rows, shares, of_head, out, is_apart=apart, has_self_loops=loops)

    sources, queries = torch.zeros(tree.ends[-1], 128), torch.zeros(tree.rows, heads * 128)
    vector = torch.zeros(128)
    yield (
        "attention of both ends",
        lambda: attend_listed(
            lambda scores, own: joint_scores(sources, sources, vector, 0.2, tree, tree.rows, heads, scores, own),
            loops=True,
            apart=True,
        ),
    )
    yield (
        "attention of keys",
        lambda: attend_listed(
            lambda scores, _: key_scores(sources, queries, tree, tree.rows, heads, 128, scores, is_apart=False),
            loops=False,
            apart=False,
        ),
    )
    targets = torch.zeros(tree.rows, heads)
    yield (
        "attention added",
        lambda: share_edges(
            torch.zeros(tree.ends[-1], heads), targets, None, 0.2, tree, tree.rows, room().shares, has_self_loops=True
        ),
    )


if __name__ == "__main__":
    _main()
