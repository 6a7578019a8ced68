"""Programs by ONNX Runtime's CUDA provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.lacks import needs_cuda_provider

from gnnserve_api.device import Device
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.program_device import DEVICE_NAME
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.device import DeviceSettings, open_served


@pytest.mark.gpu
@needs_cuda_provider()
def test_a_program_is_served_by_the_gpu_with_the_scores_of_the_cpu(tmp_path: Path) -> None:
    from tests.support.programs.published_programs import (
        published,  # needs onnx, which the oldest versions come without
    )

    repository, manifest = published(tmp_path)
    loaded = load_revision(repository, manifest.revision)
    seeds = np.array([3, 0, 5], np.int64)
    before = infer_batch(loaded, "x1", seeds, key=0).scores
    served = open_served(loaded, DeviceSettings(Device.GPU, memory_bytes=1 << 30))
    assert served.compute.device_stats().device == DEVICE_NAME
    np.testing.assert_allclose(infer_batch(loaded, "x1", seeds, key=0).scores, before, rtol=1e-5)
    for one in loaded.programs:
        one.close()
