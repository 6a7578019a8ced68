"""Services that score links by weights that are given, and their model in torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.torch import save_file
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import npz_arrays, service_of, write_npz
from tests.support.models.hetero_pyg import HIDDEN
from tests.support.programs.program_links import COLUMNS, EDGES, FEATURES, GRAPH

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

ROWS = 5
"""Columns that networks end in."""


class Sage(torch.nn.Module):
    """An encoder and a decoder, as a user writes them."""

    def __init__(self, decoder: torch.nn.Module | None = None, columns: int = COLUMNS, hidden: int = HIDDEN) -> None:
        super().__init__()
        torch.manual_seed(hidden + columns)
        self.encoder = torch.nn.ModuleDict(
            {"conv1": pyg.SAGEConv(columns, hidden), "conv2": pyg.SAGEConv(hidden, ROWS)}
        )
        if decoder is not None:
            self.decoder = decoder

    def rows(self, features: np.ndarray = FEATURES, edges: np.ndarray = EDGES) -> np.ndarray:
        x, edge_index = torch.tensor(np.ascontiguousarray(features)), torch.tensor(edges)
        with torch.no_grad():
            hidden = self.encoder["conv1"](x, edge_index).relu()
            rows: np.ndarray = self.encoder["conv2"](hidden, edge_index).numpy()
        return rows

    def save(self, path: Path) -> str:
        save_file({key: value.contiguous() for key, value in self.state_dict().items()}, path)
        return path.as_uri()


def service(
    folder: Path, model: Mapping[str, Any], variants: Mapping[str, Any] | None = None, **links: Any
) -> GNNService:
    uri = write_npz(folder / "graph.npz", npz_arrays(GRAPH)).as_uri()
    return service_of(
        uri,
        model={"hidden": HIDDEN, "fanouts": [-1, -1], **model},
        variants={"pruning": {"factors": [1]}, **(variants or {})},
        task={"links": {"dimensions": ROWS, **links}},
    )


def generated(folder: Path, wanted: GNNService) -> tuple[RevisionManifest, LoadedRevision]:
    repository, heard = Repository(folder / "repository", "default", "tiny"), HeardSteps()
    published = generate(wanted, repository, heard)
    heard.check()
    return published, load_revision(repository, published.revision)


def refusal(folder: Path, wanted: GNNService) -> str:
    repository = Repository(folder / "repository", "default", "tiny")
    with pytest.raises(InputError) as caught:
        generate(wanted, repository)
    assert not repository.revisions()
    return str(caught.value)
