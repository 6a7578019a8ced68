"""The format of the Open Graph Benchmark: CSV files without a header line, in gzip, in a zip or its extracted folder.

They are read as a stream, so that only the result is in memory: for ogbn-products a gigabyte of features, and edges at
eight bytes each until they are sorted.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import csv

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList
from gnnserve_worker.graph.sources.catalogue import OGB_EDGE, OGB_EDGES, OGB_FEATURES, OGB_LABEL, OGB_NODES, Ogb
from gnnserve_worker.graph.sources.checks import check_node_count
from gnnserve_worker.graph.sources.raw import RawGraph, unexpected, unlabelled
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.progress import Progress, ProgressListener

_BLOCK_BYTES = 8 << 20
_MOST_LINE_BYTES = 64 << 20
"""Longest line: a gzip file without line ends may unpack to a thousand times its size."""


def read(path: Path, dataset: Ogb, direction: Direction, progress: ProgressListener) -> RawGraph:
    """Read a data set. `path`: the zip, or the folder that has `raw` and `split` in it."""
    files = _Files(path, dataset)
    nodes, edges = files.count(OGB_NODES), files.count(OGB_EDGES)
    check_node_count(f"{path}: {OGB_NODES}", nodes)
    # Labels first: they have a line per node, which confirms the number of nodes before arrays are made for them.
    labels = _labels(files, nodes)
    graph, counts = _graph(files, nodes, edges, direction, progress)
    features = _features(files, nodes, progress)
    train, validation, test = (files.column(split) for split in dataset.splits)
    return RawGraph(graph, features, labels, (train, validation, test), (*counts.findings(), *unlabelled(labels)))


class _Files:
    """The data set's CSV files of numbers, in a zip or a folder."""

    def __init__(self, path: Path, dataset: Ogb) -> None:
        self._path = path
        self._folder = dataset.folder

    def error(self, member: str, problem: str) -> InputError:
        return unexpected(self._path, member, problem)

    def count(self, member: str) -> int:
        numbers = self.column(member)
        if len(numbers) != 1 or numbers[0] < 0:
            raise self.error(member, f"has {numbers[:3].tolist()}, expected the size of one graph")
        return int(numbers[0])

    def column(self, member: str) -> np.ndarray:
        """The only column of that file, int64."""
        blocks = [_values(batch.column(0)) for batch in self.batches(member, pa.int64(), columns=1)]
        return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)

    def batches(self, member: str, kind: pa.DataType, columns: int) -> Iterator[pa.RecordBatch]:
        names = [str(column) for column in range(columns)]
        with self._reading(member) as text:
            yield from csv.open_csv(
                text,
                read_options=csv.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
                # A missing value is an error, not a null.
                convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, kind), null_values=[]),
            )

    def width(self, member: str) -> int:
        """Count the numbers in the file's first line."""
        with self._reading(member) as text:
            line = text.readline(_MOST_LINE_BYTES)
            if len(line) == _MOST_LINE_BYTES:
                raise ValueError(f"its first line is longer than {_MOST_LINE_BYTES:,} bytes")
            return line.count(b",") + 1

    @contextmanager
    def _reading(self, member: str) -> Iterator[gzip.GzipFile]:
        try:
            with self._opened(member) as raw, gzip.GzipFile(fileobj=raw) as text:
                yield text
        except KeyError as error:
            raise self.error(member, f"is not in the zip as {self._folder}/{member}") from error
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, pa.ArrowException) as error:
            raise self.error(member, f"cannot be read: {error}") from error

    @contextmanager
    def _opened(self, member: str) -> Iterator[IO[bytes]]:
        if self._path.is_dir():
            with (self._path / member).open("rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self._path) as archive, archive.open(f"{self._folder}/{member}") as file:
                yield file


def _values(column: pa.Array) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=True)
    return values


def _graph(
    files: _Files, nodes: int, expected: int, direction: Direction, progress: ProgressListener
) -> tuple[Graph, EdgeCounts]:
    edges = EdgeList(nodes, direction)
    done = 0
    progress(Progress(f"read {OGB_EDGE}", 0, expected))
    for batch in files.batches(OGB_EDGE, pa.int32(), columns=2):
        sources, targets = _values(batch.column(0)), _values(batch.column(1))
        bad = edges.add(sources, targets)
        if bad >= 0:
            problem = f"line {done + bad + 1} is {sources[bad]},{targets[bad]}, expected nodes from 0 to {nodes - 1}"
            raise files.error(OGB_EDGE, problem)
        done += len(sources)
        progress(Progress(f"read {OGB_EDGE}", min(done, expected), expected))
    if done != expected:
        raise files.error(OGB_EDGE, f"has {done:,} lines, expected {expected:,}, as {OGB_EDGES} says")
    return edges.to_graph()


def _features(files: _Files, nodes: int, progress: ProgressListener) -> np.ndarray:
    """Features, float32 [nodes, columns], all finite."""
    columns = files.width(OGB_FEATURES)
    features = np.empty((nodes, columns), dtype=np.float32)
    done = 0
    progress(Progress(f"read {OGB_FEATURES}", 0, nodes))
    for batch in files.batches(OGB_FEATURES, pa.float32(), columns):
        end = done + batch.num_rows
        if end > nodes:
            raise files.error(OGB_FEATURES, f"has more than {nodes:,} lines, which {OGB_NODES} says there are nodes")
        block = features[done:end]
        np.stack([_values(column) for column in batch.columns], axis=1, out=block)
        if not np.isfinite(block).all():
            row, column = np.argwhere(~np.isfinite(block))[0]
            problem = (
                f"line {done + row + 1} has {block[row, column]} in column {column + 1}, expected a finite float32"
            )
            raise files.error(OGB_FEATURES, problem)
        done = end
        progress(Progress(f"read {OGB_FEATURES}", done, nodes))
    if done != nodes:
        raise files.error(OGB_FEATURES, f"has {done:,} lines, expected {nodes:,}, as {OGB_NODES} says")
    return features


def _labels(files: _Files, nodes: int) -> np.ndarray:
    """Labels, int64 [nodes], -1 where the class is unknown (nan in the files)."""
    blocks = [_values(batch.column(0)) for batch in files.batches(OGB_LABEL, pa.float64(), columns=1)]
    given = np.concatenate(blocks) if blocks else np.empty(0)
    if len(given) != nodes:
        raise files.error(OGB_LABEL, f"has {len(given):,} lines, expected {nodes:,}, as {OGB_NODES} says")
    known = ~np.isnan(given)
    bad = np.flatnonzero(known & ((given < 0) | (given != np.trunc(given)) | (given > np.iinfo(np.int32).max)))
    if len(bad):
        raise files.error(OGB_LABEL, f"line {bad[0] + 1} is {given[bad[0]]:g}, expected a class, an integer from 0")
    labels = np.full(nodes, -1, dtype=np.int64)
    labels[known] = given[known].astype(np.int64)
    return labels
