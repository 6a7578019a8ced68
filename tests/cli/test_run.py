"""`run`, `generate` and `serve`: what they do in which order, and the real thing from manifest to answer."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.support.machine.waiting import WAIT_S
from tests.support.profiles import profile, revision_manifest
from tests.support.serving import serving
from tests.support.serving.pair_workers import of_links
from typer.testing import CliRunner

from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import DeviceError, RepositoryError, ResourceError
from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import TrainingManifest, TrainingRun
from gnnserve_api.manifest import parse_manifest
from gnnserve_cli.generating import GenerationOutcome, advise, warn_of_busy_machine
from gnnserve_cli.generation_process import GenerationAnswer, GenerationRequest, carry_out
from gnnserve_cli.main import app
from gnnserve_worker.graph.ids import NodeIds, integer_ids, lay_out, string_ids
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.pods.device import NO_GPU_SEEN, DeviceSettings
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.tracing.options import TracingOptions

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits.yaml"


@dataclass(slots=True)
class FakeWorker:
    """Stands where generation, repository and server are, and notes what is asked of it."""

    published: RevisionManifest | None = field(default_factory=revision_manifest)
    nodes: int = 1797
    ids: NodeIds | None = None
    busy: bool = False
    stats: DeviceStats = ON_CPU
    steps: list[str] = field(default_factory=list)
    settings: DeviceSettings | None = None
    """What was asked for."""
    no_gpu: str | None = None
    """Why there is none."""
    trained_on_gpu: list[bool] = field(default_factory=list)
    """Whether each generation might."""
    training_error: Exception | None = None
    """What a GPU answers to it."""
    offers: tuple[Any, ...] = ()
    """What was served."""
    is_measured: bool = False
    """Whether its profile is measured by each generation; False: the revision is there already."""
    kept: int = 0
    """Networks that an interrupted generation left."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gnnserve_worker.serving.listening_socket.bind", self.bind)
        monkeypatch.setattr("gnnserve_worker.serving.process.server.serve_revisions", self.serve)
        monkeypatch.setattr("gnnserve_worker.pods.device.open_served", self.open)
        monkeypatch.setattr("gnnserve_worker.pods.device.why_no_gpu", lambda *_: self.no_gpu)
        monkeypatch.setattr("gnnserve_worker.generation.pipeline.generate", self.generate)
        monkeypatch.setattr("gnnserve_worker.generation.pipeline.find", lambda *_, **_named: None)
        monkeypatch.setattr("gnnserve_cli.generation_process.in_a_process", generate_here)
        monkeypatch.setattr("gnnserve_worker.repository.repository.Repository", self.repository)
        monkeypatch.setattr("gnnserve_cli.generating.Repository", self.repository)
        monkeypatch.setattr(
            "gnnserve_cli.serving.load_revision", lambda _stored, revision, _bytes: SimpleNamespace(revision=revision)
        )

    def bind(self, host: str, port: int, _option: str = "") -> socket.socket:
        self.steps.append("bind")
        if self.busy:
            raise ResourceError(f"{host}:{port}: the port is in use")
        return socket.create_server((host, 0))

    def repository(self, root: Path, namespace: str, service: str) -> Any:
        return SimpleNamespace(
            find_served=lambda recipe, log: self.published,
            find_named=lambda revision: self.published,
            revisions=list,
            folder=root / namespace / service,
            count_kept_networks=lambda recipe: self.kept,
        )

    def generate(
        self, service: Any, repository: Any, progress: ProgressListener, *, use_gpu: bool, graph_version: str | None
    ) -> RevisionManifest:
        assert graph_version is None
        self.steps.append("generate")
        self.trained_on_gpu.append(use_gpu)
        if use_gpu and self.training_error is not None:
            raise self.training_error
        progress(Progress("train x1", 0, 30))
        progress(Progress("train x1", 30, 30, "validation 0.989"))
        if self.is_measured:
            progress(Progress("profile", 1, 1))
        assert self.published is not None
        return self.published

    def open(self, _revision: Any, settings: DeviceSettings) -> Any:
        self.settings = settings
        revision = serving.FakeWorker(nodes=self.nodes, ids=self.ids).revision()
        return serving.with_compute(revision, device_stats=lambda: self.stats)

    def serve(self, offers: Sequence[Any], ready: Callable[[Any], None]) -> None:
        self.steps.append("serve")
        self.offers = tuple(offers)
        served = SimpleNamespace(why_failing=lambda _revision: "", look=lambda: None)
        ready([SimpleNamespace(served=served, revision=offer.revision) for offer in offers])


