"""Where the arrays of these tests lie: on the CPU, where kernels run in triton's interpreter; on a GPU, if there is
one, in its memory and in pinned host memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import use_small_chunks
from tests.support.gpu.gpu_twin import Twin
from tests.support.gpu.interposed import Interposed
from tests.support.gpu.interpreter import patch_language_once
from torch import Tensor

from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import tensor_over
from gnnserve_worker.gpu.cuda import use_first_gpu
from gnnserve_worker.gpu.kernels.launch import INTERPRETED
from gnnserve_worker.tables.formats import TableFormat

ON_GPU = torch.cuda.is_available()

if INTERPRETED:
    patch_language_once()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of each test of the GPU's code a share of the cases runs with a commit: a GPU runs all (`make test-gpu`)."""
    item.add_marker("campaign")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """On which kernels run."""
    return torch.device("cuda", 0) if ON_GPU else torch.device("cpu")


@pytest.fixture
def accelerator() -> Accelerator:
    return use_first_gpu() if ON_GPU else Twin()


@pytest.fixture
def interposed(accelerator: Accelerator) -> Interposed:
    """The same accelerator, which can be told to fail."""
    return Interposed(accelerator)


@pytest.fixture
def chunks_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of more seeds are several chunks, and the interpreter takes less time for small ones."""
    use_small_chunks(monkeypatch, 4)


@pytest.fixture(scope="session", params=["device memory", "pinned host memory"] if ON_GPU else ["host memory"])
def put(request: pytest.FixtureRequest, device: torch.device) -> Callable[..., Tensor]:
    """A tensor of the array's numbers where the graph and the rows lie."""

    def to_place(array: np.ndarray, table_format: TableFormat | None = None) -> Tensor:
        tensor = tensor_over(array, table_format)
        if device.type == "cpu":
            return tensor
        return tensor.pin_memory() if request.param == "pinned host memory" else tensor.to(device)

    return to_place
