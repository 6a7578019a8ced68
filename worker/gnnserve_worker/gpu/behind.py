"""Rows behind a table's, where the GPU reads them: in pinned host memory, in place.

They are few and read once or twice, so that copying them to the GPU's memory first would take longer than reading them
over the link, as rows of tables that lie in the host's memory are read. Their place is fixed, for captured graphs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnserve_worker.gpu.arrays import VECTOR_BYTES, DeviceRows, DeviceTable
from gnnserve_worker.tables.table import Rows, RowsBehind, Table

_SCALE_BYTES = 4


def row_bytes_behind(table: Table) -> int:
    """Bytes of one row, with the own one where that is another, and with scales."""
    return sum(map(_row_bytes, _distinct(table)))


class RoomBehind:
    """Room for rows behind one table's."""

    def __init__(self, table: Table, on_device: DeviceTable, memory: Tensor) -> None:
        """`memory`: uint8, pinned, at a multiple of 16 bytes. `on_device`: the same table."""
        # A multiple, so that every array in it begins at one of 16 bytes.
        self.capacity = len(memory) // row_bytes_behind(table) // VECTOR_BYTES * VECTOR_BYTES
        self._written: list[tuple[np.ndarray, np.ndarray | None]] = []
        made: list[DeviceRows] = []
        begin = 0
        for rows, known in zip(_distinct(table), (on_device.rows, on_device.own), strict=False):
            end = begin + self.capacity * rows.values.shape[1] * rows.values.itemsize
            values, begin = memory[begin:end], end
            scales = None
            if rows.format.has_scales:
                end = begin + self.capacity * _SCALE_BYTES
                scales, begin = memory[begin:end].view(torch.float32), end
            shape = (self.capacity, rows.values.shape[1])
            self._written.append(
                (values.numpy().view(rows.values.dtype).reshape(shape), None if scales is None else scales.numpy())
            )
            made.append(DeviceRows(values.view(known.values.dtype).view(shape), scales))
        self.table = DeviceTable(made[0], made[-1])
        """The rows, as kernels read them."""

    def write(self, rows: RowsBehind, first: int) -> None:
        """Put rows in place, from number `first` on. Nothing may still read those of before."""
        given = ((rows.values, rows.scales), (rows.own_values, rows.own_scales))
        for (values, scales), (new, new_scales) in zip(self._written, given, strict=False):
            if new is None:
                continue
            values[first : first + len(new)] = new
            if scales is not None:
                scales[first : first + len(new)] = new_scales


def _distinct(table: Table) -> list[Rows]:
    return [table.rows] if table.own is table.rows else [table.rows, table.own]


def _row_bytes(rows: Rows) -> int:
    return int(rows.values.strides[0]) + (_SCALE_BYTES if rows.format.has_scales else 0)
