"""Models as programs over one type, generated and served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.graphs.graphs import graph_of, npz_arrays, planted_graph, service_of, write_npz
from tests.support.programs.programs import export_over_graph, made_once

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

COLUMNS, HIDDEN, CLASSES, NODES = 6, 8, 3, 90
_REGULAR = planted_graph((0, 1, 2), nodes=NODES, columns=COLUMNS, seed=4)
GRAPH = _REGULAR.with_lists(graph_of([_REGULAR.graph.list_of(node)[: node % 5 + 1].tolist() for node in range(NODES)]))
EDGES = np.stack([GRAPH.graph.indices.astype(np.int64), GRAPH.graph.targets()])
FEATURES = np.asarray(GRAPH.features)


class Headed(torch.nn.Module):
    """Two convolutions with what people put around them: a norm, ELU, a head."""

    def __init__(self, convolution: Callable[[int, int], torch.nn.Module], norm: torch.nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = convolution(COLUMNS, HIDDEN), convolution(HIDDEN, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN) if norm is None else norm
        if isinstance(self.norm, torch.nn.BatchNorm1d):
            self.norm.running_mean = torch.randn(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        hidden = self.second(hidden, edge_index)
        return self.head(hidden), hidden

    def over(self, features: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores and embeddings of all nodes."""
        with torch.no_grad():
            scores, hidden = self.eval()(torch.tensor(features), torch.tensor(edges))
        return scores.numpy(), hidden.numpy()


class Models:
    """Modules, and their exports, each made once."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self.modules = {
            "SAGE": Headed(pyg.SAGEConv),
            "GCN": Headed(pyg.GCNConv),
            "LayerNorm": Headed(pyg.SAGEConv, pyg.LayerNorm(HIDDEN)),
        }

    def file(self, name: str) -> Path:
        module = self.modules[name]
        return made_once(
            f"headed-{name}.onnx", lambda path: export_over_graph(module, COLUMNS, path, ("logits", "h")), self._factory
        )


def contract(**more: Any) -> dict[str, Any]:
    return {
        "hops": 2,
        "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
        "scores": {"name": "logits", "columns": CLASSES},
        "embeddings": {"name": "h", "columns": HIDDEN},
        **more,
    }


class Given:
    """A manifest of a program, and where it is generated."""

    def __init__(self, folder: Path, models: Models, name: str, scores: np.ndarray | None = None) -> None:
        self.folder, self.module = folder, models.modules[name]
        shutil.copy(models.file(name), folder / "model.onnx")
        write_npz(folder / "graph.npz", npz_arrays(GRAPH))
        expected = self.module.over(FEATURES, EDGES)[0] if scores is None else scores
        np.savez(folder / "expected.npz", nodes=np.arange(NODES), scores=expected)
        self.repository = Repository(folder / "repository", "default", "tiny")

    def service(self, program: dict[str, Any], **parts: Any) -> Any:
        model = {
            "program": {"uri": (self.folder / "model.onnx").as_uri(), **program},
            "expected": {"uri": (self.folder / "expected.npz").as_uri()},
            **parts.pop("model", {}),
        }
        return service_of((self.folder / "graph.npz").as_uri(), model=model, **parts)

    def generate(self, program: dict[str, Any], **parts: Any) -> RevisionManifest:
        return generate(self.service(program, **parts), self.repository)

    def loaded(self, revision: RevisionManifest) -> LoadedRevision:
        return load_revision(self.repository, revision.revision)

    def scores(self, revision: RevisionManifest, variant: str, nodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        found = infer_batch(self.loaded(revision), variant, np.asarray(nodes, np.int64), 1)
        assert found.embeddings is not None
        return found.scores, found.embeddings

    def refusal(self, program: dict[str, Any], **parts: Any) -> str:
        with pytest.raises(InputError) as caught:
            self.generate(program, **parts)
        assert not self.repository.revisions()
        return str(caught.value)


@dataclass(slots=True, weakref_slot=True)
class ProgramWorker:
    """In the place of `FakeWorker`, for servers of tests."""

    loaded: LoadedRevision
    updates: None = None

    def revision(self) -> ServedRevision:
        return served_revision(self.loaded)
