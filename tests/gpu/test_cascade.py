"""A cascade on a GPU: both stages there, the decision on the CPU."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.gpu.gpu_revisions import engine_of, published, revision

import gnnserve_worker.gpu.served as served_module
from gnnserve_api.device import CachePolicy
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.failure import Trust
from gnnserve_worker.gpu.memory import Ledger
from gnnserve_worker.gpu.served import serve_on_gpu
from gnnserve_worker.inference.batch import infer_batch, with_cascades
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.tasks.deciding import BY_CLASS, class_confidences

pytestmark = pytest.mark.usefixtures("chunks_of_4")


def cascade_of(threshold: float) -> CascadeManifest:
    return CascadeManifest(
        name="x2-then-x1-p50",
        family="cascade",
        first="x2",
        then="x1",
        temperature=1.0,
        threshold=threshold,
    )


def test_answers_are_those_of_the_gpus_stages(accelerator: Accelerator) -> None:
    loaded = revision()
    engine, seeds = engine_of(loaded, accelerator), np.arange(24, dtype=np.int64)
    on_cpu = infer_batch(loaded, "x2", seeds, key=3).scores
    ascending = np.sort(class_confidences(on_cpu, 1.0))
    gap = 8 + int(np.diff(ascending[8:16]).argmax())  # between two confidences that no rounding confuses
    cascade = cascade_of(float(ascending[gap : gap + 2].mean()))

    answer = with_cascades(engine.infer, [cascade], BY_CLASS)(cascade.name, seeds, 3)

    is_passed_on = class_confidences(on_cpu, 1.0) < np.float32(cascade.threshold)
    assert is_passed_on.any()
    stages = [engine.infer(name, seeds, 3).scores for name in ("x2", "x1")]
    expected = np.where(is_passed_on[:, None], stages[1], stages[0])
    np.testing.assert_allclose(answer.scores, expected, rtol=1e-5, atol=1e-5)


def test_a_gpu_serves_and_measures_cascades(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_ROUNDS", (1, 1))
    loaded, cascade = published(revision(fanouts=(2,))), cascade_of(threshold=2.0)
    assert loaded.manifest is not None
    first, *_ = loaded.manifest.profile.variants
    of_one = tuple(
        msgspec.structs.replace(first, name=name, latency=first.latency[:1]) for name in ("x1", "x2", cascade.name)
    )
    profile = msgspec.structs.replace(loaded.manifest.profile, variants=of_one)
    loaded = replace(loaded, manifest=msgspec.structs.replace(loaded.manifest, profile=profile, cascades=(cascade,)))
    served = serve_on_gpu(
        loaded, served_revision(loaded), CachePolicy.FREQUENCY, None, may_fall_back=False,
        use=lambda: accelerator, ledger=Ledger(), trust=Trust(),
    )  # fmt: skip

    seeds = np.arange(5, dtype=np.int64)
    expected = served.compute.infer("x1", seeds, 3).scores
    np.testing.assert_allclose(served.compute.infer(cascade.name, seeds, 3).scores, expected, rtol=1e-5, atol=1e-5)
    read = {each.name: each.latency[0].gathered_bytes for each in served.manifest.profile.variants}
    assert read[cascade.name] == read["x1"] + read["x2"]
    assert served.manifest.profile.machine == served.compute.device_stats().device
