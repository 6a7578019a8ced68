"""Pairs between types whose ends a request brings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.graphs.links import load_links
from tests.support.graphs.several_types import shop, write_folder
from tests.support.models.hetero_pyg import CLASSES, HIDDEN
from tests.support.overlays.typed_overlays import model_of, spec_of

from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import train as train_module
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.links import LinkSet, message_relations
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

RELATION = np.linspace(0.5, 1.5, CLASSES, dtype=np.float32)
"""Weights of the decoder, DistMult."""


@dataclass(frozen=True)
class Given:
    data: GraphData
    """Without held-out links."""
    links: LinkSet
    loaded: LoadedRevision
    model: Any
    """torch_geometric's, in float64, whose weights the revision has."""

    def served(self) -> ServedRevision:
        return served_revision(self.loaded)


def made(folder: Path, architecture: str, patched: pytest.MonkeyPatch) -> Given:
    """A service whose network is not learnt, but torch_geometric's."""
    service = GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "shop"},
            "spec": {
                "graph": {
                    "source": {"typed": write_folder(folder / "graph", shop())},
                    "normalization": "Disabled",
                },
                "model": {"hidden": HIDDEN, "fanouts": [-1, -1], **spec_of(architecture)},
                "task": {"links": {"relation": "buys", "dimensions": CLASSES, "decoder": "DistMult"}},
                "variants": {"stored": [1]},
                "embeddings": {},
            },
        }
    )
    task = service.spec.task.links
    assert task is not None
    loaded = load_links(service.spec.graph.source, task, folder)
    data = replace(loaded.imported, relations=message_relations(loaded.imported, loaded.links))
    model = model_of(architecture, data)
    weights = {key: value.numpy() for key, value in model.state_dict().items()} | {"decoder.relation": RELATION}
    run = TrainingRun(name="network", epochs=1, steps=1, best_epoch=1, validation=0.5, rising=False)
    trained = SimpleNamespace(tensors=weights, decoder={})
    patched.setattr(train_module, "train_with_retries", lambda *_: (trained, run))
    repository = Repository(folder / "repository", "default", "shop")
    revision = generate(service, repository).revision
    publish_embeddings(repository, "default/shop", revision, None, {}, "a test", silent)
    return Given(data, loaded.links, load_revision(repository, revision), copy.deepcopy(model).double())
