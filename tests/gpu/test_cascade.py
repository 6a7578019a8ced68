"""A cascade on a GPU: both stages there, the decision on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.gpu_revisions import engine_of, revision

from gnnserve_api.families import FamilyName
from gnnserve_api.repository import CascadeManifest
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.cascade import confidences, with_cascades

pytestmark = pytest.mark.usefixtures("chunks_of_4")


def test_answers_are_those_of_the_gpus_stages(accelerator: Accelerator) -> None:
    loaded = revision()
    engine, seeds = engine_of(loaded, accelerator), np.arange(24, dtype=np.int64)
    on_cpu = infer_batch(loaded, "x2", seeds, key=3).scores
    ascending = np.sort(confidences(on_cpu, 1.0))
    gap = 8 + int(np.diff(ascending[8:16]).argmax())  # between two confidences that no rounding confuses
    cascade = CascadeManifest(
        name="x2-then-x1-p50",
        family=FamilyName.CASCADE,
        first="x2",
        then="x1",
        temperature=1.0,
        threshold=float(ascending[gap : gap + 2].mean()),
    )

    answer = with_cascades(engine.infer, [cascade])(cascade.name, seeds, 3)

    is_passed_on = confidences(on_cpu, 1.0) < np.float32(cascade.threshold)
    assert is_passed_on.any()
    stages = [engine.infer(name, seeds, 3).scores for name in ("x2", "x1")]
    expected = np.where(is_passed_on[:, None], stages[1], stages[0])
    np.testing.assert_allclose(answer.scores, expected, rtol=1e-5, atol=1e-5)
