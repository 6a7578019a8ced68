"""How fast tables of edges become a graph, and in how much memory: 100 million edges between 2 million nodes.

Parquet and CSV, with integers and with texts as ids, each in a process of its own whose peak of resident memory is
read at its end. Beside it, in the same run, what one writes by hand: pyarrow reads both tables whole and finds the
ids, and scipy turns the pairs into CSR and adds the other direction. Tables are made up once and kept in
`~/.cache/gnnserve/bench`; they are in the page cache when they are read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import scipy.sparse as sp
from rich.console import Console
from rich.table import Table

from benchmarks.results import Benchmark, Part, Run, main
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.tables import CsvEdgeTable, CsvNodeTable, CsvSource, EdgeTable, NodeTable, ParquetSource
from gnnserve_worker.graph.sources.load import load_source, source_digest

CACHE = Path.home() / ".cache" / "gnnserve" / "bench"
FORMATS = ("parquet", "csv")
IDS = ("integers", "texts")
IMPORTERS = ("gnnserve", "pyarrow and scipy")
FEATURES, CLASSES = 16, 10
_CHUNK_EDGES = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    edges: int
    rounds: int


FULL = Size(nodes=2_000_000, edges=100_000_000, rounds=3)
QUICK = Size(nodes=100_000, edges=2_000_000, rounds=1)
WARM_UP = Size(nodes=100, edges=300, rounds=1)


def run_case(kind: str, ids: str, run: Run) -> dict[str, Any]:
    size = QUICK if run.quick else FULL
    tables = made_up_tables(CACHE, size, kind, ids)
    rounds = [{importer: in_a_process(tables, kind, importer) for importer in IMPORTERS} for _ in range(size.rounds)]
    cases = []
    for importer in IMPORTERS:
        cases.append(summarize(size, kind, ids, importer, [each[importer] for each in rounds]))
        cases[-1]["tableBytes"] = sum(path.stat().st_size for path in (tables / "edges", tables / "nodes"))
    return {"nodes": size.nodes, "edges": size.edges, "features": FEATURES, "rounds": size.rounds, "cases": cases}


def in_a_process(tables: Path, kind: str, importer: str) -> dict[str, Any]:
    """Runs `measure` in a fresh one."""
    code = f"from benchmarks.starts.importing import measure; measure({str(tables)!r}, {kind!r}, {importer!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{tables.name}: {importer}: {measured['seconds']:.1f} s, {measured['peakBytes'] / 2**30:.2f} GiB", flush=True
    )
    return measured


def measure(tables: str, kind: str, importer: str) -> None:
    """Prints what it took as JSON."""
    run: Callable[[Path, str], int] = by_gnnserve if importer == "gnnserve" else by_hand
    with tempfile.TemporaryDirectory(prefix="gnnserve-import-") as folder:
        ids = Path(tables).name.split("-")[1]
        run(made_up_tables(Path(folder), WARM_UP, kind, ids), kind)  # kernels are compiled or loaded
    source_digest(_source(Path(tables), kind))  # and the files are in the page cache
    before_bytes = _peak_bytes()
    started_s = time.perf_counter()
    directed_edges = run(Path(tables), kind)
    seconds = time.perf_counter() - started_s
    print(json.dumps(
        {"seconds": seconds, "directedEdges": directed_edges, "peakBytes": _peak_bytes(), "beforeBytes": before_bytes}
    ))  # fmt: skip


def by_gnnserve(tables: Path, kind: str) -> int:
    return load_source(_source(tables, kind), tables).graph.edges


def by_hand(tables: Path, kind: str) -> int:
    read = pq.read_table if kind == "parquet" else pa_csv.read_csv
    nodes = read(str(tables / "nodes"))
    np.column_stack([nodes[f"f{column}"].to_numpy() for column in range(FEATURES)]).astype(np.float32)
    ids = nodes["id"].combine_chunks()
    edges = read(str(tables / "edges"))
    positions = [pc.index_in(edges[end], value_set=ids).to_numpy() for end in ("source", "target")]
    del edges
    shape = (len(ids), len(ids))
    listed = sp.coo_array((np.ones(len(positions[0]), dtype=np.bool_), tuple(positions)), shape=shape).tocsr()
    del positions
    both = (listed + listed.T.tocsr()).tocsr()
    both.sort_indices()
    return int(both.nnz)


def made_up_tables(folder: Path, size: Size, kind: str, ids: str) -> Path:
    """A folder with the files `nodes` and `edges`. A few nodes have many of the edges, as in real graphs."""
    tables = folder / f"import-{ids}-{size.edges}-{kind}"
    if (tables / "edges").exists():
        return tables
    tables.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    numbers = pa.array(draw.permutation(size.nodes) * 7919 + 13)  # no positions, and in no order
    names = numbers if ids == "integers" else pc.binary_join_element_wise("user-", numbers.cast(pa.string()), "")
    features = draw.normal(size=(size.nodes, FEATURES)).astype(np.float32)
    columns = {f"f{column}": features[:, column] for column in range(FEATURES)}
    _write(
        tables / "nodes", kind,
        [pa.table({"id": names, "label": draw.integers(0, CLASSES, size.nodes), **columns})],
    )  # fmt: skip

    def chunk(start: int) -> pa.Table:
        count = min(_CHUNK_EDGES, size.edges - start)
        targets = (size.nodes * draw.random(count) ** 3).astype(np.int64)
        return pa.table(
            {
                "source": names.take(pa.array(draw.integers(0, size.nodes, count))),
                "target": names.take(pa.array(targets)),
            }
        )

    _write(tables / "edges", kind, (chunk(start) for start in range(0, size.edges, _CHUNK_EDGES)))
    return tables


def _write(path: Path, kind: str, chunks: Any) -> None:
    """Writes the file under another name until it is whole."""
    unfinished = path.with_suffix(".unfinished")
    writer: Any = None
    for chunk in chunks:
        if writer is None:
            writer = (pq.ParquetWriter if kind == "parquet" else pa_csv.CSVWriter)(str(unfinished), chunk.schema)
        writer.write_table(chunk)
    writer.close()
    unfinished.rename(path)


def _source(tables: Path, kind: str) -> GraphSource:
    nodes, edges = (tables / "nodes").as_uri(), (tables / "edges").as_uri()
    if kind == "parquet":
        return GraphSource(parquet=ParquetSource(nodes=NodeTable(uri=nodes, label="label"), edges=EdgeTable(uri=edges)))
    return GraphSource(csv=CsvSource(nodes=CsvNodeTable(uri=nodes, label="label"), edges=CsvEdgeTable(uri=edges)))


def _peak_bytes() -> int:
    """Peak memory of this program alone: `ru_maxrss` starts at the value of the parent process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def summarize(size: Size, kind: str, ids: str, importer: str, rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    seconds = statistics.median(each["seconds"] for each in rounds)
    return {
        "format": kind,
        "ids": ids,
        "importer": importer,
        "seconds": seconds,
        "edgesPerSecond": size.edges / seconds,
        "lowestSeconds": min(each["seconds"] for each in rounds),
        "highestSeconds": max(each["seconds"] for each in rounds),
        "peakBytes": max(each["peakBytes"] for each in rounds),
        "beforeBytes": max(each["beforeBytes"] for each in rounds),
        "directedEdges": rounds[0]["directedEdges"],
    }


def show(cases: Sequence[dict[str, Any]]) -> None:
    table = Table("format", "ids", "importer", title="import", title_justify="left")
    for heading in ("tables, GB", "seconds", "million edges/s", "peak, GiB"):
        table.add_column(heading, justify="right")
    for case in cases:
        table.add_row(
            case["format"], case["ids"], case["importer"], f"{case['tableBytes'] / 1e9:.2f}", f"{case['seconds']:.1f}",
            f"{case['edgesPerSecond'] / 1e6:.1f}", f"{case['peakBytes'] / 2**30:.2f}",
        )  # fmt: skip
    Console().print(table)


BENCHMARK = Benchmark(
    "import",
    tuple(Part(f"{kind} of {ids}", partial(run_case, kind, ids)) for kind in FORMATS for ids in IDS),
    about=__doc__,
    show=lambda found: show(found["cases"]),
)

if __name__ == "__main__":
    main(BENCHMARK)
