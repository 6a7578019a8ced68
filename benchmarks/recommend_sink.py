"""The writer of `make bench-recommend`: rows into PostgreSQL from a process of its own, as an embeddings Job is one.

Prints how long the rows took, and how long all of it with the index, in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnnserve_worker.generation.embeddings.postgres import PostgresSink
from gnnserve_worker.generation.embeddings.sink import Block, Embedded


def main(uri_file: str, path: str) -> None:
    vectors = np.load(path, mmap_mode="r")
    rows, columns = vectors.shape
    embedded = Embedded("default/items", "0" * 12, "x1", None, rows, columns, False)
    copied_s: list[float] = []
    begun_s = time.perf_counter()

    def on_rows(done: int) -> None:
        if done == rows:
            copied_s.append(time.perf_counter() - begun_s)

    PostgresSink(Path(uri_file)).write(embedded, lambda: _blocks(vectors), on_rows)
    print(json.dumps({"copied_s": copied_s[0], "whole_s": time.perf_counter() - begun_s}))


def _blocks(vectors: np.ndarray) -> Iterator[Block]:
    for start in range(0, len(vectors), 4096):
        end = min(start + 4096, len(vectors))
        yield range(start, end), vectors[start:end]


if __name__ == "__main__":
    main(*sys.argv[1:])
