"""A worker that answers from a small published revision, with the index of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.graphs.graphs import network_manifest

from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES, CLASSES = 120, 7, 3
VARIANTS = [
    MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32"),
    MadeUpVariant("x2", 2, "features", Storage.FLOAT32, "float32"),
]


def publish(root: Path, *, with_index: bool = True) -> Repository:
    repository = Repository(root, "default", "digits")
    network = network_manifest("GraphSAGE", (-1, -1))
    data = made_up_graph(NODES, 4, FEATURES, CLASSES)
    made = publish_made_up(repository, data, network, VARIANTS)
    if with_index:
        publish_embeddings(
            repository, "default/digits", made.revision, "x1", {}, "a test", silent, types_of=lambda _: data.types
        )  # fmt: skip
    return repository


def load(repository: Repository) -> ServedRevision:
    (revision,) = repository.revisions()
    return served_revision(load_revision(repository, revision.revision))


@dataclass(slots=True, weakref_slot=True)
class RealWorker:
    """In the place of `FakeWorker`, for servers of tests."""

    repository: Repository
    updates: None = field(default=None)

    def revision(self) -> ServedRevision:
        return load(self.repository)
