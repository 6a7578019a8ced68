"""The paper's tables 2 and 3 on synthetic graphs of the shapes of its five data sets: latency, size and memory.

Each graph is generated as a user's would be (given weights, Random ranking, factors 1, 2, 4 and 8, float32, nothing
projected), and its profile is read: the paper's window (gathering and computing, no sampling) and the whole batch.
Ratios stand beside the paper's, whose window was a transfer to a GPU and computing there; `differs` says what makes
them differ. One graph at a time, in a process of its own; what it published is removed again.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from rich.console import Console
from rich.table import Table

from benchmarks.engine.paper_tables import CELLS, FACTORS, GRAPHS, MODELS, PaperGraph, fixed_share, weight_bytes
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import CACHE, FANOUTS, SHAPES, Shape, ShapeFiles, prepare, write_graph
from benchmarks.verdicts import Verdict, exactly

ROOT = Path(__file__).parents[2]
SEEDS = 1024
_LINE_BYTES = 64
SIZE_LIMITS_KIB = {"GraphSAGE": 10, "GIN": 17}
"""How far a model's file may be from the paper's, whose framing (torch.save's) is of 6 to 17 KiB."""
_NAMES = {"GraphSAGE": "sage", "GIN": "gin"}

Row = dict[str, Any]


def run_graph(name: str, _: Run) -> dict[str, Any]:
    graph = _measure_elsewhere(name)
    print(f"  {graph['seconds']:.0f} s, {graph['peak_memory_mib']:,} MiB at most", flush=True)
    rows = compare(graph["rows"])
    return {
        "fanouts": FANOUTS,
        "seeds": SEEDS,
        "graphs": [{key: value for key, value in graph.items() if key != "rows"}],
        "rows": rows,
    }


def show(found: Mapping[str, Any]) -> None:
    Console(width=140).print(table_of(found["rows"]))


def shape_of(name: str) -> Shape:
    """The shape of that name; that of the other benchmarks where they have it, whose files exist already."""
    if name in SHAPES:
        return SHAPES[name]
    graph = GRAPHS[name]
    return Shape(name, graph.nodes, graph.edges, graph.features, graph.sage_hidden, graph.classes)


def _measure_elsewhere(name: str) -> dict[str, Any]:
    code = (
        "import json; from benchmarks.engine.paper_shapes import measure_graph; "
        f"print(json.dumps(measure_graph({name!r})))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_graph(name: str) -> dict[str, Any]:
    started = time.perf_counter()
    graph, files = GRAPHS[name], prepare(shape_of(name))
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{name}-") as folder:
        source = Path(folder) / "graph.npz"
        write_graph(files, source, multi_label=graph.multi_label)
        rows = [row for model in MODELS for row in _measure_model(name, model, files, source)]
    return {
        "graph": name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "features": graph.features,
        "classes": graph.classes,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rows": rows,
    }


def _measure_model(name: str, model: str, files: ShapeFiles, source: Path) -> list[Row]:
    from gnnserve_api.spec.service import GNNService
    from gnnserve_worker.generation.pipeline import generate
    from gnnserve_worker.repository.repository import Repository

    graph = GRAPHS[name]
    checkpoint = source.with_name(f"{_NAMES[model]}.safetensors")
    safetensors.numpy.save_file(random_model(graph, model), checkpoint)
    service = GNNService.model_validate(_manifest(name, model, source, checkpoint))
    with tempfile.TemporaryDirectory(dir=source.parent) as root:
        profile = generate(service, Repository(Path(root), "paper", name)).profile
    rows = []
    for factor in FACTORS:
        variant = profile.variant(f"x{factor}")
        timing = next(point for point in variant.latency if point.seeds == SEEDS)
        rows.append(
            {
                "graph": name, "model": model, "factor": factor, "columns": variant.columns, "runs": timing.runs,
                "window_p50_ms": timing.window_p50_ms, "window_mean_ms": timing.window_mean_ms,
                "window_std_ms": timing.window_std_ms, "request_p50_ms": timing.p50_ms,
                "request_mean_ms": timing.mean_ms, "sample_ms": timing.sample_ms, "gather_ms": timing.gather_ms,
                "compute_ms": timing.compute_ms, "gathered_bytes": timing.gathered_bytes,
                "size_bytes": variant.size_bytes, "memory_bytes": variant.memory_bytes,
            }
        )  # fmt: skip
    return rows


def random_model(graph: PaperGraph, model: str) -> dict[str, np.ndarray]:
    """A state dict of a two-layer torch_geometric.nn.GraphSAGE, or of its GIN with the paper's narrower inside."""
    draw = np.random.default_rng(20261121)
    tensors: dict[str, np.ndarray] = {}

    def linear(key: str, inputs: int, outputs: int, *, bias: bool = True) -> None:
        tensors[f"{key}.weight"] = (draw.uniform(-1, 1, (outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        if bias:
            tensors[f"{key}.bias"] = np.zeros(outputs, dtype=np.float32)

    hidden = graph.sage_hidden if model == "GraphSAGE" else graph.gin_hidden
    for layer, (inputs, outputs) in enumerate(((graph.features, hidden), (hidden, graph.classes))):
        key = f"convs.{layer}"
        if model == "GraphSAGE":
            linear(f"{key}.lin_l", inputs, outputs)
            linear(f"{key}.lin_r", inputs, outputs, bias=False)
        else:
            linear(f"{key}.nn.lins.0", inputs, graph.gin_mlp_hidden)
            linear(f"{key}.nn.lins.1", graph.gin_mlp_hidden, outputs)
            tensors[f"{key}.eps"] = np.zeros(1, dtype=np.float32)
    return tensors


def _manifest(name: str, model: str, source: Path, checkpoint: Path) -> dict[str, Any]:
    graph = GRAPHS[name]
    widths = (
        {"hidden": graph.sage_hidden}
        if model == "GraphSAGE"
        else {"hidden": graph.gin_hidden, "mlpHidden": graph.gin_mlp_hidden}
    )
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": f"{name}-{_NAMES[model]}"},
        "spec": {
            "graph": {"source": {"npz": {"uri": source.as_uri()}}, "normalization": "Disabled"},
            "model": {
                "architecture": model,
                **widths,
                "fanouts": FANOUTS,
                "checkpoint": {"uri": checkpoint.as_uri()},
            },
            "variants": {
                "pruning": {"method": "Random", "factors": FACTORS},
                "storage": ["float32"],
                "projection": "Disabled",
            },
        },
    }


def compare(rows: Sequence[Row]) -> list[Row]:
    """Each row with its ratios (1x over kx) beside the paper's, its size beside the formula's and the paper's."""
    whole = {(row["graph"], row["model"]): row for row in rows if row["factor"] == 1}
    return [{**row, **_comparison(row, whole[row["graph"], row["model"]])} for row in rows]


def _comparison(row: Row, first: Row) -> dict[str, Any]:
    graph, cells = GRAPHS[row["graph"]], CELLS[row["graph"], row["model"]]
    paper, paper_first = cells[row["factor"]], cells[1]
    formula = weight_bytes(graph, row["model"], row["columns"])

    def ratio(field: str) -> float:
        return round(first[field] / row[field], 3)

    def with_labels(one: Row) -> float:
        return float(one["memory_bytes"] + graph.nodes * graph.label_bytes)

    window = ratio("window_p50_ms")
    paper_ratio = paper_first.latency_ms / paper.latency_ms
    lines = _lines(first["columns"]) / _lines(row["columns"])
    fixed = fixed_share(graph, row["model"], row["columns"], SEEDS, FANOUTS[0])
    return {
        "ratio": window,
        "paper_ratio": round(paper_ratio, 3),
        "over_paper": round(window / paper_ratio, 3),
        "ratio_request": ratio("request_p50_ms"),
        "ratio_gather": ratio("gather_ms"),
        "ratio_compute": ratio("compute_ms"),
        "paper_ratio_transfer": round(paper_first.transfer_ms / paper.transfer_ms, 3),
        "ratio_columns": round(first["columns"] / row["columns"], 3),
        "ratio_cache_lines": round(lines, 3),
        "products_fixed_share": round(fixed, 3),
        "gather_over_compute": round(row["gather_ms"] / row["compute_ms"], 3),
        "paper_comm_over_comp": paper.comm_over_comp,
        "size_kib": round(row["size_bytes"] / 1024, 1),
        "formula_kib": round(formula / 1024, 1),
        "paper_size_kib": paper.size_kib,
        "size_below_paper_kib": round(paper.size_kib - row["size_bytes"] / 1024, 1),
        "memory_mib": round(row["memory_bytes"] / 2**20, 1),
        "memory_with_labels_mib": round(with_labels(row) / 2**20, 1),
        "paper_memory_mib": paper.memory_mib,
        "ratio_memory": round(with_labels(first) / with_labels(row), 3),
        "paper_ratio_memory": round(paper_first.memory_mib / paper.memory_mib, 3),
        "differs": _why(row, first, window / paper_ratio, lines, fixed),
    }


def _lines(columns: int) -> int:
    """Cache lines of a row's first columns, all of which begin at one: every table here is wider than a line."""
    return -(-4 * columns // _LINE_BYTES)


_ALIKE = 0.2
"""A ratio within this share of the paper's is called alike."""


def _why(row: Row, first: Row, over_paper: float, lines: float, fixed: float) -> str:
    """Says, from the stages, what keeps the window from shrinking as the paper's did, or makes it shrink more."""
    if row["factor"] == 1 or abs(over_paper - 1) <= _ALIKE:
        return ""
    gather, compute = first["gather_ms"] / row["gather_ms"], first["compute_ms"] / row["compute_ms"]
    share = first["compute_ms"] / (first["compute_ms"] + first["gather_ms"])
    stages = f"gather {gather:.2f}x faster ({lines:.2f}x fewer cache lines), compute {compute:.2f}x ({share:.0%} of 1x)"
    if over_paper > 1:
        return f"{stages}: no fixed cost of a copy to a device, and products shrink as well"
    if compute < gather:
        return f"{stages}: computing weighs more than on a GPU, and {fixed:.0%} of its products are not pruned"
    return f"{stages}: reading shrinks less than a copy does"


def verdicts_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What is looked at first; `rows` are those of `compare`."""
    off = [row for row in rows if abs(row["size_below_paper_kib"]) > SIZE_LIMITS_KIB[row["model"]]]
    framing = max(row["size_bytes"] / 1024 - row["formula_kib"] for row in rows)
    pruned = [row for row in rows if row["factor"] > 1]
    memory = max(abs(row["ratio_memory"] / row["paper_ratio_memory"] - 1) for row in pruned)
    below = [row for row in pruned if row["over_paper"] < 1 - _ALIKE]
    above = [row for row in pruned if row["over_paper"] > 1 + _ALIKE]
    falling = [
        (row["graph"], row["model"])
        for row, wider in zip(rows[1:], rows, strict=False)
        if row["factor"] > 1 and row["window_p50_ms"] >= wider["window_p50_ms"]
    ]
    return {
        "sizes_within_limits": not off,
        "sizes_off": [_name(row) for row in off],
        "file_framing_kib": round(framing, 2),
        "memory_ratio_off_by": round(memory, 3),
        "window_falls_with_every_factor": not falling,
        "window_ratios_alike": len(pruned) - len(below) - len(above),
        "window_ratios_below_paper": [_name(row) for row in below],
        "window_ratios_above_paper": [_name(row) for row in above],
    }


def _name(row: Row) -> str:
    return f"{row['graph']} {row['model']} {row['factor']}x"


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(
        "Graph", "Model", title=f"Batches of {SEEDS} nodes, ms; ratios are 1x over kx, the paper's in brackets"
    )
    for header in ("kx", "Window", "Ratio", "Request", "Ratio", "Gather", "Compute", "KiB", "MiB with labels"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row["graph"], row["model"], f"{row['factor']}x",
            f"{row['window_p50_ms']:.2f}", f"{row['ratio']:.2f} ({row['paper_ratio']:.2f})",
            f"{row['request_p50_ms']:.2f}", f"{row['ratio_request']:.2f}",
            f"{row['gather_ms']:.2f}", f"{row['compute_ms']:.2f}",
            f"{row['size_kib']:.0f} ({row['paper_size_kib']:.0f})",
            f"{row['memory_with_labels_mib']:.0f} ({row['paper_memory_mib']:.0f})",
            end_section=row["factor"] == FACTORS[-1],
        )  # fmt: skip
    return table


VERDICTS = (
    Verdict("sizes that are further from the paper's than its table's digits allow", exactly(0),
            lambda found: len(verdicts_of(found["rows"])["sizes_off"])),
)  # fmt: skip
BENCHMARK = Benchmark(
    "shapes",
    tuple(Part(name, partial(run_graph, name)) for name in GRAPHS),
    VERDICTS,
    about=__doc__,
    quick=("flickr",),
    show=show,
)

if __name__ == "__main__":
    main(BENCHMARK)
