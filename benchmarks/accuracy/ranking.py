"""The ranking study (Dynamic GNN inference as-a-service, section 4.1): does it matter which columns are kept?

Random, Greedy and Lasso at 2x, 4x and 8x beside 1x, GraphSAGE and GIN, over `../shared/datasets` (or
`$GNNSERVE_DATASETS`). Every variant is trained anew with its master's hyper-parameters. One process per core and job
(graph, model, seed); finished jobs are kept under `~/.cache/gnnserve/bench`, so an interrupted run goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.accuracy.ranking_findings import SPREAD_SUFFIX, judge_findings
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import CACHE

if TYPE_CHECKING:
    from benchmarks.accuracy.generation import Prepared
    from gnnserve_api.spec.model import Model
    from gnnserve_worker.generation.train import TrainedNetwork

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/ranking.png"
FACTORS = (2, 4, 8)
SEEDS = (0, 1, 2)
MODELS = ("GraphSAGE", "GIN")
METHODS = ("Random", "Greedy", "Lasso")
_T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a two-sided 95 % interval of the mean, by the number of values."""


@dataclass(frozen=True, slots=True)
class Study:
    graph: str
    scope: str
    epochs: int
    judged_by: str
    """`accuracy`, `f1Micro`, or `rocAuc` where almost all nodes are of one class."""
    cost_s: float
    """Seconds of one job on one core, as measured once: for the order of the jobs and the remaining time."""
    models: tuple[str, ...] = MODELS
    spread_columns: bool = False
    """Multiply each scaled column by a number of its own, from 10^-1.5 to 10^1.5, and do not scale again: the
    paper blames Greedy's failure on Products on such columns, and every graph here is scaled before training."""

    @property
    def name(self) -> str:
        return self.graph + SPREAD_SUFFIX * self.spread_columns


_SAGE_ONLY = ("GraphSAGE",)
"""Architectures for graphs where GIN does not beat the most frequent class (tried: rates from 0.0003 to 0.01 on
tolokers, 0.001 on yelpchi): rankings of a model that has learnt nothing would tell nothing."""
STUDIES = (
    Study("cora", "Transductive", 200, "accuracy", 25),
    Study("citeseer", "Transductive", 200, "accuracy", 45),
    Study("amazon_photo", "Inductive", 40, "accuracy", 80),
    Study("amazon_photo", "Inductive", 40, "accuracy", 80, spread_columns=True),
    Study("amazon_computers", "Inductive", 30, "accuracy", 150),
    Study("facebook_pages", "Inductive", 20, "accuracy", 150),
    Study("eukloc", "Inductive", 100, "f1Micro", 65),
    Study("tolokers", "Inductive", 40, "rocAuc", 70, models=_SAGE_ONLY),
    Study("yelpchi", "Inductive", 10, "rocAuc", 165, models=_SAGE_ONLY),
)


@dataclass(frozen=True, slots=True)
class Job:
    study: Study
    model: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.study.name}, {self.model}, seed {self.seed}"


def run_studies(run: Run) -> dict[str, Any]:
    studies: Sequence[Study] = [replace(STUDIES[0], epochs=3)] if run.quick else STUDIES
    seeds = SEEDS[:1] if run.quick else SEEDS
    jobs = [Job(study, model, seed) for study in studies for model in study.models for seed in seeds]
    rows = rows_of(run_all(jobs, len(os.sched_getaffinity(0))))
    return {"seeds": list(seeds), "studies": [asdict(study) for study in studies], "rows": rows}


def show(found: Mapping[str, Any]) -> None:
    console = Console(width=120)
    console.print(accuracies_table(found["rows"]))
    console.print(findings_table(judge_findings(found["rows"])))


def run_all(jobs: Sequence[Job], processes: int) -> list[dict[str, Any]]:
    """What each job found, in the order of `jobs`; those that an earlier run finished are read from the cache."""
    cache = ResultCache(CACHE / "ranking.jsonl", _data_digests({job.study.graph for job in jobs}), _code_identity())
    known = {job: cache.find(job) for job in jobs}
    left = sorted((job for job in jobs if known[job] is None), key=lambda job: -job.study.cost_s)
    progress = Progress(len(jobs), sum(job.study.cost_s for job in left))
    print(f"{len(jobs)} jobs, {len(jobs) - len(left)} of them done before", flush=True)

    def work(job: Job) -> None:
        result = _run_elsewhere(job)
        cache.add(job, result)
        known[job] = result
        print(progress.finished(job, result["seconds"], len(jobs) - sum(r is None for r in known.values())), flush=True)

    with ThreadPoolExecutor(processes) as pool:
        waiting = [pool.submit(work, job) for job in left]
        try:
            for done in waiting:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return [result for result in known.values() if result is not None]