def generate_here(request: GenerationRequest) -> list[GenerationAnswer]:
    """What `run` has another process do, in this one."""
    answers: list[GenerationAnswer] = []
    carry_out(request, answers.append)
    return answers


@pytest.mark.parametrize("command", ["run", "generate"])
def test_a_manifest_may_come_by_standard_input(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, [command, "-"], input=DIGITS.read_text(), env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.stderr
    assert "generate" in worker.steps


def test_rollback_asks_for_a_file_in_place_of_standard_input() -> None:
    result = CliRunner().invoke(app, ["rollback", "-"], input=DIGITS.read_text())
    assert (result.exit_code, "MANIFEST: is standard input" in result.stderr) == (2, True)


def test_run_binds_before_it_generates_and_serves_last(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["run", str(DIGITS)], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.stderr
    assert worker.steps == ["bind", "generate", "serve"]
    assert "x16" in result.stdout
    assert result.stderr == "train x1: 0/30\ntrain x1: 30/30  validation 0.989\nStopped.\n"


def test_run_serves_several_manifests_by_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(DIGITS.read_text().replace("name: digits", "name: other"))
    worker = FakeWorker()
    worker.install(monkeypatch)
    arguments = ["run", str(DIGITS), str(other), "--port", "0", "--share", "other=2.5"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.stderr
    assert worker.steps == ["bind", "bind", "generate", "generate", "serve"]
    assert [(offer.settings.name, offer.settings.share) for offer in worker.offers] == [("digits", 1.0), ("other", 2.5)]
    said = [line for line in result.stdout.splitlines() if line.startswith("Serving")]
    assert [line.split(" on ")[0] for line in said] == ["Serving digits", "Serving other"]
    assert len({line.rpartition(":")[2] for line in said}) == 2


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(DIGITS), str(DIGITS)], "metadata.name: digits is that of 2 manifests"),
        ([str(DIGITS), "--share", "other=2"], "--share: 'other=2' is of none of the manifests; name each of digits"),
        ([str(DIGITS), "--share", "digits=2", "--share", "digits=3"], "--share: 'digits=3' is given twice"),
        ([str(DIGITS), "--share", "digits"], "--share: 'digits' has no weight; write digits= and a number"),
        ([str(DIGITS), "--share", "digits=nan"], "--share: 'digits=nan' has no weight"),
        ([str(DIGITS), "--share", "digits=0"], "--share: 'digits=0' has no weight"),
    ],
)
def test_services_that_cannot_share_a_server_are_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str], message: str
) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, [command, *arguments])
    assert (result.exit_code, worker.steps) == (2, [])
    assert message in result.stderr


MANIFEST_OF_A_GPU = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {name: digits}
spec:
  graph: {source: {builtin: Digits}}
  worker: {device: GPU, gpu: {}, gpuMemory: 2Gi, cache: {policy: LFU}}
