"""What a worker computes on: what is looked at, what is asked for, and what that costs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.support.changes.living import ROOM_BYTES, PlainGraph, generated
from tests.support.generation.repository import load_fake, publish, repository_in
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.lacks import needs_no_gpu_files
from tests.support.pods.pods import publish_answering, table_of, worker_pod

from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import DeviceError, InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.pods.interface import PodExit
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served_changes import AppliedLog
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.pods.device import NO_GPU_SEEN, DeviceSettings, open_served, why_no_gpu


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedRevision:
    repository = repository_in(tmp_path / "repository")
    manifest, _ = publish(repository, "f0eae20c16c00ac0")
    return load_fake(repository, manifest.revision)


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["nvidiactl", "nvidia0", "dxg"])
def test_a_file_of_the_driver_is_a_gpu_that_is_seen(name: str, devices: Path) -> None:
    (devices / name).touch()

    assert why_no_gpu({}, devices) is None
    assert why_no_gpu({"CUDA_VISIBLE_DEVICES": "0,1"}, devices) is None
    assert why_no_gpu({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, devices) is None


@pytest.mark.parametrize("value", ["", "-1", "-1,0", "NoDevFiles"])
def test_a_gpu_that_is_hidden_is_none(value: str, devices: Path) -> None:
    (devices / "nvidiactl").touch()

    assert "CUDA_VISIBLE_DEVICES" in (why_no_gpu({"CUDA_VISIBLE_DEVICES": value}, devices) or "")


def test_under_auto_a_machine_without_a_gpu_serves_on_the_cpu_and_says_why(
    loaded: LoadedRevision, devices: Path
) -> None:
    served = open_served(loaded, DeviceSettings(), {}, devices)

    stats = served.compute.device_stats()
    assert stats.device == "CPU"
    assert stats.problem is not None
    assert stats.problem.startswith(f"{NO_GPU_SEEN}: there is no {devices}/nvidiactl")
    assert served.manifest is loaded.manifest


def test_with_the_gpu_alone_it_is_an_error(loaded: LoadedRevision, devices: Path) -> None:
    with pytest.raises(DeviceError, match=r"none is seen.*spec\.worker\.device \(--device\) CPU"):
        open_served(loaded, DeviceSettings(Device.GPU), {}, devices)


def test_with_the_cpu_nothing_is_looked_for_and_nothing_is_wrong(loaded: LoadedRevision, devices: Path) -> None:
    (devices / "nvidiactl").touch()

    stats = open_served(loaded, DeviceSettings(Device.CPU), {}, devices).compute.device_stats()

    assert (stats.device, stats.problem) == ("CPU", None)


def test_a_revision_whose_graph_changes_is_served_with_what_changes_it(tmp_path: Path, devices: Path) -> None:
    plain = PlainGraph(30, 1, EdgeRules(Direction.UNDIRECTED))
    loaded = generated(tmp_path, "living", "GraphSAGE", plain.built(), max_delta_bytes=ROOM_BYTES)
    replica = LivingRevision(loaded, ROOM_BYTES)

    served = open_served(loaded, DeviceSettings(), {}, devices, replica)

    assert served.changes.log == AppliedLog(replica)
    served.compute.infer("x1", np.array([3]), 1)
    assert replica.inferences == 1


@pytest.mark.parametrize(
    ("environ", "settings"),
    [
        ({}, DeviceSettings(Device.AUTO, CachePolicy.FREQUENCY, None)),
        ({"GNNSERVE_DEVICE": "", "GNNSERVE_GPU_MEMORY": ""}, DeviceSettings()),
        (
            {"GNNSERVE_DEVICE": "GPU", "GNNSERVE_CACHE": "LFU", "GNNSERVE_GPU_MEMORY": "1073741824"},
            DeviceSettings(Device.GPU, CachePolicy.LFU, 2**30),
        ),
    ],
    ids=["nothing is set", "empty is nothing", "all is set"],
)
def test_settings_are_read_from_the_environment(environ: Mapping[str, str], settings: DeviceSettings) -> None:
    assert DeviceSettings.read(environ) == settings


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GNNSERVE_DEVICE", "gpu"),
        ("GNNSERVE_CACHE", "LRU"),
        ("GNNSERVE_GPU_MEMORY", "1Gi"),
        ("GNNSERVE_GPU_MEMORY", "0"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(InputError, match=f"{variable}: '{value}' is "):
        DeviceSettings.read({variable: value})


def test_torch_is_not_loaded_where_no_gpu_is_seen(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.pods.pods import publish_answering, table_of, worker_pod
from tests.support.generation.repository import load_fake, publish, repository_in
from gnnserve_worker.pods import serve
from gnnserve_worker.pods.device import DeviceSettings, open_served
repository = repository_in(Path(sys.argv[1]))
manifest, _ = publish(repository, "f0eae20c16c00ac0")
open_served(load_fake(repository, manifest.revision), DeviceSettings(), {}, Path(sys.argv[1]))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "repository")], check=True)


@pytest.fixture
def api() -> Iterator[ConfigMapServer]:
    with configmap_server() as server:
        yield server


def test_a_worker_that_must_have_a_gpu_is_not_ready_without_one_and_says_so(
    tmp_path: Path, api: ConfigMapServer
) -> None:
    api.put(table_of(publish_answering(tmp_path / "repository", "recipe", 3)))
    environ = {**os.environ, "GNNSERVE_DEVICE": "GPU", "CUDA_VISIBLE_DEVICES": "-1"}

    with worker_pod(tmp_path, api, environ=environ) as pod:
        pod.wait_until("/readyz", "no GPU can be used: CUDA_VISIBLE_DEVICES is '-1'", status=503)
        assert pod.get("/healthz")[0] == 200


def test_a_worker_that_may_do_without_answers_on_the_cpu(tmp_path: Path, api: ConfigMapServer) -> None:
    api.put(table_of(publish_answering(tmp_path / "repository", "recipe", 3)))

    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}

    with worker_pod(tmp_path, api, environ=environ) as pod:
        pod.wait_until("/readyz", "ok")
        route = pod.route()

    assert route["device"] == "CPU"
    assert "CUDA_VISIBLE_DEVICES is '-1'" in route["deviceProblem"]
    (line,) = (line for line in pod.log if "CUDA_VISIBLE_DEVICES" in line["message"])
    assert line["level"] == "WARNING"


@needs_no_gpu_files("a GPU is seen on this machine")
def test_where_there_is_simply_no_gpu_the_log_does_not_warn(tmp_path: Path, api: ConfigMapServer) -> None:
    api.put(table_of(publish_answering(tmp_path / "repository", "recipe", 3)))
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}

    with worker_pod(tmp_path, api, environ=environ) as pod:
        pod.wait_until("/readyz", "ok")

    (line,) = (line for line in pod.log if NO_GPU_SEEN in line["message"])
    assert line["level"] == "INFO"


def test_on_a_laptop_without_a_gpu_nothing_is_said(
    loaded: LoadedRevision, devices: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The command line sets no logging up, and so would show each warning."""
    open_served(loaded, DeviceSettings(), {}, devices)
    assert caplog.records == []


def test_a_gpu_that_fails_while_loading_ends_the_process(tmp_path: Path, api: ConfigMapServer) -> None:
    api.put(table_of(publish_answering(tmp_path / "repository", "recipe", 3)))

    with worker_pod(tmp_path, api, environ={**os.environ, "TESTS_DEVICE_LOST": "it fell off the bus"}) as pod:
        assert pod.wait_for_exit() == PodExit.DEVICE

    assert any("it fell off the bus" in line["message"] for line in pod.log)
