"""Services that score links and recommend, published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.several_types import shop, write_folder

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

BRIEF = {"epochs": 2, "batchSize": 64}


@dataclass(frozen=True)
class Published:
    repository: Repository
    revision: str

    def served(self) -> ServedRevision:
        return served_revision(load_revision(self.repository, self.revision))


def service_of(spec: dict[str, Any]) -> GNNService:
    return GNNService.model_validate(
        {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "shop"}, "spec": spec}
    )


def published(root: Path, spec: dict[str, Any]) -> Published:
    service = service_of(spec)
    repository = Repository(root / "repository", "default", "shop")
    made = generate(service, repository, silent)
    publish_embeddings(repository, "default/shop", made.revision, None, {}, "a test", silent)
    return Published(repository, made.revision)


def one_type(root: Path, decoder: str) -> dict[str, Any]:
    path = root / "graph.npz"
    write_npz(path, npz_arrays(planted_graph([2, 5, 9], nodes=80, columns=12)))
    return {
        "graph": {"source": {"npz": {"uri": path.as_uri()}}},
        "model": {"fanouts": [-1, -1], "hidden": 8, "training": BRIEF},
        "task": {"links": {"decoder": decoder, "dimensions": 8}},
        "variants": {"pruning": {"factors": [1]}, "stored": [2]},
        "embeddings": {},
    }


def of_users(root: Path) -> dict[str, Any]:
    return {
        "graph": {"source": {"typed": write_folder(root, shop())}},
        "task": {"links": {"relation": "buys", "dimensions": 8}},
        "model": {"architecture": "LightGCN", "fanouts": [0], "training": {"epochs": 3, "batchSize": 32}},
        "variants": {"pruning": {"factors": [1]}},
        "embeddings": {},
    }
