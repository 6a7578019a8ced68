"""SGC and SIGN on a GPU: a row and products, and no neighbours."""

from __future__ import annotations

import pytest
from tests.support.gpu_revisions import assert_answers_are_the_cpus, projected_revision, revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.repository.loaded import LoadedRevision

pytestmark = pytest.mark.usefixtures("chunks_of_4")


@pytest.mark.parametrize(
    "loaded",
    [
        pytest.param(revision("SGC", (0,)), id="propagated features"),
        pytest.param(revision("SGC", (0,), storage=Storage.INT8), id="propagated features in int8"),
        pytest.param(projected_revision("SGC", (0,), Storage.FLOAT32), id="scores"),
        pytest.param(revision("SIGN", (0, 0, 0)), id="three products"),
        pytest.param(projected_revision("SIGN", (0, 0), Storage.INT8), id="a stored product and another"),
    ],
)
def test_answers_are_the_cpus(loaded: LoadedRevision, accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(loaded, accelerator)
