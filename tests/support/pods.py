"""A generation pod's manifest, a worker pod's process, and a repository of revisions that answer for real."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.configmap_server import NAMESPACE, ConfigMapServer
from tests.support.repository import (
    NETWORK,
    RANKED,
    RANKING,
    files_of,
    tiny_graph,
    tiny_profile,
    write_features,
)

from gnnserve_api.repository import RevisionManifest
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.repository.repository import Repository

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
VARIANTS = {"x1": 4, "x2": 2}


def publish_answering(root: Path, recipe: str, label: int) -> RevisionManifest:
    """A revision of a tiny graph whose every answer is that label, one of its CLASSES."""
    repository = Repository(root, NAMESPACE, "digits")
    graph = tiny_graph()
    repository.put_graph(graph)
    with repository.stage(recipe, graph.digest) as staged:
        write_features(staged, graph.features, RANKED)
        for name, columns in VARIANTS.items():
            staged.write_variant(name, _weights(columns, graph.classes.index(label)))
        staged.open(NETWORK, files_of(VARIANTS))
        return staged.commit(
            scope="Inductive", network=NETWORK, ranking=RANKING, profile=tiny_profile(VARIANTS),
            generator="a test", created_at=f"2026-01-01T00:00:{label:02}Z",
        )  # fmt: skip


def _weights(columns: int, answer: int) -> dict[str, np.ndarray]:
    """Everything is 0 but for the last layer's bias."""
    hidden, classes = NETWORK.hidden, NETWORK.classes
    tensors: dict[str, np.ndarray] = {}
    for layer, (inputs, outputs) in enumerate([(columns, hidden), (hidden, classes)]):
        tensors[f"convs.{layer}.lin_l.weight"] = np.zeros((outputs, inputs), np.float32)
        tensors[f"convs.{layer}.lin_r.weight"] = np.zeros((outputs, inputs), np.float32)
        tensors[f"convs.{layer}.lin_l.bias"] = np.zeros(outputs, np.float32)
    tensors["convs.1.lin_l.bias"][answer] = 1
    return tensors


def table_of(manifest: RevisionManifest, **settings: Any) -> RoutingTable:
    return RoutingTable(manifest.revision, manifest.recipe, **settings)


@dataclass(frozen=True, slots=True)
class WorkerPod:
    process: subprocess.Popen[str]
    port: int
    log: list[dict[str, Any]]
    reader: threading.Thread
    open_until_the_end: ExitStack

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        self.open_until_the_end.callback(connection.close)
        return connection

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def route(self) -> dict[str, Any]:
        status, body = self.get("/v1/route")
        return dict(json.loads(body)) if status == 200 else {}

    def wait_until(self, path: str, part: str, status: int = 200) -> str:
        """Until the path answers with the status, and with that in the body."""
        while True:
            found, body = self.get(path)
            if found == status and part in body:
                return body
            assert self.process.poll() is None, self.log

    def wait_for_exit(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self.reader.join(DEADLINE_S)
        return code


@contextmanager
def worker_pod(
    folder: Path, api: ConfigMapServer | str, lame_duck_s: float = 0, environ: Mapping[str, str] = os.environ
) -> Iterator[WorkerPod]:
    """In `folder`: `repository/`, perhaps `routing.json`."""
    (folder / "token").write_text("token")
    url = api if isinstance(api, str) else api.url
    command = [sys.executable, "-m", "tests.support.worker_pod", url, str(folder), str(lame_duck_s)]
    with (
        subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as process,
        ExitStack() as connections,
    ):
        ports: queue.Queue[int] = queue.Queue()
        log: list[dict[str, Any]] = []

        def read() -> None:
            for line in process.stderr or ():
                log.append(json.loads(line))
                if found := re.search(r"answering on port (\d+)", log[-1]["message"]):
                    ports.put(int(found[1]))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield WorkerPod(process, ports.get(timeout=DEADLINE_S), log, reader, connections)
        finally:
            process.kill()
            process.wait()
            reader.join()
