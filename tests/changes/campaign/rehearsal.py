"""What workers of these runs do first, done once in the process that they are forked from: kernels are loaded then, and
modules imported. It takes a worker half a second of processor time, of which there are as many as there are kills."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests.changes.campaign.graph import Batch
from tests.changes.campaign.revision import NODES, to_binary

import gnnserve_worker.changes.postgres_log  # noqa: F401 - it is not imported before there is a log
from gnnserve_worker.graph.change_batch import decode_batch
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.repository.repository import Repository

_ROOM_BYTES = 1 << 20
_CHANGES = (
    Batch(((NODES, 1.0), (NODES + 1, 1.0)), ((0, 1.0),), ((NODES, 0), (NODES, NODES + 1)), ((0, 1),)),
    Batch(overrides=((NODES, 2.0),), removed=(NODES + 1,)),
)


def prepare(root: str, namespace: str, service: str, revision: str) -> None:
    with _one_thread():
        _rehearse(Repository(Path(root), namespace, service), revision)


@contextmanager
def _one_thread() -> Iterator[None]:
    """What is forked later counts processors anew."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    thread_count.cache_clear()
    yield
    thread_count.cache_clear()
    del os.environ["OMP_NUM_THREADS"]
    if before is not None:
        os.environ["OMP_NUM_THREADS"] = before


def _rehearse(repository: Repository, revision: str) -> None:
    loaded = load_revision(repository, revision, _ROOM_BYTES)
    living = LivingRevision(loaded, _ROOM_BYTES)
    served_revision(loaded, living).compute.warm_up()
    living.apply(1, [decode_batch(to_binary(batch)) for batch in _CHANGES])
    for variant in loaded.variants:
        infer_batch(loaded, variant, np.arange(3, dtype=np.int64), key=0)
