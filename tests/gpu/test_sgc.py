"""SGC and SIGN on a GPU: a row and products, and no neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.gpu.gpu_revisions import assert_answers_are_the_cpus, projected_revision, revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.opening.loaded import LoadedRevision

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


def test_a_revision_may_have_networks_of_both_kinds(accelerator: Accelerator) -> None:
    """A network without hops is served beside a model that samples, as one-row variants are."""
    loaded, one_row = revision(), projected_revision("SIGN", (0, 0), Storage.INT8).variants["projected"]
    variants = {**loaded.variants, "mlp2-int8": replace(one_row, name="mlp2-int8")}
    assert_answers_are_the_cpus(replace(loaded, variants=variants), accelerator)
