"""SGC on a GPU: a row and a product, and no neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.conftest import ON_GPU
from tests.support.gpu_revisions import engine_of, projected_revision, revision, some_seeds, use_small_chunks
from tests.support.gpu_twin import Twin

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.cuda import use_first_gpu
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.repository.loaded import LoadedRevision


@pytest.fixture
def accelerator() -> Accelerator:
    return use_first_gpu() if ON_GPU else Twin()


@pytest.mark.parametrize(
    "loaded",
    [
        pytest.param(revision("SGC", (0,)), id="propagated features"),
        pytest.param(revision("SGC", (0,), storage=Storage.INT8), id="propagated features in int8"),
        pytest.param(projected_revision("SGC", (0,), Storage.FLOAT32), id="scores"),
    ],
)
def test_answers_are_the_cpus(
    loaded: LoadedRevision, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_chunks(monkeypatch, 4)
    engine, seeds = engine_of(loaded, accelerator), some_seeds(7)
    for variant in loaded.variants:
        found, expected = engine.infer(variant, seeds, 11), infer_batch(loaded, variant, seeds, 11)
        size = float(np.abs(expected.scores).max())
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5 * size)
