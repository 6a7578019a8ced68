"""Files of a model over a graph of `benchmarks/shapes.py`: what peers load, the program, and scores that all servers
must give."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch.export import Dim

from benchmarks.peers.programs.modules import HEADS, random_module
from benchmarks.peers.servers import Server, gnnserve_run
from benchmarks.shapes import FANOUTS, PROBES, Shape, ShapeFiles, prepare_sources

QUICK_SHAPE = Shape("models-quick", nodes=20_000, edges=280_000, features=128, hidden=128, classes=40)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A `ProbedGraph` with a model of `peers/programs/modules.py`."""

    module: str
    of: ShapeFiles
    folder: Path
    """`indptr.npy`, `indices.npy`, `features.npy` of the shape, `weights.npz`, `shape.json`; for gnnserve `model.onnx`,
    `expected.npz` and `checkpoint.safetensors`."""
    scores: np.ndarray
    """Scores of the probes, float64."""

    @property
    def seeds_end(self) -> int:
        return self.of.seeds_end

    def probe_scores(self) -> np.ndarray:
        return self.scores


def write_model(module: str, files: ShapeFiles, folder: Path) -> ModelFiles:
    folder.mkdir()
    for name in ("indptr.npy", "indices.npy", "features.npy"):
        (folder / name).symlink_to(files.folder / name)
    shape = files.shape
    (folder / "shape.json").write_text(json.dumps({**asdict(shape), "module": module}))
    made = random_module(module, shape.features, shape.hidden, shape.classes)
    weights = {key: tensor.numpy() for key, tensor in made.state_dict().items()}
    np.savez(folder / "weights.npz", **weights)
    safetensors.numpy.save_file(weights, folder / "checkpoint.safetensors")
    export(made, shape.features, folder / "model.onnx")
    scores = probe_scores(made, files)
    np.savez(folder / "expected.npz", nodes=files.seeds_end + np.arange(PROBES), scores=scores.astype(np.float32))
    return ModelFiles(module, files, folder, scores)


def export(module: torch.nn.Module, features: int, path: Path) -> None:
    """Export as torch does, with free numbers of nodes and edges."""
    example = {"x": torch.randn(7, features), "edge_index": torch.randint(0, 7, (2, 11))}
    free = {"x": {0: Dim("nodes")}, "edge_index": {1: Dim("edges")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            module, (), kwargs=example, dynamo=True, dynamic_shapes=free, output_names=["scores"], verbose=False
        )
    assert made is not None  # noqa: S101
    made.save(path, external_data=False)


def probe_scores(module: torch.nn.Module, files: ShapeFiles) -> np.ndarray:
    """Scores in float64 over the probes' component, which fits every fan-out."""
    start = files.seeds_end
    indptr = np.asarray(files.array("indptr")[start:])
    sources = np.asarray(files.array("indices")[indptr[0] : indptr[-1]]).astype(np.int64) - start
    targets = np.repeat(np.arange(PROBES), np.diff(indptr))
    features = torch.from_numpy(np.array(files.array("features")[start:]))
    with torch.inference_mode():
        scores = module.double()(features.double(), torch.from_numpy(np.stack([sources, targets])))
    module.float()
    found: np.ndarray = scores.numpy()
    return found


def program_server(files: ModelFiles, scratch: Path) -> Server:
    model = {
        "program": {
            "uri": (files.folder / "model.onnx").as_uri(),
            "hops": len(FANOUTS),
            "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
            "scores": {"name": "scores", "columns": files.of.shape.classes},
            "fanouts": list(FANOUTS),
        },
        "expected": {"uri": (files.folder / "expected.npz").as_uri()},
    }
    return _server(files, scratch, "program", "gnnserve, the program", {"model": model})


def described_server(files: ModelFiles, scratch: Path) -> Server:
    """The network as gnnserve describes it, its first layer multiplied ahead of time."""
    model = {
        **DESCRIBED[files.module],
        "hidden": files.of.shape.hidden,
        "fanouts": list(FANOUTS),
        "checkpoint": {"uri": (files.folder / "checkpoint.safetensors").as_uri()},
    }
    spec = {"model": model, "routing": {"mode": "Static", "variant": "projected"}}
    return _server(files, scratch, "described", "gnnserve, the described network", spec)


DESCRIBED: Mapping[str, Mapping[str, Any]] = {"gat": {"architecture": "GAT", "heads": HEADS, "outputHeads": 1}}
"""Models that are an architecture of gnnserve, too."""


def _server(files: ModelFiles, scratch: Path, name: str, label: str, spec: Mapping[str, Any]) -> Server:
    called = f"{files.module.replace('_', '-')}-{name}"
    manifest = scratch / f"{called}.json"
    source = prepare_sources(files.of) / "graph.npz"
    graph = {"source": {"npz": {"uri": source.as_uri()}}, "normalization": "Disabled"}
    variants = {"pruning": {"factors": [1]}, "storage": ["float32"]}
    manifest.write_text(
        json.dumps(
            {
                "apiVersion": "gnnserve.dev/v1alpha1",
                "kind": "GNNService",
                "metadata": {"name": called},
                "spec": {"graph": graph, "variants": variants, **spec},
            }
        )
    )
    return gnnserve_run(name, label, manifest, scratch / "repository")
