"""How a row's float32 numbers are stored: one object per format, found by `FORMATS[storage]`.

numpy has no bfloat16 and numba no float16, so their bits are kept, as uint16 and int16. Everything in Python names the
format; compiled kernels alone go by the dtype of the array, of which every format has its own, and widen the numbers
while they read (`vectors.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gnnserve_api.variants import Storage

_LINE_BYTES = 64
_INT8_STEPS = 127


class TableFormat(ABC):
    """A storage format of numbers. Formats have no state: one object serves every table."""

    storage: ClassVar[Storage]
    dtype: ClassVar[np.dtype]
    scale_bytes: ClassVar[int] = 0
    """Bytes of a row's scale, a float32 beside the row; 0: rows have none."""
    is_exact: ClassVar[bool] = False
    """Whether it holds every float32 as it is."""
    largest: ClassVar[float | None] = None
    """The largest number that it holds; None: as float32, or whatever a row's scale makes possible."""

    @abstractmethod
    def encode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Convert float32 [rows, columns] to stored numbers and, if the format has them, scales: float32 [rows].

        ValueError: a finite number that the format cannot hold.
        """

    @abstractmethod
    def decode(self, values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        """Return the stored numbers as float32, a copy, for tests and diagnosis. Serving never makes such a copy."""

    @property
    def has_scales(self) -> bool:
        return self.scale_bytes > 0

    def row_bytes(self, columns: int) -> int:
        """Bytes of `columns` numbers of a row, with its scale."""
        return columns * self.dtype.itemsize + self.scale_bytes

    def padded_columns(self, columns: int) -> int:
        """Columns with padding: rows begin on cache lines, and those shorter than a line do not straddle two."""
        row_bytes = columns * self.dtype.itemsize
        if row_bytes >= _LINE_BYTES:
            padded_bytes = -(-row_bytes // _LINE_BYTES) * _LINE_BYTES
        else:
            padded_bytes = 1 << (row_bytes - 1).bit_length()
        return padded_bytes // self.dtype.itemsize


class _Float32(TableFormat):
    storage = Storage.FLOAT32
    dtype = np.dtype(np.float32)
    is_exact = True

    def encode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return rows, None

    def decode(self, values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        return values


class _Float16(TableFormat):
    storage = Storage.FLOAT16
    dtype = np.dtype(np.int16)
    largest = 65_504.0

    def encode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        with np.errstate(over="ignore"):
            halves = rows.astype(np.float16)
        if np.isinf(halves).sum() != np.isinf(rows).sum():
            largest = np.abs(rows[np.isfinite(rows)]).max()
            raise ValueError(f"{largest:,.6g} does not fit float16, whose largest number is 65,504")
        return halves.view(np.int16), None

    def decode(self, values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        return np.asarray(values.view(np.float16), dtype=np.float32)


class _Bfloat16(TableFormat):
    storage = Storage.BFLOAT16
    dtype = np.dtype(np.uint16)

    def encode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Round to the nearest, ties to even. NaN stays NaN."""
        bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
        quiet_nan = (bits >> 16) | np.uint32(0x40)
        return np.where(np.isnan(rows), quiet_nan, rounded).astype(np.uint16), None

    def decode(self, values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        return np.asarray((values.astype(np.uint32) << 16).view(np.float32))


class _Int8(TableFormat):
    """int8 with one scale per row, so that a prefix of a row is decoded by the same scale."""

    storage = Storage.INT8
    dtype = np.dtype(np.int8)
    scale_bytes = 4

    def encode(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        scales = (np.abs(rows).max(axis=1) / _INT8_STEPS).astype(np.float32)
        divisors = np.where(scales > 0, scales, np.float32(1.0))
        with np.errstate(invalid="ignore"):  # rows that are not finite give scores that are refused later
            steps = np.rint(rows / divisors[:, None])
            # The scale of a row of denormals is rounded coarsely: they may be more than 127 of it.
            return np.clip(steps, -_INT8_STEPS, _INT8_STEPS).astype(np.int8), scales

    def decode(self, values: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        if scales is None:
            raise ValueError("int8 rows are worth nothing without their scales")
        return np.asarray(values * scales[:, None], dtype=np.float32)


FORMATS: Mapping[Storage, TableFormat] = {
    table_format.storage: table_format for table_format in (_Float32(), _Float16(), _Bfloat16(), _Int8())
}
FLOAT32 = FORMATS[Storage.FLOAT32]
"""The format that keeps numbers as they are."""
BFLOAT16 = FORMATS[Storage.BFLOAT16]
"""The format of tables in bfloat16, and of the inputs of matrix products in bfloat16."""
