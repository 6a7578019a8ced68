"""The worker's program for platforms without the operator, started as examples/kserve/runtime.yaml starts it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import yaml
from tests.support.machine import fork_server
from tests.support.machine.waiting import until
from tests.support.pods.pods import ROOT, answers_of, publish_answering

from gnnserve_api.pods.interface import PodExit

PROGRAM = "gnnserve_worker.pods.standalone"
EXAMPLES = ROOT / "examples" / "kserve"
THREE, FIVE = 3, 5
"""The labels that the two revisions give to the first nodes; the second one is the newer."""
_LISTENS = re.compile(r"listening on port (\d+), for gRPC on port (\d+)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service's folder as an InferenceService finds it: a copy, under another name, that cannot be written to."""
    root = tmp_path_factory.mktemp("repository")
    for label in (THREE, FIVE):
        publish_answering(root, f"recipe-{label}", label)
    folder = root / "mounted"
    shutil.copytree(root / "default" / "digits", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


@dataclass(frozen=True, slots=True)
class Standalone:
    process: fork_server.Process
    port: int
    grpc_port: int

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        status, body = response.status, response.read().decode()
        connection.close()
        return status, body


def command_of(name: str, model: Path) -> tuple[str, list[str]]:
    """Module and arguments of the runtime, as KServe fills them in, but for the port."""
    (container,) = yaml.safe_load((EXAMPLES / "runtime.yaml").read_text())["spec"]["containers"]
    assert container["command"][:2] == ["python", "-m"]
    placed = {
        "{{.Name}}": name,
        "/mnt/models": str(model),
        "--http-port=8080": "--http-port=0",
        "--grpc-port=9000": "--grpc-port=0",
    }
    arguments = [str(argument) for argument in container["args"]]
    for there, here in placed.items():
        assert any(there in argument for argument in arguments)
        arguments = [argument.replace(there, here) for argument in arguments]
    return container["command"][2], [a for a in arguments if not a.startswith("--lame-duck")]


@contextmanager
def started(model: Path, *more: str, name: str = "digits") -> Iterator[Standalone]:
    module, arguments = command_of(name, model)
    with fork_server.started(module, *arguments, "--host=127.0.0.1", *more, stderr=True) as process:
        try:
            assert process.stderr is not None
            found = next(found for line in process.stderr if (found := _LISTENS.search(line)))
            standalone = Standalone(process, int(found[1]), int(found[2]))
            until(lambda: standalone.get("/v2/health/ready")[0] == 200, "ready")
            yield standalone
        finally:
            process.kill()


def test_kserves_way_to_ask_is_answered_from_the_newest_revision(model: Path) -> None:
    service = yaml.safe_load((EXAMPLES / "inference-service.yaml").read_text())
    formats = yaml.safe_load((EXAMPLES / "runtime.yaml").read_text())["spec"]["supportedModelFormats"]
    assert service["spec"]["predictor"]["model"]["modelFormat"]["name"] in {one["name"] for one in formats}
    name = service["metadata"]["name"]
    with started(model, name=name) as worker:
        client = triton.InferenceServerClient(f"127.0.0.1:{worker.port}")
        assert client.is_server_live()
        assert client.is_model_ready(name)
        nodes = triton.InferInput("nodes", [3], "INT64")
        nodes.set_data_from_numpy(np.array([0, 5, 0]))
        assert client.infer(name, [nodes]).as_numpy("labels").tolist() == answers_of(FIVE, (0, 5, 0))
        client.close()
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{worker.grpc_port}") as over_grpc:
            nodes = triton_grpc.InferInput("nodes", [3], "INT64")
            nodes.set_data_from_numpy(np.array([0, 5, 0]))
            assert over_grpc.infer(name, [nodes]).as_numpy("labels").tolist() == answers_of(FIVE, (0, 5, 0))
        worker.process.terminate()
        assert worker.process.wait() == PodExit.OK


def test_options_name_the_revision_the_objective_and_tokens(model: Path, tmp_path: Path) -> None:
    revisions = {json.loads(path.read_text())["recipe"]: path.parent.name for path in model.glob("revisions/*/*.json")
                 if "recipe" in json.loads(path.read_text())}  # fmt: skip
    older = revisions[f"recipe-{THREE}"]
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 20 + "\n")
    options = (f"--revision={older}", "--latency-ms=250", "--accuracy-tolerance-permille=10", f"--tokens={tokens}")
    with started(model, *options) as worker:
        assert worker.get("/v1/variants")[0] == 401
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
        connection.request("GET", "/v1/route", headers={"authorization": f"Bearer {'t' * 20}"})
        route = json.loads(connection.getresponse().read())
        assert (route["revision"], route["objective"]) == (older, {"latencyMs": 250, "accuracyTolerancePermille": 10})
        connection.close()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model-name=digits", "--model-dir={model}", "--revision=none"], PodExit.REPOSITORY, "name one of "),
        (["--model-name=digits"], 2, "--model-dir"),
        (["--model-name=digits", "--model-dir={model}", "--http-port=70000"], 2, "'70000' is not a port"),
        (["--model-name=digits", "--model-dir={model}", "--http-port=80.5"], 2, "'80.5' is not a port"),
        (["--model-name=digits", "--model-dir={model}", "--latency-ms=nan"], 2, "'nan' is not a number of"),
        (["--model-name=digits", "--model-dir={model}", "--accuracy-tolerance-permille=-1"], 2, "from 0 to 1000"),
        (["--model-name=digits", "--model-dir={model}", "--lame-duck-seconds=x"], 2, "a number of seconds"),
    ],
)
def test_what_cannot_be_served_is_told(model: Path, arguments: Sequence[str], code: int, message: str) -> None:
    given = [argument.format(model=model) for argument in arguments]
    ended = fork_server.completed(PROGRAM, *given)
    assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr


def test_started_for_real_it_tells_what_cannot_be_served_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", PROGRAM, "--model-name=digits", f"--model-dir={tmp_path}"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, "holds no published revision" in ended.stderr) == (PodExit.REPOSITORY, True)


def test_it_leaves_at_once_where_it_is_asked_before_it_answers(model: Path) -> None:
    module, arguments = command_of("digits", model)
    with fork_server.started(module, *arguments, "--host=127.0.0.1", stderr=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if _LISTENS.search(line))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == PodExit.OK
