"""How a row's float32 numbers are stored, and what they are worth when they are read.

numpy has no bfloat16 and numba no float16, so their bits are kept, as uint16 and int16: kernels tell them by that and
widen them while they read (`vectors.py`). int8 has a scale per row, which holds for its prefixes too.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.variants import Storage

_LINE_BYTES = 64
_INT8_STEPS = 127

_DTYPES: dict[Storage, type[np.generic]] = {
    Storage.FLOAT32: np.float32,
    Storage.FLOAT16: np.int16,
    Storage.BFLOAT16: np.uint16,
    Storage.INT8: np.int8,
}


def dtype_of(storage: Storage) -> np.dtype:
    return np.dtype(_DTYPES[storage])


def padded_columns(columns: int, storage: Storage) -> int:
    """Columns with padding: rows begin on cache lines, and those shorter than a line do not straddle two."""
    item_bytes = dtype_of(storage).itemsize
    row_bytes = columns * item_bytes
    if row_bytes >= _LINE_BYTES:
        padded_bytes = -(-row_bytes // _LINE_BYTES) * _LINE_BYTES
    else:
        padded_bytes = 1 << (row_bytes - 1).bit_length()
    return padded_bytes // item_bytes


def rows_bytes(nodes: int, columns: int, storage: Storage) -> int:
    """What `columns` of a table take, with its scales."""
    scale_bytes = 4 if storage is Storage.INT8 else 0
    return nodes * (columns * dtype_of(storage).itemsize + scale_bytes)


def encode(rows: np.ndarray, storage: Storage) -> tuple[np.ndarray, np.ndarray | None]:
    """float32 [rows, columns] as it is stored, and int8's scales: float32 [rows].

    ValueError: a finite number that becomes infinite in float16.
    """
    match storage:
        case Storage.FLOAT32:
            return rows, None
        case Storage.FLOAT16:
            with np.errstate(over="ignore"):
                halves = rows.astype(np.float16)
            if np.isinf(halves).sum() != np.isinf(rows).sum():
                largest = np.abs(rows[np.isfinite(rows)]).max()
                raise ValueError(f"{largest:,.6g} does not fit float16, whose largest number is 65,504")
            return halves.view(np.int16), None
        case Storage.BFLOAT16:
            return _to_bfloat16(rows), None
        case Storage.INT8:
            scales = (np.abs(rows).max(axis=1) / _INT8_STEPS).astype(np.float32)
            divisors = np.where(scales > 0, scales, np.float32(1.0))
            with np.errstate(invalid="ignore"):  # rows that are not finite give scores that are refused later
                steps = np.rint(rows / divisors[:, None])
                # The scale of a row of denormals is rounded coarsely: they may be more than 127 of it.
                return np.clip(steps, -_INT8_STEPS, _INT8_STEPS).astype(np.int8), scales


def decode(values: np.ndarray, scales: np.ndarray | None, storage: Storage) -> np.ndarray:
    """The float32 numbers that kernels see. A copy, for tests and for looking; serving never does this."""
    match storage:
        case Storage.FLOAT32:
            return values
        case Storage.FLOAT16:
            return np.asarray(values.view(np.float16), dtype=np.float32)
        case Storage.BFLOAT16:
            return np.asarray((values.astype(np.uint32) << 16).view(np.float32))
        case Storage.INT8:
            if scales is None:
                raise ValueError("int8 rows are worth nothing without their scales")
            return np.asarray(values * scales[:, None], dtype=np.float32)


def _to_bfloat16(rows: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, ties to even. A NaN stays one."""
    bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x40)
    return np.where(np.isnan(rows), quiet_nan, rounded).astype(np.uint16)
