"""The writer of `make bench-recommend`: rows into PostgreSQL from a process of its own, as an embeddings Job is one.

Prints `copying` when the first rows are sent and `indexing` when all are; then how long the rows took, and how long all
of it with the index, in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gnnserve_worker.generation.embeddings.postgres import PostgresSink
from gnnserve_worker.generation.embeddings.sink import Block, RevisionEmbeddings

COPYING, INDEXING = "copying", "indexing"
_AT_ONCE = 4096


def main(uri_file: str, path: str, rows: int) -> None:
    """`rows`: how many to write; vectors are repeated where there are fewer."""
    vectors = np.load(path, mmap_mode="r")
    embedded = RevisionEmbeddings("default/items", "0" * 12, "x1", None, rows, vectors.shape[1], False)
    copied_s: list[float] = []
    begun_s = time.perf_counter()

    def on_rows(done: int) -> None:
        if done <= _AT_ONCE:
            print(COPYING, flush=True)
        if done == rows:
            copied_s.append(time.perf_counter() - begun_s)
            print(INDEXING, flush=True)

    PostgresSink(Path(uri_file)).write(embedded, lambda: vectors_of(vectors, rows), on_rows)
    print(json.dumps({"copied_s": copied_s[0], "whole_s": time.perf_counter() - begun_s}), flush=True)


def vectors_of(vectors: np.ndarray, rows: int, at_once: int = _AT_ONCE) -> Iterator[Block]:
    for start in range(0, rows, at_once):
        end = min(start + at_once, rows)
        yield range(start, end), vectors.take(range(start, end), axis=0, mode="wrap")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
