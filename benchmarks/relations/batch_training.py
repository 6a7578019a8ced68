"""Training over several types in mini-batches beside the whole graph: accuracy, seconds and memory, on ACM and IMDB.

Both networks are served alike, with the fan-outs that batches are sampled by, so that nothing but their training
differs. The seeds of each way run in a process of their own, one after the other.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.relations.relations_accuracy import ARCHITECTURES, SHARED, SOURCES
from benchmarks.results import Run
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository

WHOLE, SAMPLED = "WholeGraph", "Sampled"
SEEDS = 5
BATCH_SIZE, FANOUTS = 64, (25, 10)
"""A third of ACM's training nodes, so that an epoch takes three steps."""
LEAST_ERROR = 1e-4
"""Least standard error of a difference that is counted in: what figures are rounded to."""


@dataclass(slots=True)
class _Training:
    """Seconds of a training, and the memory that it took beside what stood there before it, heard from its progress."""

    began_s: float = 0.0
    ended_s: float = 0.0
    memory_mib: float = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.stage == "load torch" and progress.done:
            # The kernel forgets the most memory that the process has had.
            Path("/proc/self/clear_refs").write_text("5")
            self.memory_mib, self.began_s = -_mib("VmRSS"), time.monotonic()
        if progress.stage == "train network" and progress.done == progress.total:
            self.memory_mib, self.ended_s = self.memory_mib + _mib("VmHWM"), time.monotonic()

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def _mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def run_batches(graph: str, run: Run) -> dict[str, Any] | None:
    if not (SHARED / graph).is_dir():
        print(f"left out: {SHARED} does not have {graph}", flush=True)
        return None
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    found = []
    for architecture in ARCHITECTURES[:1] if run.quick else ARCHITECTURES:
        for batches in (WHOLE, SAMPLED):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                trained = pool.submit(_train, graph, architecture, batches, 1 if run.quick else SEEDS).result()
            scores = [one["macroF1"] for one in trained]
            print(f"{graph}, {architecture}, {batches}: {', '.join(f'{one:.3f}' for one in scores)}", flush=True)
            found.append({
                "graph": graph, "architecture": architecture, "batches": batches, "seeds": len(trained),
                "macroF1": round(statistics.mean(scores), 4),
                "deviation": round(statistics.stdev(scores), 4) if len(scores) > 1 else 0.0,
                "seconds": round(statistics.mean(one["seconds"] for one in trained), 2),
                "memoryMiB": round(max(one["memoryMiB"] for one in trained), 1),
                "steps": round(statistics.mean(one["steps"] for one in trained)),
            })  # fmt: skip
    return {"batchTraining": found}


def _train(graph: str, architecture: str, batches: str, seeds: int) -> Sequence[Mapping[str, float]]:
    with tempfile.TemporaryDirectory(prefix="gnnserve-batches-") as folder:
        return [_train_one(Path(folder), graph, architecture, batches, seed) for seed in range(seeds)]


def _train_one(folder: Path, graph: str, architecture: str, batches: str, seed: int) -> Mapping[str, float]:
    source = {"npz": {"uri": (SHARED / graph).as_uri()}, **SOURCES[graph]}
    training = {
        "epochs": "Auto", "scope": "Transductive", "seed": seed, "batches": batches, "batchSize": BATCH_SIZE,
    }  # fmt: skip
    model = {"architecture": architecture, "hidden": 64, "fanouts": FANOUTS, "training": training}
    model |= {"bases": 4} if architecture == "RGCN" else {}
    spec = {"graph": {"source": {"typed": source}}, "model": model, "variants": {"metric": "MacroF1"}}
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "typed"}, "spec": spec}
    heard = _Training()
    published = generate(GNNService.model_validate(body), Repository(folder / f"{seed}", "default", "typed"), heard)
    score, training_of = published.profile.variants[0].test_accuracy, published.training
    if score is None or training_of is None:
        raise SystemExit(f"{graph} has no test nodes")
    steps = sum(one.steps for one in training_of.runs)
    return {"macroF1": score, "seconds": heard.seconds, "memoryMiB": heard.memory_mib, "steps": steps}


def errors_below(graph: str, architecture: str, found: Any) -> float | None:
    """Standard errors by which the mean of sampled batches is below that of the whole graph; less than 0: above it.
    None: of one seed each, as in a quick run, there is none."""
    of_both = {
        one["batches"]: one
        for one in found["batchTraining"]
        if (one["graph"], one["architecture"]) == (graph, architecture)
    }
    whole, sampled = of_both[WHOLE], of_both[SAMPLED]
    if min(whole["seeds"], sampled["seeds"]) < 2:
        return None
    error = math.sqrt(sum(one["deviation"] ** 2 / one["seeds"] for one in (whole, sampled)))
    return float(round((whole["macroF1"] - sampled["macroF1"]) / max(error, LEAST_ERROR), 2))
