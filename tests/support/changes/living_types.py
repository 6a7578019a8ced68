"""Graphs of several types that change, and answers of graphs built anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.overlays.typed_overlays import read

from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.changes.reading import read_changes

ROOM_BYTES = 1 << 22
CLOSE = 2e-5
VARIANTS = {"storage": ["float32", "int8"], "stored": [1, 2], "storedFollowChanges": True}
NAMES = {f"{name}{storage}" for name in ("projected", "stored1", "stored2") for storage in ("", "-int8")}
JSON, BINARY = b"application/json", CHANGES_TYPE.encode()


def opened(folder: Path, max_delta_bytes: int = ROOM_BYTES) -> LivingRevision:
    repository = Repository(folder / "repository", "default", "shop")
    loaded = load_revision(repository, repository.revisions()[0].revision, max_delta_bytes)
    return LivingRevision(loaded, max_delta_bytes)


def served_by(living: LivingRevision) -> ServedRevision:
    return served_revision(living.loaded, living)


def batch_of(body: dict[str, Any], served: ServedRevision) -> ChangeBatch:
    payload, batch = read_changes(json.dumps(body).encode(), JSON, served)
    again = read_changes(payload, BINARY, served)[1]
    assert encode_batch(again) == payload == encode_batch(batch)
    return batch


def numbers_of(served: ServedRevision, ids: list[Any]) -> np.ndarray:
    name = served.graph.types.target.name
    return read(served, {"nodes": [f"{name}/{id_}" for id_ in ids]}).nodes


def assert_answers_are_those_of(living: LivingRevision, plain: PlainTypedGraph) -> None:
    served, expected = served_by(living), plain.scores()
    seeds = numbers_of(served, plain.target_ids)
    for name in living.loaded.variants:
        found = served.compute.infer(name, seeds.copy(), 0).scores
        close = 0.05 * float(np.abs(expected).max()) if name.endswith("int8") else CLOSE
        np.testing.assert_allclose(found, expected, atol=close, rtol=close, err_msg=name)


EVERYTHING: dict[str, Any] = {
    "nodes": [
        {"id": "user/new", "features": {"f0": 1, "f1": 2, "f2": 3, "f3": 4}, "label": "class1"},
        {"id": "tag/sale"},
    ],
    "overrides": [{"id": {"type": "item", "id": 3}, "features": [1, 2, 3]}],
    "labels": [{"id": "user/u4", "label": None}],
    "edges": [["user/new", "buys", "item/3"], ["item/3", "has", "tag/sale"], ["user/new", "knows", "user/u4"]],
    "removedEdges": [["user/new", "buys", "item/3"]],
    "removedNodes": ["tag/t2", "item/7"],
}
