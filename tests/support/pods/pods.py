"""A generation pod's manifest, a worker pod's process, and a repository of revisions that answer for real."""

from __future__ import annotations

import http.client
import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.generation.repository import (
    CLASSES,
    NETWORK,
    NODES,
    RANKED,
    RANKING,
    tiny_graph,
    tiny_profile,
    tiny_variants,
    write_features,
)
from tests.support.kubernetes.configmap_server import NAMESPACE, ConfigMapServer
from tests.support.machine import fork_server

from gnnserve_api.files.repository import RevisionManifest, RowSource
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.repository.repository import Repository

ROOT = Path(__file__).parents[3]
DEADLINE_S = 240
POLL_S = 0.005
VARIANTS = {"x1": 4, "x2": 2}
_FIRST_OF_THE_OTHERS = NODES // 2


def answers_of(label: int, nodes: Sequence[int]) -> list[int]:
    """What `publish_answering`'s revision answers."""
    (other,) = (one for one in CLASSES if one != label)
    return [label if node < _FIRST_OF_THE_OTHERS else other for node in nodes]


def publish_answering(root: Path, recipe: str, label: int, service: str = "digits") -> RevisionManifest:
    """A revision of a tiny graph that answers that label, one of its CLASSES, for the first half of the nodes and the
    other for the rest, by the last column that a variant reads: a wrong row is a wrong answer."""
    repository = Repository(root, NAMESPACE, service)
    graph = tiny_graph()
    repository.put_graph(graph)
    with repository.stage(recipe, graph.digest) as staged:
        write_features(staged, graph.features, RANKED)
        for name, columns in VARIANTS.items():
            read = graph.features[:, RANKED[columns - 1]]
            threshold = (read[_FIRST_OF_THE_OTHERS - 1] + read[_FIRST_OF_THE_OTHERS]) / 2
            staged.write_variant(name, _weights(columns, float(threshold), graph.classes.index(label)))
        profile = tiny_profile(VARIANTS)
        open_revision(staged.files_of(tiny_variants(profile)))
        return staged.commit(
            scope="Inductive", ranking=RANKING, variants=tiny_variants(profile), profile=profile,
            row_source=RowSource((), Normalization.DISABLED, None), edge_rules=graph.edge_rules, generator="a test",
            created_at=f"2026-01-01T00:00:{label:02}Z",
        )  # fmt: skip


def _weights(columns: int, threshold: float, answer: int) -> dict[str, np.ndarray]:
    """Of neighbours nothing is read, of the node itself its last column: below the threshold the answer's score is the
    highest."""
    hidden, classes = NETWORK.hidden, NETWORK.classes
    tensors: dict[str, np.ndarray] = {}
    for layer, (inputs, outputs) in enumerate([(columns, hidden), (hidden, classes)]):
        tensors[f"convs.{layer}.lin_l.weight"] = np.zeros((outputs, inputs), np.float32)
        tensors[f"convs.{layer}.lin_r.weight"] = np.zeros((outputs, inputs), np.float32)
        tensors[f"convs.{layer}.lin_l.bias"] = np.zeros(outputs, np.float32)
    tensors["convs.0.lin_r.weight"][0, columns - 1] = 1
    tensors["convs.1.lin_r.weight"][answer, 0] = -1
    tensors["convs.1.lin_l.bias"][answer] = threshold
    return tensors


def table_of(manifest: RevisionManifest, **settings: Any) -> RoutingTable:
    return RoutingTable(manifest.revision, manifest.recipe, **settings)


@dataclass(frozen=True, slots=True)
class WorkerPod:
    process: subprocess.Popen[str] | fork_server.Process
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
        """Waits until the path answers with the status, and with that in the body."""
        found, body = 0, ""

        def is_so() -> bool:
            nonlocal found, body
            found, body = self.get(path)
            return found == status and part in body

        self.wait_for(is_so, lambda: f"{path} says {found} {body!r}, expected {status} and {part!r}")
        return body

    def logged(self, part: str) -> dict[str, Any]:
        """The first line with that, once it has come."""
        lines: list[dict[str, Any]] = []

        def has_come() -> bool:
            lines.extend(line for line in [*self.log] if part in line["message"])
            return bool(lines)

        self.wait_for(has_come, lambda: f"nothing in the log has {part!r}")
        return lines[0]

    def wait_for(self, is_so: Callable[[], bool], complain: Callable[[], str]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline_s, f"{complain()}; its log: {self.log}"
            time.sleep(POLL_S)

    def wait_for_exit(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self.reader.join(DEADLINE_S)
        return code


@contextmanager
def worker_pod(
    folder: Path,
    api: ConfigMapServer | str,
    lame_duck_s: float = 0,
    environ: Mapping[str, str] | None = None,
    *,
    imports_anew: bool = False,
    module: str = "tests.support.pods.worker_pod",
) -> Iterator[WorkerPod]:
    """In `folder`: `repository/`, perhaps `routing.json`. Forked from a process that has imported everything, unless it
    is to import everything anew, as where variables are read by imported modules."""
    (folder / "token").write_text("token")
    url = api if isinstance(api, str) else api.url
    program = (module, url, str(folder), str(lame_duck_s))
    with ExitStack() as connections:
        process: subprocess.Popen[str] | fork_server.Process
        if not imports_anew:
            process = connections.enter_context(fork_server.started(*program, env=environ, stderr=True))
        else:
            command = [sys.executable, "-m", *program]
            started = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)
            process = connections.enter_context(started)
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
