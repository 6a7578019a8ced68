"""How rows are stored: what comes back is what went in, to within the dtype's rounding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.support.campaigns import examples

from gnnserve_api.variants import Storage
from gnnserve_worker.tables.formats import FORMATS

STORAGES = pytest.mark.parametrize("storage", list(Storage), ids=str)
QUICK = settings(max_examples=examples(200), deadline=None, derandomize=True)
LARGEST_HALF = 65_504.0
LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127
SMALLEST_FLOAT32 = 2.0**-149


def rows_up_to(largest: float) -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(-largest, largest, width=32) | st.sampled_from([0.0, -0.0, 1.0, SMALLEST_FLOAT32, -1e-40])
    return hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=numbers)


finite_rows = rows_up_to(float(np.finfo(np.float32).max))


def _round_trip(rows: np.ndarray, storage: Storage) -> np.ndarray:
    values, scales = FORMATS[storage].encode(rows)
    assert values.dtype == FORMATS[storage].dtype
    assert values.shape == rows.shape
    assert (scales is not None) == (storage is Storage.INT8)
    decoded = FORMATS[storage].decode(values, scales)
    assert decoded.dtype == np.float32
    return decoded


def _bits(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.uint32)


def test_every_storage_has_a_format_with_a_dtype_of_its_own() -> None:
    """Compiled kernels tell formats apart by the dtype alone."""
    assert {storage: table_format.storage for storage, table_format in FORMATS.items()} == {s: s for s in Storage}
    assert len({table_format.dtype for table_format in FORMATS.values()}) == len(Storage)


@QUICK
@given(rows=finite_rows)
def test_float32_is_kept_to_the_bit(rows: np.ndarray) -> None:
    np.testing.assert_array_equal(_bits(_round_trip(rows, Storage.FLOAT32)), _bits(rows))


@QUICK
@given(rows=rows_up_to(LARGEST_HALF))
def test_float16_keeps_eleven_bits(rows: np.ndarray) -> None:
    exact = rows.astype(np.float64)

    error = np.abs(_round_trip(rows, Storage.FLOAT16) - exact)

    # Half a unit in the last place: relative for normal numbers, 2^-25 for denormal ones.
    assert (error <= np.maximum(np.abs(exact) * 2.0**-11, 2.0**-25)).all()


@QUICK
@given(rows=rows_up_to(LARGEST_BFLOAT16))
def test_bfloat16_keeps_eight_bits_and_the_range_of_float32(rows: np.ndarray) -> None:
    exact = rows.astype(np.float64)

    error = np.abs(_round_trip(rows, Storage.BFLOAT16) - exact)

    assert (error <= np.maximum(np.abs(exact) * 2.0**-8, 2.0**-134)).all()


@QUICK
@given(rows=rows_up_to(LARGEST_BFLOAT16))
def test_bfloat16_rounds_to_the_nearest(rows: np.ndarray) -> None:
    """As torch does, ties to even."""
    import torch

    expected = torch.from_numpy(rows.copy()).to(torch.bfloat16).to(torch.float32).numpy()

    np.testing.assert_array_equal(_bits(_round_trip(rows, Storage.BFLOAT16)), _bits(expected))


@QUICK
@given(rows=rows_up_to(2.0**127))  # beyond, 127 scales may round to infinity, as would the sum of any two such numbers
def test_int8_is_off_by_half_a_step_of_its_row_at_most(rows: np.ndarray) -> None:
    exact = rows.astype(np.float64)
    largest = np.abs(exact).max(axis=1, keepdims=True)

    decoded = _round_trip(rows, Storage.INT8)

    # The scale itself is rounded: to 24 bits, or among denormals to a multiple of the smallest number, 127 steps long.
    rounding = largest * 2.0**-22 + 127 * SMALLEST_FLOAT32
    assert (np.abs(decoded - exact) <= largest / 127 / 2 + rounding).all()


@QUICK
@given(rows=finite_rows)
def test_int8_uses_its_steps_symmetrically(rows: np.ndarray) -> None:
    values, scales = FORMATS[Storage.INT8].encode(rows)
    opposite, same_scales = FORMATS[Storage.INT8].encode(-rows)

    assert values.min() >= -127
    np.testing.assert_array_equal(opposite, -values)
    np.testing.assert_array_equal(same_scales, scales)


def test_int8_of_a_row_of_denormals_does_not_wrap_around() -> None:
    """Its scale is 1.4 of the smallest number there is, so it is 1 of them, and 180 are more than 127 steps."""
    rows = np.array([[180, -180, 90, 0]], dtype=np.float32) * np.float32(SMALLEST_FLOAT32)

    values, _ = FORMATS[Storage.INT8].encode(rows)

    assert values.tolist() == [[127, -127, 90, 0]]


@STORAGES
def test_zeros_stay_zeros(storage: Storage) -> None:
    rows = np.array([[0.0, 0.0], [0.0, 3.0]], dtype=np.float32)

    decoded = _round_trip(rows, storage)

    assert decoded[0].tolist() == [0, 0]
    assert decoded[1, 0] == 0


@pytest.mark.parametrize("number", [65_520.0, -1e6, 3.4e38])
def test_what_does_not_fit_float16_is_refused_with_the_number(number: float) -> None:
    rows = np.array([[1.0, number, np.inf]], dtype=np.float32)

    with pytest.raises(ValueError, match=r"does not fit float16, whose largest number is 65,504") as refused:
        FORMATS[Storage.FLOAT16].encode(rows)
    assert f"{abs(np.float32(number)):,.6g}" in str(refused.value)


def test_the_largest_number_that_rounds_into_float16_fits() -> None:
    assert _round_trip(np.array([[65_519.0]], dtype=np.float32), Storage.FLOAT16)[0, 0] == LARGEST_HALF


@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.FLOAT16, Storage.BFLOAT16], ids=str)
def test_infinities_stay_infinities(storage: Storage) -> None:
    assert _round_trip(np.array([[np.inf, -np.inf]], dtype=np.float32), storage).tolist() == [[np.inf, -np.inf]]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.BFLOAT16], ids=str)
def test_every_nan_stays_one(storage: Storage, bits: int) -> None:
    """Also those whose upper bits are an infinity's, or that rounding would carry into a zero."""
    rows = np.array([[bits, 0x3F800000]], dtype=np.uint32).view(np.float32)

    decoded = _round_trip(rows, storage)

    assert np.isnan(decoded).tolist() == [[True, False]]
    assert decoded[0, 1] == 1


