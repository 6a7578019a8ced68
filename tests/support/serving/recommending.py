"""Published revisions that recommend, and requests for recommendations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from tests.support.graphs.graphs import network_manifest
from tests.support.serving.serving import FakeWorker, running, service

from gnnserve_api.spec.embeddings import EmbeddingsSpec
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES, CLASSES = 120, 7, 3
WHOLE = (-1, -1)
VARIANTS = [
    MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32"),
    MadeUpVariant("x2", 2, "features", Storage.FLOAT32, "float32"),
]


def publish(root: Path, *, texts: bool = False, index: bool = True) -> Repository:
    repository = Repository(root, "default", "digits")
    data = made_up_graph(NODES, 4, FEATURES, CLASSES)
    if texts:
        data = data.with_ids(string_ids(*lay_out([f"päper {node}" for node in range(NODES)])))
    made = publish_made_up(repository, data, network_manifest("GraphSAGE", WHOLE), VARIANTS)
    if index:
        publish_embeddings(
            repository, "default/digits", made.revision, "x1", {}, "a test", silent, types_of=lambda _: data.types
        )  # fmt: skip
    return repository


def asking_for(embeddings: EmbeddingsSpec | None) -> GNNService:
    plain = service()
    return plain.model_copy(update={"spec": plain.spec.model_copy(update={"embeddings": embeddings})})


def loaded(repository: Repository) -> ServedRevision:
    (revision,) = repository.revisions()
    return served_revision(load_revision(repository, revision.revision))


def ask(revision: ServedRevision, *bodies: dict[str, Any], of: GNNService | None = None) -> list[httpx.Response]:
    """`of`: the service, where it is not one without `spec.embeddings`."""

    async def scenario() -> list[httpx.Response]:
        worker = FakeWorker(loaded=False)
        async with running(worker) as client:
            client.switch(revision, of)
            return [await client.http.post("/v1/recommend", json=body) for body in bodies]

    return asyncio.run(scenario())
