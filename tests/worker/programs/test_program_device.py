"""Programs run by a GPU where the ONNX Runtime that is installed can, and give the scores that the CPU gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.lacks import needs_no_gpu_files
from tests.support.programs.programs import write_mischief
from tests.support.programs.published_programs import published

from gnnserve_api.device import Device
from gnnserve_api.errors import DeviceError
from gnnserve_api.files.programs import ProgramLimits, ProgramOutput
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.program_device import move_where_equal
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.device import DeviceSettings, open_served
from gnnserve_worker.programs.failure import ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.forking import ForkServer
from gnnserve_worker.programs.providers import (
    CPU,
    CUDA,
    ON_CPU,
    MissingProviderError,
    ProgramDevice,
    providers,
)
from gnnserve_worker.programs.runner import ProgramRunner

ON_GPU = ProgramDevice(is_gpu=True)
NO_CUDA = "there is a GPU: tests/gpu/test_program_device.py"
SCORES = np.array([[1.0, -2.0], [0.5, 4.0]], np.float32)
STAND_IN = '''
"""The installed ONNX Runtime, as it would be with a GPU; sessions are the CPU's."""
import sys
sys.path.remove({folder!r})
del sys.modules["onnxruntime"]
import onnxruntime as real

def preload_dlls():
    real.prepared = True

class InferenceSession(real.InferenceSession):
    def __init__(self, program, options, providers):
        (name, given), cpu = providers
        assert real.prepared and options.use_deterministic_compute
        assert name == "CUDAExecutionProvider" and given["gpu_mem_limit"] == "1024", providers
        super().__init__(program, options, providers=[cpu])

    def get_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

real.preload_dlls, real.InferenceSession = preload_dlls, InferenceSession
real.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
'''


def test_without_a_wish_for_a_gpu_the_cpu_is_taken_whatever_there_is() -> None:
    assert providers(ON_CPU, [CUDA, CPU]) == [CPU]


def test_cuda_is_taken_within_its_memory_and_the_cpu_behind_it() -> None:
    (cuda, cpu) = providers(ProgramDevice(is_gpu=True, gpu_memory_bytes=1 << 30), ["TensorrtExecutionProvider", CUDA])
    assert cpu == CPU
    assert cuda[0] == CUDA
    assert dict(cuda[1])["gpu_mem_limit"] == str(1 << 30)
    assert dict(cuda[1])["use_tf32"] == "0"


def test_where_there_is_no_cuda_the_package_that_has_it_is_named() -> None:
    with pytest.raises(MissingProviderError, match="install onnxruntime-gpu in place of onnxruntime"):
        providers(ON_GPU, [CPU])


def test_a_process_asks_for_cuda_within_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime.py").write_text(STAND_IN.format(folder=str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer()
    runner = ProgramRunner(write_mischief(tmp_path / "mischief.onnx"), 1, ProgramLimits(1 << 30, 20), server=server)
    assert runner.move(ProgramDevice(is_gpu=True, gpu_memory_bytes=1024)) == CUDA
    (found,) = runner.run({"x": np.zeros((3, 2), np.float32)}, (ProgramOutput("scores", 2),), 3)
    assert not found.any()
    runner.close()
    server.end()


@needs_no_gpu_files(NO_CUDA)
def test_a_program_that_could_not_run_there_is_moved_back_at_once(tmp_path: Path) -> None:
    server = ForkServer()
    runner = ProgramRunner(write_mischief(tmp_path / "mischief.onnx"), 1, ProgramLimits(1 << 30, 20), server=server)
    # An ended process may be replaced meanwhile, by one that cannot run there either: three stand for any number.
    for _ in range(3):
        with pytest.raises(ProgramFailedError, match="onnxruntime-gpu"):
            runner.move(ON_GPU)
    assert runner.move(ON_CPU) == "CPUExecutionProvider"
    runner.close()
    server.end()


class StandIn:
    """A program that the tests say of what it gives by device."""

    def __init__(self, *on_gpu: np.ndarray | Exception, provider: str = CUDA) -> None:
        self.device, self._on_gpu, self._provider = ON_CPU, iter(on_gpu), provider

    def move(self, device: ProgramDevice) -> str:
        self.device = device
        return self._provider if device.is_gpu else CPU

    def scores(self) -> list[np.ndarray]:
        found = next(self._on_gpu) if self.device.is_gpu else SCORES
        if isinstance(found, Exception):
            raise found
        return [found]


def move(program: StandIn) -> None:
    move_where_equal([program], ON_GPU, ["x1"], program.scores)


def test_a_program_with_equal_scores_is_moved() -> None:
    program = StandIn(*[SCORES + np.float32(1e-5)] * 3)
    move(program)
    assert program.device == ON_GPU


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (StandIn(*[SCORES + np.float32(1e-3)] * 3), "other scores on the GPU than on the CPU: they differ by 0.001"),
        (StandIn(*[SCORES * np.float32(np.nan)] * 3), "they differ by nan, the largest being 4"),
        (StandIn(SCORES, SCORES + np.float32(1e-6), SCORES), "other scores from run to run"),
        (StandIn(ProgramFailedError(ProgramFailure.MEMORY, "failed: no room")), "does not run on the GPU: .*no room"),
        (StandIn(provider=CPU), "runs a program by CPUExecutionProvider where CUDA was wanted"),
    ],
    ids=["other scores", "no numbers", "other scores each time", "no memory", "CUDA does not start"],
)
def test_a_program_that_is_not_right_there_goes_back_to_the_cpu(program: StandIn, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        move(program)
    assert program.device == ON_CPU


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedRevision]:
    repository, manifest = published(tmp_path)
    found = load_revision(repository, manifest.revision)
    yield found
    for one in found.programs:
        one.close()


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A folder such as /dev of a machine with a GPU."""
    (tmp_path / "nvidiactl").touch()
    return tmp_path


@needs_no_gpu_files(NO_CUDA)
def test_without_the_provider_a_worker_says_so_and_answers_by_the_cpu(loaded: LoadedRevision, devices: Path) -> None:
    served = open_served(loaded, DeviceSettings(), {}, devices)
    stats = served.compute.device_stats()
    assert stats.device == "CPU"
    assert stats.problem is not None
    assert "install onnxruntime-gpu in place of onnxruntime" in stats.problem
    assert np.isfinite(infer_batch(loaded, "x1", np.array([3, 0], np.int64), key=0).scores).all()


@needs_no_gpu_files(NO_CUDA)
def test_where_a_gpu_must_be_the_worker_does_not_answer_without_the_provider(
    loaded: LoadedRevision, devices: Path
) -> None:
    with pytest.raises(DeviceError, match="onnxruntime-gpu"):
        open_served(loaded, DeviceSettings(Device.GPU), {}, devices)