@STORAGES
def test_rows_may_be_read_only(storage: Storage) -> None:
    rows = np.array([[1.0, -2.0]], dtype=np.float32)
    rows.setflags(write=False)

    np.testing.assert_allclose(_round_trip(rows, storage), rows, rtol=1e-2)


def test_int8_without_its_scales_is_refused() -> None:
    with pytest.raises(ValueError, match="int8 rows are worth nothing without their scales"):
        FORMATS[Storage.INT8].decode(np.zeros((1, 1), dtype=np.int8), None)


@STORAGES
def test_rows_begin_on_cache_lines_and_short_ones_straddle_none(storage: Storage) -> None:
    item_bytes = FORMATS[storage].dtype.itemsize
    for columns in range(1, 200):
        padded = FORMATS[storage].padded_columns(columns)
        row_bytes = padded * item_bytes

        assert padded >= columns
        assert row_bytes % 64 == 0 if columns * item_bytes > 64 else 64 % row_bytes == 0
        assert row_bytes < max(2 * columns * item_bytes, columns * item_bytes + 64)
        assert FORMATS[storage].padded_columns(padded) == padded


@pytest.mark.parametrize(
    ("storage", "expected"),
    [(Storage.FLOAT32, 280), (Storage.FLOAT16, 140), (Storage.BFLOAT16, 140), (Storage.INT8, 110)],
    ids=str,
)
def test_bytes_of_rows_count_columns_and_scales(storage: Storage, expected: int) -> None:
    assert 10 * FORMATS[storage].row_bytes(7) == expected
