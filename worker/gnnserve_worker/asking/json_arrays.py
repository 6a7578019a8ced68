"""Arrays as JSON, by orjson: straight from numpy, and a float32 in as few digits as tell it from its neighbours.

A list of Python's numbers would be twice as long and take twice the time. Large arrays are encoded in blocks of rows,
because one call for millions of numbers would hold up every other client.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 2 ms."""
ARRAYS = orjson.OPT_SERIALIZE_NUMPY


def encode_rows(matrix: np.ndarray) -> Iterator[bytes]:
    """All rows, without the brackets around them."""
    rows = max(1, BLOCK_VALUES // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), rows):
        block = orjson.dumps(matrix[start : start + rows], option=ARRAYS)
        yield block[1:-1] if start == 0 else b"," + block[1:-1]
