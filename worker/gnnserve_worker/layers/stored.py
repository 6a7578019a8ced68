"""Rows that are made ahead of time of the first layers of a network, taken apart and put together."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from gnnserve_api.files.layers import StoredRowsManifest


class RowParts(NamedTuple):
    """Parts of rows, float32 [nodes, columns] each, as a `StoredRowsManifest` has them; without columns, where they are
    not read."""

    output: np.ndarray
    written: tuple[np.ndarray, ...]
    network_input: np.ndarray
    features: np.ndarray

    @property
    def has_input(self) -> bool:
        return bool(self.network_input.shape[1])


_NO_COLUMNS = np.zeros((0, 0), np.float32)
NOTHING = RowParts(_NO_COLUMNS, (), _NO_COLUMNS, _NO_COLUMNS)


def parts_of(row: StoredRowsManifest, rows: np.ndarray) -> RowParts:
    """Views of stored rows, float32 [nodes, columns]."""
    output, *written, network_input, features = np.split(rows, [*accumulate(row.parts[:-1])], axis=1)
    return RowParts(output, tuple(written), network_input, features)


def stored_rows(row: StoredRowsManifest, output: np.ndarray, read: RowParts) -> np.ndarray:
    """Rows behind a layer, float32 [nodes, columns]. `output`: what it gives; `read`: parts of the rows that it reads,
    of the same nodes."""
    earlier = (*read.written, read.output)[-len(row.written) :] if row.written else ()
    # Before the first layer the network's input is what the layer reads.
    network_input = read.network_input if read.has_input else read.output
    kept = [network_input] * bool(row.network_input) + [read.features] * bool(row.features)
    return np.concatenate([output, *earlier, *kept], axis=1)
