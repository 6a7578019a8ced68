"""Graphs of several types: how accurate, what a gathered row costs, and what an answer takes over HTTP.

Accuracy: GraphSAGE and RGCN on ACM and IMDB, whose folders lie in `../shared/typed`, three seeds, beside published
figures. A row: a batch over a graph of three types beside one of one type with as many nodes, neighbours and hidden
columns. Over HTTP: `gnnserve run` beside torch_geometric's HeteroConv behind FastAPI in two processes, in turns
(`peers/programs/serve_typed.py` says how it draws neighbours, and why not by NeighborLoader).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.peers.processes import running
from benchmarks.peers.servers import free_ports
from benchmarks.results import write_result
from benchmarks.serving import ROOT, running_server
from benchmarks.wrk import Load, encode_post, generate_load, write_requests
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNService
from gnnserve_api.spec.typed import TypedSource
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.sources.load import load_typed_source
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.graph.typed_lists import describe_typed
from gnnserve_worker.inference.batch import infer_each, warm_up
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.inference.made_up_typed import publish_made_up_typed
from gnnserve_worker.models.typed.architecture import TypedShape
from gnnserve_worker.models.typed.registry import TYPED_ARCHITECTURES
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.repository.repository import Repository

SHARED = ROOT.parent / "shared" / "typed"
PUBLISHED = {
    "acm": ("HeCo, macro F1 with 60 labels a class", 0.8904),
    "imdb": ("MAGNN, macro F1, an SVM on 20 % of the test nodes", 0.5935),
}
SOURCES: Mapping[str, dict[str, Any]] = {
    "acm": {"target": "paper", "withoutFeatures": ["author"]},
    "imdb": {"target": "movie"},
}
WANTED_ROW, WANTED_ONE, WANTED_32 = 1.5, 5.0, 10.0
HIDDEN, FANOUTS = 128, (25, 10)
_ROWS_NODES, _ROWS_DEGREE = 60_000, 10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one graph, one seed, short runs: does it work at all?")
    parser.add_argument("--part", choices=("accuracy", "speed"), help="one of the two, each of which has a file")
    options = parser.parse_args(arguments)
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    with tempfile.TemporaryDirectory(prefix="gnnserve-typed-") as name:
        folder = Path(name)
        if options.part != "accuracy":
            rows = measure_rows(folder, rounds=20 if options.quick else 200)
            over_http = measure_http(folder, rounds=1 if options.quick else 5, seconds=1 if options.quick else 3)
            verdicts = verdicts_of(rows, over_http)
            show_speed(rows, over_http, verdicts)
            write_result("typed", options.quick, {"rows": rows, "http": over_http, "verdicts": verdicts})
        if options.part != "speed":
            graphs = [*SOURCES][: 1 if options.quick else None]
            accuracies = measure_accuracies(folder, graphs, seeds=1 if options.quick else 3)
            show_accuracies(accuracies)
            write_result("typed_accuracy", options.quick, {"accuracies": accuracies})


# Accuracy


def measure_accuracies(folder: Path, graphs: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    found = []
    for graph in graphs:
        options = SOURCES[graph]
        if not (SHARED / graph).is_dir():
            continue
        for architecture in ("GraphSAGE", "RGCN"):
            scores = [_macro_f1(folder, graph, options, architecture, seed) for seed in range(seeds)]
            print(f"{graph}, {architecture}: {', '.join(f'{score:.3f}' for score in scores)}", flush=True)
            what, published = PUBLISHED[graph]
            found.append({
                "graph": graph, "architecture": architecture, "macroF1": round(statistics.mean(scores), 4),
                "deviation": round(statistics.pstdev(scores), 4), "seeds": seeds, "published": published,
                "publishedBy": what,
            })  # fmt: skip
    return found


def _macro_f1(folder: Path, graph: str, options: Mapping[str, Any], architecture: str, seed: int) -> float:
    source = {"npz": {"uri": (SHARED / graph).as_uri()}, **options}
    training = {"epochs": "Auto", "scope": "Transductive", "seed": seed}
    model = {"architecture": architecture, "hidden": 64, "fanouts": [-1, -1], "training": training}
    model |= {"bases": 4} if architecture == "RGCN" else {}
    loaded = _generated(folder / f"{graph}-{architecture}-{seed}", _service(source, model, {"metric": "MacroF1"}))
    accuracy = None if loaded.manifest is None else loaded.manifest.profile.variants[0].test_accuracy
    if accuracy is None:
        raise SystemExit(f"{graph} has no test nodes")
    return accuracy


def _service(source: Mapping[str, Any], model: Mapping[str, Any], variants: Mapping[str, Any]) -> GNNService:
    spec = {"graph": {"source": {"typed": source}}, "model": model, "variants": variants}
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "typed"}, "spec": spec}
    return GNNService.model_validate(body)


def _generated(folder: Path, service: GNNService) -> LoadedRevision:
    repository = Repository(folder, "default", "typed")
    return repository.load(generate(service, repository).revision)


# What a row costs


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
    data = load_typed_source(TypedSource.model_validate(_write_typed_rows(folder, draw)))
    network = Model(hidden=HIDDEN, fanouts=(8, 8)).network(len(data.classes))
    repository = Repository(folder / "rows-typed", "default", "typed")
    return repository.load(publish_made_up_typed(repository, data, network, [_PROJECTED]).revision)


def _write_typed_rows(folder: Path, draw: np.random.Generator) -> dict[str, Any]:
    source = folder / "rows"
    source.mkdir(exist_ok=True)
    nodes = _ROWS_NODES // 3
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
            targets = np.repeat(np.arange(nodes), _ROWS_DEGREE)
            sources = draw.integers(0, nodes, len(targets))
            np.savez(source / f"edges_{sender}__{sender}{reader}__{reader}.npz", src=sources, dst=targets)
    return {"npz": {"uri": source.as_uri()}, "reverse": "Disabled"}


def _plain_revision(folder: Path) -> LoadedRevision:
    """One type, with as many neighbours as the others have by all relations."""
    network = Model(hidden=HIDDEN, fanouts=(24, 24)).network(3)
    repository = Repository(folder / "rows-plain", "default", "typed")
    data = made_up_graph(_ROWS_NODES, 3 * _ROWS_DEGREE, 16, 3)
    return repository.load(publish_made_up(repository, data, network, [_PROJECTED]).revision)


# Over HTTP


def measure_http(folder: Path, rounds: int, seconds: int) -> dict[str, Any]:
    """Both servers over ACM, or over the made-up graph of the rows where ACM is not there."""
    graph = SHARED / "acm"
    source: dict[str, Any] = {"npz": {"uri": graph.as_uri()}, **SOURCES["acm"]}
    if not graph.is_dir():
        source = _write_typed_rows(folder, np.random.default_rng(0))
    data = load_typed_source(_service(source, {}, {}).spec.graph.source.typed)  # type: ignore[arg-type]
    model = _write_peer(folder, data)
    service = _service(source, model, {})
    manifest = folder / "typed.yaml"
    manifest.write_text(yaml.safe_dump(service.model_dump(mode="json", by_alias=True, exclude_none=True)))
    draw, nodes = np.random.default_rng(1), data.target.nodes
    cases = {"one": (1, 1), "one32": (1, 32), "1024": (1024, 1)}
    loads: dict[str, dict[str, list[Load]]] = {case: {"gnnserve": [], "peer": []} for case in cases}
    with running_server(manifest, folder / "served") as endpoint, _peer(folder) as peer_port:
        for _ in range(rounds):
            for case, (seeds, connections) in cases.items():
                for name, port, path, field in (
                    ("gnnserve", endpoint.port, "/v1/predict", "nodes"), ("peer", peer_port, "/predict", "seeds"),
                ):  # fmt: skip
                    bodies = [{field: draw.integers(0, nodes, seeds).tolist()} for _ in range(64)]
                    bodies = [one | ({"return": ["scores"]} if name == "gnnserve" else {}) for one in bodies]
                    requests = folder / "requests"
                    encoded = (encode_post(port, path, "application/json", msgspec.json.encode(one)) for one in bodies)
                    write_requests(requests, encoded)
                    loads[case][name].append(generate_load(port, requests, connections, seconds))
    return {case: _compared(of) for case, of in loads.items()} | {"graph": data.source, "nodes": data.nodes}


def _compared(loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    p50 = {name: statistics.median(load.p50_ms for load in found) for name, found in loads.items()}
    rate = {name: statistics.median(load.requests_per_s for load in found) for name, found in loads.items()}
    errors = sum(sum(load.errors.values()) for found in loads.values() for load in found)
    return {
        "p50Ms": {name: round(found, 3) for name, found in p50.items()},
        "requestsPerS": {name: round(found, 1) for name, found in rate.items()},
        "errors": errors,
        "timesFaster": round(p50["peer"] / p50["gnnserve"], 2),
        "timesAsMany": round(rate["gnnserve"] / rate["peer"], 2),
    }


def _write_peer(folder: Path, data: TypedGraphData) -> dict[str, Any]:
    """The graph, and weights of random numbers, for the other server. Returns the model of the manifest."""
    typed, architecture = describe_typed(data), TYPED_ARCHITECTURES[_sage()]
    shape = TypedShape(typed, HIDDEN, len(data.classes), len(FANOUTS))
    draw = np.random.default_rng(2)
    weights = {
        key: (draw.normal(size=sizes) / 10).astype(np.float32) for key, sizes in architecture.shapes(shape).items()
    }
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    arrays: dict[str, np.ndarray] = {}
    for kind in data.types:
        features = weights[f"embeddings.{kind.name}.weight"] if kind.features is None else kind.features
        arrays[f"rows_{kind.name}"] = features if isinstance(features, np.ndarray) else features.toarray()
    for place, one in enumerate(data.relations):
        arrays |= {f"indptr_{place}": one.lists.indptr, f"indices_{place}": one.lists.indices}
    np.savez(folder / "typed.npz", **arrays)
    told = {
        "target": data.target.name, "types": [kind.name for kind in data.types], "fanouts": list(FANOUTS),
        "relations": [[one.source, one.name, one.target] for one in data.relations],
        "hidden": HIDDEN, "classes": len(data.classes),
    }  # fmt: skip
    (folder / "typed.json").write_text(json.dumps(told))
    uri = (folder / "model.safetensors").as_uri()
    return {"hidden": HIDDEN, "fanouts": list(FANOUTS), "checkpoint": {"uri": uri}}


def _sage() -> Any:
    return next(iter(TYPED_ARCHITECTURES))


@contextmanager
def _peer(folder: Path) -> Iterator[int]:
    import http.client

    port = free_ports(1)[0]
    command = [
        sys.executable, "-W", "ignore", "-m", "uvicorn", "serve_typed:app", "--app-dir",
        str(Path(__file__).parent / "peers/programs"), "--host", "127.0.0.1", "--port", str(port), "--workers", "2",
        "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip

    def ask() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/predict", body=json.dumps({"seeds": [0]}))
        return connection.getresponse().status == 200

    variables = {**os.environ, "TYPED_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    with running(command, variables, folder / "peer.log", port, ask, 300.0) as process:
        time.sleep(1)
        yield process.port


def verdicts_of(rows: Mapping[str, Any], http: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time per gathered row over that of one type": _verdict(WANTED_ROW, rows["ratio"], at_most=True),
        "times faster at one seed": _verdict(WANTED_ONE, http["one"]["timesFaster"]),
        "times as many requests at 32 connections": _verdict(WANTED_32, http["one32"]["timesAsMany"]),
    }


def _verdict(wanted: float, measured: float, *, at_most: bool = False) -> dict[str, Any]:
    passed = measured <= wanted if at_most else measured >= wanted
    return {"wanted": wanted, "measured": measured, "passed": passed}


def show_accuracies(accuracies: Sequence[Mapping[str, Any]]) -> None:
    table = Table("graph", "architecture", "macro F1", "published", title="test nodes")
    for one in accuracies:
        shown = f"{one['macroF1']:.3f} ± {one['deviation']:.3f}"
        table.add_row(one["graph"], one["architecture"], shown, f"{one['published']:.3f} ({one['publishedBy']})")
    Console().print(table)


def show_speed(rows: Mapping[str, Any], http: Mapping[str, Any], verdicts: Mapping[str, Any]) -> None:
    console = Console()
    console.print("ns a row:", rows["nanosecondsPerRow"], "ratio", rows["ratio"])
    for case in ("one", "one32", "1024"):
        console.print(case, http[case])
    for figure, verdict in verdicts.items():
        console.print(figure, verdict)


if __name__ == "__main__":
    main()