class Progress:
    """How long the rest will take, if it takes as long as what is done did for its cost."""

    def __init__(self, jobs: int, cost_s: float) -> None:
        self._jobs = jobs
        self._left_s = cost_s
        self._done_s = 0.0
        self._started = time.monotonic()

    def finished(self, job: Job, seconds: float, done: int) -> str:
        self._done_s += job.study.cost_s
        self._left_s -= job.study.cost_s
        minutes = (time.monotonic() - self._started) / self._done_s * self._left_s / 60
        return f"{done}/{self._jobs}: {job.title}: {seconds:.0f} s; about {minutes:.0f} min left"


class ResultCache:
    """Lines of JSON; a line counts only for the job, the data, the code and the libraries that it was made with."""

    def __init__(self, path: Path, data: Mapping[str, str], code: Sequence[str]) -> None:
        """`data`: the digest of each graph; `code`: whatever else results depend on."""
        self._path = path
        self._data = data
        self._code = code
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # half a line, of a run that was killed while it wrote
            self._found[entry["key"]] = entry["result"]

    def find(self, job: Job) -> dict[str, Any] | None:
        return self._found.get(self._key(job))

    def add(self, job: Job, result: dict[str, Any]) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                # Begins a line of its own, also after half a line.
                file.write("\n" + json.dumps({"key": self._key(job), "result": result}) + "\n")

    def _key(self, job: Job) -> str:
        settings = {key: value for key, value in asdict(job.study).items() if key not in ("cost_s", "models")}
        parts = [settings, job.model, job.seed, FACTORS, self._data[job.study.graph], *self._code]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _data_digests(graphs: set[str]) -> dict[str, str]:
    from benchmarks.accuracy.generation import DATASETS

    digests = {}
    for graph in sorted(graphs):
        path = DATASETS / f"{graph}.npz"
        if not path.is_file():
            raise SystemExit(f"{path} is not there: set GNNSERVE_DATASETS to the folder of {graph}.npz")
        digests[graph] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _code_identity() -> list[str]:
    """Everything of ours that a job runs, and its libraries."""
    import gnnserve_api
    import gnnserve_worker

    worker, api, own = Path(gnnserve_worker.__path__[0]), Path(gnnserve_api.__path__[0]), Path(__file__).parent
    files = [path for part in ("generation", "sampling", "graph", "kernels") for path in (worker / part).rglob("*.py")]
    files += [*(api / "spec").glob("*.py"), *(own / f"{name}.py" for name in ("ranking", "retraining", "generation"))]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return [digest.hexdigest(), *map(version, ("torch", "torch-geometric", "numpy", "scikit-learn"))]


