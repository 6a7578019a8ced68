"""Manifest, environment and signals of a generation pod."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz


def environ_of(folder: Path, manifest: str) -> dict[str, str]:
    return {
        **os.environ,
        "GNNSERVE_MANIFEST": manifest,
        "GNNSERVE_REPOSITORY": str(folder / "repository"),
        "GNNSERVE_TERMINATION_MESSAGE": str(folder / "termination-log"),
    }


def manifest_of(folder: Path, **training: Any) -> str:
    data = planted_graph((2, 5), nodes=200, columns=9, classes=(3, 7))
    path = write_npz(folder / "graph.npz", npz_arrays(data))
    model = {"hidden": 8, "fanouts": [4, 3], "training": {"epochs": 2, "batchSize": 64, **training}}
    service = service_of(path.as_uri(), model=model, variants={"pruning": {"factors": [1, 3]}})
    return service.model_dump_json(by_alias=True, exclude_none=True)


def prepare() -> None:
    """Import what trains: for `fork_server.prepare`, since that takes nine seconds of a processor."""
    for name in ("lessons", "one_relation", "profile", "steps", "train"):
        importlib.import_module(f"gnnserve_worker.generation.{name}")


@pytest.fixture
def keep_signals() -> Iterator[None]:
    """`main` is run in this process, and takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
