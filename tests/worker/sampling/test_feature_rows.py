"""Rows of features that are read where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.sampling import batch_view
from gnnserve_worker.sampling.batch_view import FeatureRows, addresses_of

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


@pytest.mark.parametrize("objects_tell", [True, False])
def test_addresses_are_those_that_arrays_tell_themselves(objects_tell: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not objects_tell:
        monkeypatch.setattr(batch_view, "_objects_tell", lambda: False)
    arrays = [ROWS, ROWS[2:], np.zeros(3, np.int64), np.zeros((0, 4), np.float32)]
    assert addresses_of(arrays).tolist() == [each.ctypes.data for each in arrays]


@pytest.mark.parametrize(
    "given", [ROWS, np.asfortranarray(ROWS), np.repeat(ROWS, 2, axis=0)[::2], ROWS.astype(np.float64)]
)
def test_rows_are_read_whatever_the_order_of_an_array(given: np.ndarray) -> None:
    rows, wanted = FeatureRows.of(given), np.array([4, 0, 4])
    assert len(rows) == 6
    read = Scaling(Normalization.DISABLED).scale(rows, wanted, np.arange(4), 4)
    assert read.tolist() == ROWS[wanted].tolist()