def _run_elsewhere(job: Job) -> dict[str, Any]:
    """Runs it in a process of one thread, which gives its memory back."""
    command = [
        sys.executable,
        "-c",
        "from benchmarks.accuracy.ranking import print_job; print_job()",
        json.dumps(asdict(job)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_job() -> None:
    """Run the job that the command line gives as JSON."""
    print(json.dumps(run_job(_job(json.loads(sys.argv[1])))))


def _job(found: dict[str, Any]) -> Job:
    study = {**found["study"], "models": tuple(found["study"]["models"])}
    return Job(Study(**study), found["model"], found["seed"])


def run_job(job: Job) -> dict[str, Any]:
    """Train the master, then rank and train anew by every method and factor."""
    import torch

    from benchmarks.accuracy.retraining import retrain
    from gnnserve_api.spec.pruning import RankingMethod
    from gnnserve_worker.generation.train import train_on_rows

    torch.set_num_threads(1)
    started = time.perf_counter()
    prepared, model = _prepare(job)
    master = train_on_rows(prepared.data, prepared.features, model)
    figures = _judge(prepared, model, master, prepared.features)
    variants = [{"method": method, "factor": 1, **figures} for method in METHODS]
    for method in METHODS:
        found = retrain(RankingMethod(method), master, prepared.data, prepared.features, model, FACTORS)
        for variant in found:
            figures = _judge(prepared, model, variant.trained, variant.features)
            variants.append({"method": method, "factor": variant.factor, **figures})
    return {
        "graph": job.study.name,
        "model": job.model,
        "seed": job.seed,
        "judged_by": job.study.judged_by,
        "features": prepared.features.shape[1],
        "deviation_spread": _deviation_spread(prepared.features),
        "variants": variants,
        "seconds": time.perf_counter() - started,
    }


def _prepare(job: Job) -> tuple[Prepared, Model]:
    from benchmarks.accuracy.generation import Case, prepare
    from gnnserve_api.spec.model import Architecture, Model, Scope, Training

    study = job.study
    scope = Scope(study.scope)
    prepared = prepare(Case(study.graph, scope, study.epochs, split="", wanted=0.0))
    if study.spread_columns:
        columns = prepared.features.shape[1]
        factors = 10 ** np.random.default_rng(0).uniform(-1.5, 1.5, columns)
        prepared = replace(prepared, features=(prepared.features * factors).astype(np.float32))
    training = Training(epochs=study.epochs, scope=scope, seed=job.seed)
    return prepared, Model(architecture=Architecture(job.model), training=training)


def _judge(prepared: Prepared, model: Model, trained: TrainedNetwork, features: Any) -> dict[str, Any]:
    """Scores on the test nodes. `accuracy`: F1-micro for several labels a node; `roc_auc`: for two classes."""
    from sklearn.metrics import roc_auc_score

    from gnnserve_worker.generation.train import predict
    from gnnserve_worker.tasks.classify_nodes.metrics import evaluate

    graph, test = prepared.graph, prepared.graph.splits.test
    scores = predict(trained.tensors, features, graph.graph, test, model, prepared.data.classes)
    labels = graph.labels[test]
    two_classes = labels.ndim == 1 and scores.shape[1] == 2
    auc = float(roc_auc_score(labels, scores[:, 1] - scores[:, 0])) if two_classes else None
    return {"columns": features.shape[1], "accuracy": evaluate(scores, labels), "roc_auc": auc}


def _deviation_spread(features: Any) -> float:
    """Largest standard deviation of a column over the median one, as the model sees them."""
    if isinstance(features, np.ndarray):
        deviations = features.std(axis=0, dtype=np.float64)
    else:
        means = np.asarray(features.mean(axis=0)).ravel()
        squares = np.asarray(features.multiply(features).mean(axis=0)).ravel()
        deviations = np.sqrt(np.maximum(squares - means**2, 0))
    return float(deviations.max() / np.median(deviations))


def rows_of(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per graph, model, method and factor, over all seeds. 1x has no ranking: its rows are alike."""
    grouped: dict[tuple[str, str, str, int], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for result in results:
        for variant in result["variants"]:
            key = (result["graph"], result["model"], variant["method"], variant["factor"])
            grouped.setdefault(key, []).append((result, variant))
    rows = []
    for (graph, model, method, factor), members in grouped.items():
        members.sort(key=lambda member: member[0]["seed"])
        result, variant = members[0]
        aucs = [variant["roc_auc"] for _, variant in members if variant["roc_auc"] is not None]
        rows.append(
            {
                "graph": graph,
                "model": model,
                "method": method,
                "factor": factor,
                **_spread_of("accuracy", [variant["accuracy"] for _, variant in members]),
                **(_spread_of("roc_auc", aucs) if aucs else {}),
                "judged_by": result["judged_by"],
                "seeds": len(members),
                "columns": variant["columns"],
                "features": result["features"],
                "deviation_spread": result["deviation_spread"],
            }
        )
    return rows


def _spread_of(name: str, values: list[float]) -> dict[str, Any]:
    """`interval`: of the mean, 95 %; None for a single value."""
    middle = mean(values)
    half = _T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    interval = None if half is None else [middle - half, middle + half]
    return {f"{name}_mean": middle, f"{name}_interval": interval, f"{name}_values": values}


def accuracies_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "Graph", "Model", "Method", title="Percent on test nodes, mean ± half of the 95 % interval over seeds"
    )
    for factor in (1, *FACTORS):
        table.add_column(f"{factor}x", justify="right")
    lines: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        name = f"{row['graph']} ({row['judged_by']})"
        lines.setdefault((name, row["model"], row["method"]), []).append(_cell(row))
    for names, cells in lines.items():
        table.add_row(*names, *cells)
    return table


def _cell(row: dict[str, Any]) -> str:
    figure = "roc_auc" if row["judged_by"] == "rocAuc" else "accuracy"
    middle, interval = row[f"{figure}_mean"], row[f"{figure}_interval"]
    return f"{100 * middle:.2f}" + ("" if interval is None else f" ± {100 * (interval[1] - middle):.2f}")


def findings_table(findings: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        "Finding of the paper", "Here", "Because", title="What holds of the paper's findings", show_lines=True
    )
    for finding in findings:
        table.add_row(finding["finding"], finding["verdict"], finding["because"])
    return table


BENCHMARK = Benchmark("ranking", (Part("all", run_studies),), about=__doc__, show=show)

if __name__ == "__main__":
    main(BENCHMARK)