"""


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        pytest.param([], DeviceSettings(Device.GPU, CachePolicy.LFU, 2 * 2**30), id="as the manifest says"),
        pytest.param(
            ["--device", "auto", "--cache", "none", "--gpu-memory", "500Mi"],
            DeviceSettings(Device.AUTO, CachePolicy.NONE, 500 * 2**20),
            id="as the options say, in any case",
        ),
        pytest.param(["--cache", "Degree"], DeviceSettings(Device.GPU, CachePolicy.DEGREE, 2 * 2**30), id="one by one"),
    ],
)
def test_options_say_on_what_to_compute_and_the_manifest_where_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, options: list[str], settings: DeviceSettings
) -> None:
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(MANIFEST_OF_A_GPU)
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, [command, str(manifest), *options])
    assert result.exit_code == 0, result.stderr
    assert worker.settings == settings


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--gpu-memory", "2G"], id="a size in powers of ten"),
        pytest.param(["--gpu-memory", "0Gi"], id="no memory at all"),
        pytest.param(["--gpu-memory", "-1Gi"], id="less than none"),
        pytest.param(["--gpu-memory", "2Gi\n"], id="a size and more"),
        pytest.param(["--device", "cuda:0"], id="no device"),
        pytest.param(["--cache", "LRU"], id="no policy"),
    ],
)
def test_what_is_no_device_cache_or_size_is_refused(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["serve", str(DIGITS), *options])
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert worker.steps == []


def test_a_gpu_that_cannot_be_used_is_an_error_where_it_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DeviceError("there is no NVIDIA driver", "install it")

    FakeWorker().install(monkeypatch)
    monkeypatch.setattr("gnnserve_worker.pods.device.open_served", refuse)
    result = CliRunner().invoke(app, ["serve", str(DIGITS), "--device", "GPU"])
    assert result.exit_code == 4
    assert result.stderr == "error: no GPU can be used: there is no NVIDIA driver; install it\n"


def test_nothing_is_shown_of_a_revision_whose_files_are_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RepositoryError("tables/x.npy", "has 9 bytes, expected 10", "generate again")

    FakeWorker().install(monkeypatch)
    assert "x1" in CliRunner().invoke(app, ["serve", str(DIGITS)]).stdout
    monkeypatch.setattr("gnnserve_worker.pods.device.open_served", refuse)
    result = CliRunner().invoke(app, ["serve", str(DIGITS)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "has 9 bytes, expected 10" in result.stderr


def test_a_gpu_that_is_not_there_is_noticed_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(no_gpu="none is seen")
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["run", str(DIGITS), "--device", "GPU"])
    assert result.exit_code == 4
    assert result.stderr.startswith("error: no GPU can be used: none is seen; run it where there is one")
    assert worker.steps == []
    assert CliRunner().invoke(app, ["run", str(DIGITS)]).exit_code == 0, "Auto does without"


def test_what_a_gpu_cannot_do_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWorker(stats=DeviceStats("CPU", "the GPU has 300 MiB free")).install(monkeypatch)
    result = CliRunner().invoke(app, ["serve", str(DIGITS)])
    assert result.stderr.splitlines()[0] == "note: computing on CPU: the GPU has 300 MiB free"
    FakeWorker(stats=DeviceStats("CPU", f"{NO_GPU_SEEN}: there is no /dev/nvidiactl")).install(monkeypatch)
    result = CliRunner().invoke(app, ["serve", str(DIGITS)])
    assert result.stderr == "Stopped.\n", "nobody asked for what is not there"
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(MANIFEST_OF_A_GPU)
    result = CliRunner().invoke(app, ["serve", str(manifest)])
    assert result.stderr.startswith(f"note: computing on CPU: {NO_GPU_SEEN}")


def test_a_gpu_that_computes_is_named_with_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = DeviceStats("NVIDIA H200", memory_bytes={"graph": 95_000_000, "cache": 0}, memory_budget_bytes=2 * 2**30)
    FakeWorker(stats=stats).install(monkeypatch)
    first, second, *rest = CliRunner().invoke(app, ["serve", str(DIGITS)]).stderr.splitlines()
    assert first == "note: computing on NVIDIA H200: graph 90.6 MiB, cache 0 B of 2.00 GiB of its memory"
    assert "`gnnserve variants URL` shows those of this GPU" in second
    assert rest == ["Stopped."]
    lending = replace(stats, memory_bytes={"cache": 2**20, "lent": 2**30}, problem="the cache was given back")
    FakeWorker(stats=lending).install(monkeypatch)
    shown = CliRunner().invoke(app, ["serve", str(DIGITS)]).stderr.splitlines()
    assert shown[0].endswith("H200: cache 1.00 MiB of 2.00 GiB of its memory, and 1.00 GiB of other GPUs'")
    assert shown[1:] == [second, "note: the cache was given back", "Stopped."]


def test_options_of_a_gpus_memory_are_said_to_change_nothing_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeWorker().install(monkeypatch)
    shown = CliRunner().invoke(app, ["serve", str(DIGITS), "--device", "CPU", "--cache", "FIFO"]).stderr
    assert shown.startswith("note: --cache FIFO changes nothing: --device is CPU")
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(DIGITS.read_text() + "  worker: {device: CPU}\n")
    shown = CliRunner().invoke(app, ["run", str(manifest), "--gpu-memory", "2Gi"]).stderr
    assert shown.startswith("note: --gpu-memory 2Gi changes nothing: spec.worker.device is CPU")
    assert "note" not in CliRunner().invoke(app, ["run", str(manifest)]).stderr
    assert "note" not in CliRunner().invoke(app, ["run", str(DIGITS), "--cache", "FIFO"]).stderr


@pytest.mark.parametrize(
    ("arguments", "workers", "no_gpu", "used"),
    [
        pytest.param(["run"], "{}", None, True, id="where one is seen"),
        pytest.param(["generate"], "{}", None, True, id="without serving too"),
        pytest.param(["run"], "{}", "none is seen", False, id="where none is seen"),
        pytest.param(["run", "--device", "CPU"], "{}", None, False, id="as the option says"),
        pytest.param(["run"], "{device: CPU}", None, False, id="as the manifest says"),
        pytest.param(["generate"], "{device: CPU}", None, False, id="as the manifest says, without serving"),
        pytest.param(["run", "--device", "Auto"], "{device: CPU}", None, True, id="as the option says, first"),
        pytest.param(["run"], "{device: CPU}\n  generation: {gpu: {}}", None, True, id="for training alone"),
    ],
)  # fmt: skip
def test_training_may_use_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], workers: str, no_gpu: str | None, used: bool
) -> None:
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(f"{DIGITS.read_text()}  worker: {workers}\n")
    worker = FakeWorker(no_gpu=no_gpu)
    worker.install(monkeypatch)
    command, *options = arguments
    result = CliRunner().invoke(app, [command, str(manifest), *options])
    assert result.exit_code == 0, result.stderr
    assert worker.trained_on_gpu == [used]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), id="memory that others have"),
        pytest.param(RuntimeError("CUDA error: no kernel image is available"), id="a GPU that is too old"),
    ],
)
def test_what_a_gpu_cannot_train_the_cpu_does(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    worker = FakeWorker(training_error=error)
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["generate", str(DIGITS)])
    assert result.exit_code == 0, result.stderr
    assert worker.trained_on_gpu == [True, False]
    first_line = str(error).splitlines()[0]
    assert f"note: training on the CPU, since the GPU failed: {type(error).__name__}: {first_line}\n" in result.stderr


def test_what_no_gpu_said_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(training_error=ValueError("a defect"))
    worker.install(monkeypatch)
    assert isinstance(CliRunner().invoke(app, ["generate", str(DIGITS)]).exception, ValueError)
    refusing = FakeWorker(training_error=ResourceError("the disk is full"))
    refusing.install(monkeypatch)
    assert CliRunner().invoke(app, ["generate", str(DIGITS)]).exit_code == 4
    assert worker.trained_on_gpu == refusing.trained_on_gpu == [True]


@pytest.mark.parametrize("command", ["run", "serve"])
def test_grpc_has_a_port_of_its_own_for_each_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(DIGITS.read_text().replace("name: digits", "name: other"))
    worker = FakeWorker()
    worker.install(monkeypatch)
    arguments = [command, str(DIGITS), str(other), "--port", "0", "--grpc-port", "0"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.stderr
    assert worker.steps[:4] == ["bind"] * 4
    said = [line for line in result.stdout.splitlines() if "gRPC" in line]
    assert [line.rpartition(":")[0] for line in said] == ["  gRPC, of the Open Inference Protocol: 127.0.0.1"] * 2
    assert len({line.rpartition(":")[2] for line in said}) == 2
    assert all(offer.settings.grpc is not None for offer in worker.offers)


@pytest.mark.parametrize(
    ("arguments", "environ", "options"),
    [
        ([], {}, None),
        (["--otlp-endpoint", "http://here:4318"], {}, TracingOptions("http://here:4318", 10, "default")),
        ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, TracingOptions("http://there", 10, "default")),
        (
            ["--otlp-endpoint", "http://here:4318", "--trace-permille", "500"],
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"},
            TracingOptions("http://here:4318", 500, "default"),
        ),
    ],
)
def test_traces_go_where_options_or_the_environment_say(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], environ: dict[str, str], options: TracingOptions | None
) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["run", str(DIGITS), *arguments], env=environ)
    assert result.exit_code == 0, result.stderr
    assert worker.offers[0].settings.tracing == options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--otlp-endpoint", "here"], "--otlp-endpoint: 'here' is no URL; give one such as http://collector:4318"),
        (["--trace-permille", "5"], "--trace-permille: there is no receiver of traces; name one with --otlp-endpoint"),
    ],
)
def test_traces_without_a_receiver_are_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["run", str(DIGITS), *arguments])
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert worker.steps == []


def test_a_port_cannot_be_that_of_http_and_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWorker().install(monkeypatch)
    kept = socket.create_server(("127.0.0.1", 0))

    def bind(*_of: object) -> socket.socket:
        return kept.dup()

    monkeypatch.setattr("gnnserve_worker.serving.listening_socket.bind", bind)
    result = CliRunner().invoke(app, ["run", str(DIGITS), "--grpc-port", "8080"])
    port = kept.getsockname()[1]
    kept.close()
    assert result.exit_code == 2
    assert result.stderr == f"error: --grpc-port: {port} is a port that HTTP takes; choose another, or 0 for any\n"


def test_a_busy_port_is_noticed_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(busy=True)
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["run", str(DIGITS)])
    assert result.exit_code == 4
    assert result.stderr == "error: 127.0.0.1:8080: the port is in use\n"
    assert worker.steps == ["bind"]


def test_a_service_that_scores_links_is_asked_about_a_pair() -> None:
    assert of_links().revision().task.first_request() == {"pairs": [[0, 1]]}


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", id="as it is"),
        pytest.param("0.0.0.0", "127.0.0.1", id="all addresses are reachable at this one"),  # noqa: S104
    ],
)
def test_the_printed_request_has_a_reachable_address_and_known_nodes(
    monkeypatch: pytest.MonkeyPatch, host: str, shown: str
) -> None:
    FakeWorker(nodes=2).install(monkeypatch)
    output = CliRunner().invoke(app, ["serve", str(DIGITS), "--host", host], env={"COLUMNS": "40"}).stdout
    assert re.search(rf"^Serving on http://{shown}:\d+$", output, re.MULTILINE)
    curl = next(line for line in output.splitlines() if "curl" in line)
    assert shlex.split(curl)[-1] == '{"nodes": [0, 1]}'
    assert "Ctrl-C stops it" in output


@pytest.mark.parametrize(
    ("ids", "nodes"),
    [
        pytest.param(string_ids(*lay_out(["o'neill", "$HOME", "Zoë", "d"])), ["o'neill", "$HOME", "Zoë"], id="texts"),
        pytest.param(integer_ids(np.array([70, -8])), [70, -8], id="integers"),
    ],
)
def test_the_printed_request_can_be_pasted_with_ids_of_the_graph(
    monkeypatch: pytest.MonkeyPatch, ids: NodeIds, nodes: list[Any]
) -> None:
    FakeWorker(ids=ids).install(monkeypatch)
    output = CliRunner().invoke(app, ["serve", str(DIGITS)]).stdout
    curl = next(line for line in output.splitlines() if "curl" in line)
    assert json.loads(shlex.split(curl)[-1]) == {"nodes": nodes}


def test_serve_without_a_revision_says_how_to_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorker(published=None)
    worker.install(monkeypatch)
    result = CliRunner().invoke(app, ["serve", str(DIGITS), "--repository", "models"])
    assert result.exit_code == 3
    assert f"`gnnserve generate {DIGITS} --repository models`" in result.stderr
    assert worker.steps == ["bind"]


@pytest.mark.parametrize("command", ["run", "serve", "generate"])
def test_a_revision_that_the_manifest_names_is_served_and_nothing_is_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    worker = FakeWorker()
    worker.install(monkeypatch)
    manifest = tmp_path / "digits.yaml"
    manifest.write_text(f"{DIGITS.read_text()}  revision: 4d4396dec1c5\n")
    result = CliRunner().invoke(app, [command, str(manifest)])
    assert result.exit_code == 0, result.output
    assert "generate" not in worker.steps
    is_noted = "while spec.revision is set, graph, model and variants of the manifest change nothing" in result.stderr
    assert is_noted is (command != "generate")
    monkeypatch.setattr(worker, "published", None)
    result = CliRunner().invoke(app, [command, str(manifest)])
    assert result.exit_code == 2
    assert "spec.revision: 4d4396dec1c5 is not published; there are, newest first: none" in result.stderr


def test_generate_prints_the_revision_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeWorker().install(monkeypatch)
    result = CliRunner().invoke(app, ["generate", str(DIGITS), "--json"])
    assert json.loads(result.stdout)["revision"] == revision_manifest().revision


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (0, "interrupted; nothing was published\n"),
        (1, "interrupted; nothing was published; 1 network that it trained will not be trained again\n"),
        (3, "interrupted; nothing was published; 3 networks that it trained will not be trained again\n"),
    ],
)
def test_interrupting_generation_says_what_is_published_and_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept: int, said: str
) -> None:
    def interrupted(*_: object, **_named: object) -> RevisionManifest:
        raise KeyboardInterrupt

    FakeWorker(kept=kept).install(monkeypatch)
    monkeypatch.setattr("gnnserve_worker.generation.pipeline.generate", interrupted)
    result = CliRunner().invoke(app, ["run", str(DIGITS)])
    assert result.exit_code == 130
    assert result.stderr == said


@pytest.mark.parametrize("command", ["run", "generate"])
def test_validation_that_was_still_rising_is_warned_about(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    run = TrainingRun(name="x1", epochs=30, steps=60, best_epoch=30, validation=0.29, rising=True)
    training = TrainingManifest(epochs=30, runs=(run,))
    published = msgspec.structs.replace(revision_manifest("r1"), training=training)
    FakeWorker(published=published).install(monkeypatch)
    result = CliRunner().invoke(app, [command, str(DIGITS)])
    assert result.exit_code == 0
    assert (
        "warning: validation was still rising at epoch 30 of 30: use spec.model.training.epochs: Auto or more\n"
    ) in result.stderr


@pytest.mark.parametrize("command", ["run", "generate"])
def test_a_profile_of_a_busy_machine_is_warned_about(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    published = msgspec.structs.replace(revision_manifest("r1"), profile=with_tail(20.0))
    FakeWorker(published=published, is_measured=True).install(monkeypatch)
    result = CliRunner().invoke(app, [command, str(DIGITS), "--repository", "models"])
    assert result.exit_code == 0
    (warning,) = (line for line in result.stderr.splitlines() if line.startswith("warning: "))
    assert "p99 is 20 times the median at 1,024 nodes" in warning
    assert "delete models/default/digits/revisions/r1 and generate again" in warning


@pytest.mark.parametrize("command", ["run", "generate"])
def test_a_profile_that_was_not_measured_now_is_not_advised_about(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    published = msgspec.structs.replace(revision_manifest("r1"), profile=with_tail(20.0))
    FakeWorker(published=published, is_measured=False).install(monkeypatch)
    result = CliRunner().invoke(app, [command, str(DIGITS), "--repository", "models"])
    assert result.exit_code == 0
    assert "warning: " not in result.stderr
    assert "generate again" not in result.stderr


@pytest.mark.parametrize(
    ("search", "words"),
    [("Disabled", "leave out the others"), ("Auto", "A search keeps the most accurate variant that follows")],
)
def test_variants_that_answer_nothing_beside_changes_are_named_by_each_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, search: str, words: str
) -> None:
    """Whether anything was generated: `updates` may be given when all is published."""
    made = revision_manifest("r1")
    made = msgspec.structs.replace(made, profile=serving.without_overlays(made.profile, "x2"))
    outcome, repository = GenerationOutcome(made, is_measured=False), Repository(tmp_path, "default", "digits")
    for beside in ("", "  updates: {log: {sqlite: {}}}\n"):
        text = DIGITS.read_text().replace("  variants:\n", f"  variants:\n    search: {search}\n")
        advise(outcome, repository, parse_manifest(f"{text}{beside}", "m.yaml"))
        told = capsys.readouterr().err
        assert ("note: no request is answered by x2 while spec.updates is given: " in told) is bool(beside)
        assert (words in told) is bool(beside)


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        pytest.param(1.5, None, id="a quiet machine is no news"),
        pytest.param(8.0, None, id="the limit itself is still accepted"),
        pytest.param(8.6, "9 times the median at 1,024 nodes", id="above the limit the worst size is named"),
    ],
)
def test_the_tail_that_all_variants_share_tells_a_busy_machine(ratio: float, shown: str | None) -> None:
    warning = warn_of_busy_machine(with_tail(ratio), Path("r1"))
    assert (warning is None) is (shown is None)
    assert shown is None or shown in (warning or "")


def test_one_stalled_variant_does_not_make_a_machine_busy() -> None:
    stalled = with_tail(100.0).variants[0]
    rest = with_tail(1.5).variants[1:]
    assert warn_of_busy_machine(profile(stalled, *rest), Path("r1")) is None


def with_tail(ratio: float) -> Profile:
    """p99 over median is `ratio` at the largest size, in every variant."""

    def stretched(shown: VariantProfile) -> VariantProfile:
        *others, largest = shown.latency
        tail = msgspec.structs.replace(largest, p99_ms=largest.p50_ms * ratio)
        return msgspec.structs.replace(shown, latency=(*others, tail))

    return profile(*map(stretched, profile().variants))


def test_from_a_manifest_to_an_answer_and_again_without_training(tmp_path: Path) -> None:
    manifest = tmp_path / "small.yaml"
    manifest.write_text(DIGITS.read_text().replace("epochs: Auto", "epochs: 1").replace("[1, 2, 4, 8, 16]", "[1, 8]"))
    first = run_and_ask(manifest, tmp_path / "repository")
    assert any("] train x" in line for line in first.progress)
    assert first.answer["variant"] in {"x1", "x8", "projected"}
    assert len(first.answer["labels"]) == 3

    second = run_and_ask(manifest, tmp_path / "repository")
    assert second.progress == []
    assert "torch" not in second.imported
    assert second.answer["revision"] == first.answer["revision"]


@dataclass(frozen=True, slots=True)
class Run:
    answer: dict[str, Any]
    progress: list[str]
    imported: set[str]


def run_and_ask(manifest: Path, repository: Path) -> Run:
    command = [sys.executable, "-m", "gnnserve_cli"]
    log = manifest.with_suffix(".log")
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*command, "run", str(manifest), "--repository", str(repository), "--port", "0"],
            stdout=subprocess.PIPE, stderr=stderr, text=True, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        ) as process,
    ):  # fmt: skip
        try:
            url = next((line.split()[-1] for line in process.stdout or () if line.startswith("Serving on ")), None)
            assert url is not None, log.read_text()
            asked = subprocess.run(
                [*command, "predict", url, "--nodes", "0,1,2", "--json"], capture_output=True, text=True, check=False
            )
            assert asked.returncode == 0, asked.stderr
            assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text(), "the server trained by itself"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, log.read_text()
    lines = log.read_text().splitlines()
    assert not any("leaked" in line for line in lines), "a library complains as the interpreter ends"
    imports = {line for line in lines if line.startswith("import time:")}
    return Run(
        answer=json.loads(asked.stdout),
        progress=[
            line for line in lines if line not in imports and re.match(r"\[\d+/\d+, [^]]+\] [\w ]+: \d+/\d+", line)
        ],
        imported={line.rpartition("|")[2].strip() for line in imports},
    )
