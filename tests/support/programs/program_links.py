"""Programs that score links of one type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.support.graphs.graphs import graph_of, npz_arrays, planted_graph, service_of, write_npz
from tests.support.programs.programs import export_over_graph
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.repository.repository import Repository

COLUMNS, HIDDEN, NODES = 6, 8, 80
_LISTED = planted_graph((0, 1, 2), nodes=NODES, columns=COLUMNS, seed=4)
_PAIRS = {frozenset((reader, read)) for reader in range(NODES) for read in _LISTED.graph.list_of(reader).tolist()}
GRAPH = _LISTED.with_lists(
    graph_of([sorted(other for pair in _PAIRS if node in pair for other in pair - {node}) for node in range(NODES)])
)
EDGES = np.stack([GRAPH.graph.indices.astype(np.int64), GRAPH.graph.targets()])
FEATURES = np.asarray(GRAPH.features)


class Encoder(torch.nn.Module):
    """Two convolutions with a norm and ELU between them; `has_head`: classes beside the rows."""

    def __init__(self, convolution: Callable[[int, int], torch.nn.Module], *, has_head: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = convolution(COLUMNS, HIDDEN), convolution(HIDDEN, HIDDEN)
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.norm.running_mean = torch.randn(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, 3) if has_head else None

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        rows = self.second(hidden, edge_index)
        return rows if self.head is None else (self.head(rows), rows)

    def rows(self, features: np.ndarray = FEATURES, edges: np.ndarray = EDGES) -> np.ndarray:
        with torch.no_grad():
            found = self.eval()(torch.tensor(features), torch.tensor(edges))
        rows: np.ndarray = (found if self.head is None else found[1]).numpy()
        return rows


@dataclass(frozen=True)
class Given:
    """A manifest of a program that gives rows, and where it is generated."""

    folder: Path
    module: Encoder
    relation: np.ndarray | None = None
    """Weights of DistMult; None: rows are read by their dot product."""

    @staticmethod
    def of(folder: Path, module: Encoder, relation: np.ndarray | None = None) -> Given:
        outputs = ("rows",) if module.head is None else ("logits", "rows")
        folder.mkdir(exist_ok=True)
        export_over_graph(module, COLUMNS, folder / "model.onnx", outputs)
        write_npz(folder / "graph.npz", npz_arrays(GRAPH))
        made = Given(folder, module, relation)
        pairs, more = np.random.default_rng(2).integers(0, NODES, (30, 2)), {}
        if relation is not None:
            save_file({"decoder.weight": relation[None]}, folder / "decoder.safetensors")
            more = {"pairs": pairs, "pair_scores": made.scores(module.rows(), pairs)}
        np.savez(folder / "expected.npz", nodes=np.arange(NODES), scores=module.rows(), **more)
        return made

    def scores(self, rows: np.ndarray, pairs: Any) -> np.ndarray:
        """Scores of pairs, as the user's own decoder gives them."""
        ends = np.array(pairs)
        weights = np.ones(HIDDEN, np.float32) if self.relation is None else self.relation
        scores: np.ndarray = (rows[ends[:, 0]] * weights * rows[ends[:, 1]]).sum(axis=1)
        return scores

    @property
    def repository(self) -> Repository:
        return Repository(self.folder / "repository", "default", "tiny")

    def service(
        self, program: dict[str, Any] | None = None, parts: dict[str, Any] | None = None, **links: Any
    ) -> GNNService:
        """`parts`: of the spec, beside graph, model and task."""
        rows = {"name": "rows", "columns": HIDDEN}
        has_head = self.module.head is not None
        contract: dict[str, Any] = {
            "uri": (self.folder / "model.onnx").as_uri(),
            "hops": 2,
            "inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"}],
            **({"scores": {"name": "logits", "columns": 3}, "embeddings": rows} if has_head else {"scores": rows}),
            **(program or {}),
        }
        if self.relation is not None:
            contract["decoder"] = {"uri": (self.folder / "decoder.safetensors").as_uri()}
            links = {"decoder": "DistMult", **links}
        return service_of(
            (self.folder / "graph.npz").as_uri(),
            model={"program": contract, "expected": {"uri": (self.folder / "expected.npz").as_uri()}},
            task={"links": {"dimensions": HIDDEN, **links}},
            normalization="Disabled",
            **(parts or {}),
        )

    def as_variant(self) -> dict[str, Any]:
        """Its program as an entry of another one's variants.given."""
        model = self.service().spec.model.model_dump(by_alias=True, exclude_none=True, mode="json")
        del model["program"]["limits"]
        return {name: model[name] for name in ("program", "expected")}

    def generate(self, program: dict[str, Any] | None = None, **links: Any) -> RevisionManifest:
        return generate(self.service(program, **links), self.repository)

    def refusal(self, program: dict[str, Any] | None = None, **links: Any) -> str:
        with pytest.raises((InputError, ValueError)) as caught:
            self.generate(program, **links)
        assert not self.repository.revisions()
        return str(caught.value)


def ask(revision: ServedRevision, path: str, body: dict[str, Any]) -> httpx.Response:
    async def scenario() -> httpx.Response:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return await client.http.post(path, json=body)

    return asyncio.run(scenario())


def assert_close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
