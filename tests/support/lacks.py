"""What a machine may lack so that a test is left out: a GPU (or the absence of one, where a twin takes its place), the
public graphs beside the checkout and, on a laptop, root or a Kubernetes node of one's own.

Any other test that cannot run fails and says why: `make check` refuses marks and calls that skip in every other file.
Each function looks for itself whether the thing is missing, so that no test is left out by mistake.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NoReturn

import pytest
from tests.cluster.harness.session import users_kubeconfig
from tests.support.missing_data import DATASETS, REASON

from gnnserve_worker.pods.device import why_no_gpu
from gnnserve_worker.programs.providers import CUDA

NO_GPU = "torch sees no GPU on this machine"
NO_CUDA_PROVIDER = "there is no GPU that ONNX Runtime can use on this machine"
needs_graphs = pytest.mark.skipif(not DATASETS.is_dir(), reason=REASON)


def sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def needs_gpu() -> pytest.MarkDecorator:
    return pytest.mark.skipif(not sees_gpu(), reason=NO_GPU)


def needs_cuda_provider() -> pytest.MarkDecorator:
    """A GPU, and an ONNX Runtime that can use it."""
    return pytest.mark.skipif(not (sees_gpu() and _has_cuda_provider()), reason=NO_CUDA_PROVIDER)


def _has_cuda_provider() -> bool:
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def needs_no_gpu(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(sees_gpu(), reason=why)


def needs_no_gpu_files(why: str) -> pytest.MarkDecorator:
    """As workers look for one, without torch."""
    return pytest.mark.skipif(why_no_gpu({}, Path("/dev")) is None, reason=why)


def needs_root(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(os.geteuid() != 0, reason=why)


def lacks_gpu() -> NoReturn:
    if sees_gpu():
        pytest.fail("there is a GPU, and the test does not use it")
    pytest.skip(NO_GPU)


def lacks_root(words: str) -> NoReturn:
    """For what only root can do or install: CI is root, and lacks nothing."""
    (pytest.fail if os.geteuid() == 0 else pytest.skip)(words)


def lacks_own_node(about: str) -> NoReturn:
    """For tests of a node that is this machine. `about`: what they are about."""
    if users_kubeconfig() is None:
        pytest.fail(f"{about}, and the harness made no node")
    pytest.skip(f"{about}; KUBECONFIG names another cluster")
