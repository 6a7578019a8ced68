"""Networks over several types: saved, generated, and computed by torch_geometric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.several_types import TypedParts, load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import HIDDEN
from torch import nn

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository


def service_of(
    given: dict[str, Any],
    model: dict[str, Any],
    variants: dict[str, Any] | None = None,
    normalization: str = "Disabled",
) -> GNNService:
    spec = {
        "graph": {"source": {"typed": given}, "normalization": normalization},
        "model": {"hidden": HIDDEN, "fanouts": [-1, -1], **model},
        "variants": variants or {},
    }
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "shop"}, "spec": spec}
    return GNNService.model_validate(body)


def generated(folder: Path, service: GNNService) -> LoadedRevision:
    repository = Repository(folder / "repository", "default", "shop")
    heard = HeardSteps()
    published = generate(service, repository, heard)
    heard.check()
    return load_revision(repository, published.revision)


def saved(model: nn.Module, path: Path) -> dict[str, Any]:
    safetensors.torch.save_file({key: value.contiguous() for key, value in model.state_dict().items()}, path)
    return {"checkpoint": {"uri": path.as_uri()}}


def scores_of(loaded: LoadedRevision, variant: str, nodes: np.ndarray, key: int = 0) -> np.ndarray:
    return infer_batch(loaded, variant, nodes, key=key).scores


def data_of(folder: Path, parts: TypedParts | None = None, **options: Any) -> tuple[dict[str, Any], GraphData]:
    given = {**write_folder(folder / "graph", parts or shop()), **options}
    return given, load_types(typed_source(given))
