"""Cost of a gathered row over several types: a batch over a graph of three types beside one of one type with as many
nodes, neighbours and hidden columns."""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Run
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.inference.batch import infer_each, warm_up
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up, publish_made_up_types
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

HIDDEN = 128
NODES, DEGREE = 60_000, 10


def run_rows(run: Run) -> dict[str, Any]:
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    with tempfile.TemporaryDirectory(prefix="gnnserve-typed-") as folder:
        return {"rows": measure_rows(Path(folder), rounds=20 if run.quick else 200)}


def measure_rows(folder: Path, rounds: int) -> dict[str, Any]:
    """A batch of 1,024 seeds over one type, and over three with as many rows read a seed, in turns."""
    draw = np.random.default_rng(0)
    typed, plain = _typed_revision(folder, draw), _plain_revision(folder)
    microseconds: dict[str, list[float]] = {"oneType": [], "threeTypes": []}
    read: dict[str, float] = {}
    for name, loaded in (("oneType", plain), ("threeTypes", typed)):
        warm_up(loaded)
        read[name] = 0.0
    for round_number in range(rounds):
        for name, loaded in (("oneType", plain), ("threeTypes", typed)):
            seeds = draw.integers(0, loaded.answered_nodes, 1024)
            inference = infer_each(loaded, "projected", seeds, key=round_number, with_embeddings=False)
            rows = inference.gathered_bytes / (4 * HIDDEN)
            microseconds[name].append(1e3 * inference.times.gather_ms / rows)
            read[name] += rows / rounds / 1024
    medians = {name: statistics.median(found) for name, found in microseconds.items()}
    return {
        "nanosecondsPerRow": {name: round(1e3 * found, 2) for name, found in medians.items()},
        "rowsPerSeed": {name: round(found, 1) for name, found in read.items()},
        "ratio": round(medians["threeTypes"] / medians["oneType"], 3),
    }


_PROJECTED = MadeUpVariant("projected", 1, "projected", Storage.FLOAT32, "float32")


def _typed_revision(folder: Path, draw: np.random.Generator) -> LoadedRevision:
    """Three types that read each other, a third of the neighbours each. Nothing is trained: what weights and rows are
    makes no difference to what reading them takes."""
    data = load_source(GraphSource.model_validate({"typed": _write_typed_rows(folder, draw)}), Path("unused"))
    network = Model(hidden=HIDDEN, fanouts=(8, 8)).network(len(data.classes))
    repository = Repository(folder / "rows-typed", "default", "typed")
    return load_revision(repository, publish_made_up_types(repository, data, network, [_PROJECTED]).revision)


def _write_typed_rows(folder: Path, draw: np.random.Generator) -> dict[str, Any]:
    source = folder / "rows"
    source.mkdir(exist_ok=True)
    nodes = NODES // 3
    names = ("a", "b", "c")
    for name in names:
        arrays: dict[str, np.ndarray] = {
            "num_nodes": np.array(nodes), "features": draw.normal(size=(nodes, 16)).astype(np.float32),
        }  # fmt: skip
        if name == "a":
            arrays |= {"labels": np.arange(nodes) % 3}
        np.savez(source / f"nodes_{name}.npz", **arrays)
    for sender in names:
        for reader in names:
            targets = np.repeat(np.arange(nodes), DEGREE)
            sources = draw.integers(0, nodes, len(targets))
            np.savez(source / f"edges_{sender}__{sender}{reader}__{reader}.npz", src=sources, dst=targets)
    return {"npz": {"uri": source.as_uri()}, "reverse": "Disabled"}


def _plain_revision(folder: Path) -> LoadedRevision:
    """One type, with as many neighbours as the others have by all relations."""
    network = Model(hidden=HIDDEN, fanouts=(24, 24)).network(3)
    repository = Repository(folder / "rows-plain", "default", "typed")
    data = made_up_graph(NODES, 3 * DEGREE, 16, 3)
    return load_revision(repository, publish_made_up(repository, data, network, [_PROJECTED]).revision)
