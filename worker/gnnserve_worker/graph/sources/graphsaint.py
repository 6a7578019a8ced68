"""The format of Zeng et al.: adjacency as scipy's CSR, dense features, classes and roles as JSON.

Features are kept as published, as in torch_geometric; `spec.graph.normalization` scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.files.edges import Direction
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.raw import CsrParts, RawGraph, float32, read_members, unexpected, unlabelled
from gnnserve_worker.progress import Progress, ProgressListener

_T = TypeVar("_T")


class _Roles(msgspec.Struct, frozen=True):
    tr: list[int]
    va: list[int]
    te: list[int]


def read(files: Mapping[str, Path], direction: Direction, progress: ProgressListener) -> RawGraph:
    adjacency = files["adj_full.npz"]
    progress(Progress(f"read {adjacency.name}", 0, 1))
    graph, counts = CsrParts.of(adjacency, "", *read_members(adjacency, ("indptr", "indices", "shape"))).to_graph(
        direction
    )
    progress(Progress(f"read {adjacency.name}", 1, 1, f"{graph.edges:,} edges"))
    features = _features(files["feats.npy"], graph.nodes, progress)
    labels = _labels(files["class_map.json"], graph.nodes, progress)
    roles = _decoded(files["role.json"], _Roles)
    splits = tuple(_ids(files["role.json"], role, getattr(roles, role)) for role in ("tr", "va", "te"))
    findings = (*counts.findings(), *unlabelled(labels))
    return RawGraph(graph, features, labels, (splits[0], splits[1], splits[2]), findings)


def _features(path: Path, nodes: int, progress: ProgressListener) -> np.ndarray:
    progress(Progress(f"read {path.name}", 0, 1))
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise unexpected(path, "", f"is not a readable .npy file of numbers: {archive.numpy_words(error)}") from error
    if not isinstance(mapped, np.ndarray) or mapped.ndim != 2 or len(mapped) != nodes or mapped.shape[1] == 0:
        shape = getattr(mapped, "shape", "no shape")
        raise unexpected(path, "", f"has the shape {shape}, expected a row for each of {nodes} nodes")
    features = float32(path, "", mapped)
    progress(Progress(f"read {path.name}", 1, 1, f"{features.shape[1]:,} columns"))
    return features


def _labels(path: Path, nodes: int, progress: ProgressListener) -> np.ndarray:
    """Labels by node id: a class number for each node, or a list with a 0 or 1 for every class."""
    progress(Progress(f"read {path.name}", 0, 1))
    # Values stay undecoded: lists of numbers take ten times as much memory as Python objects as they do as text.
    written = _decoded(path, dict[str, msgspec.Raw])
    ids = _ids(path, "a key", list(written))
    outside = np.flatnonzero((ids < 0) | (ids >= nodes))
    if len(outside):
        raise unexpected(path, "", f"has the node {ids[outside[0]]}, expected 0 to {nodes - 1}")
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):  # JSON takes "3" and "03" for two keys
        raise unexpected(path, "", f"has the node {distinct[counts > 1][0]} {counts.max()} times, expected it once")
    values = list(map(bytes, written.values()))
    parse = _several_classes if values and values[0].startswith(b"[") else _classes
    labels = parse(path, ids, values, nodes)
    progress(Progress(f"read {path.name}", 1, 1))
    return labels


def _classes(path: Path, ids: np.ndarray, values: list[bytes], nodes: int) -> np.ndarray:
    try:
        classes = np.array([int(value) for value in values], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise unexpected(path, "", f"expected a class as an integer for every node: {error}") from error
    if len(classes) and classes.min() < 0:
        raise unexpected(path, str(ids[classes.argmin()]), f"is {classes.min()}, expected a class from 0")
    labels = np.full(nodes, -1, dtype=np.int64)
    labels[ids] = classes
    return labels


def _several_classes(path: Path, ids: np.ndarray, values: list[bytes], nodes: int) -> np.ndarray:
    if len(ids) != nodes:
        raise unexpected(path, "", f"has classes of {len(ids)} nodes, expected all {nodes}")
    count = values[0].count(b",") + 1
    rows = b"".join([_digits(path, node, value, count) for node, value in zip(ids, values, strict=True)])
    labels = np.empty((nodes, count), dtype=np.uint8)
    labels[ids] = np.frombuffer(rows, dtype=np.uint8).reshape(nodes, count) - ord("0")
    return labels


def _digits(path: Path, node: int, value: bytes, count: int) -> bytes:
    """The digits of a list: `[0, 1, 0]` becomes `010`."""
    digits = value.translate(None, b"[], \t\r\n")
    if len(digits) == count and value.count(b",") == count - 1 and not digits.strip(b"01"):
        return digits  # as many digits as numbers, so that each of these is 0 or 1
    try:
        numbers = decoding.decode(value, list[float])
    except msgspec.DecodeError:
        numbers = []
    if len(numbers) != count or not set(numbers) <= {0, 1}:
        shown = value[:60].decode(errors="replace")
        raise unexpected(path, str(node), f"is {shown}, expected a list of {count} numbers that are 0 or 1")
    return b"".join(b"1" if number else b"0" for number in numbers)


def _ids(path: Path, part: str, given: list[int] | list[str]) -> np.ndarray:
    try:
        return np.array([int(node) for node in given], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise unexpected(path, part, f"expected ids of nodes, integers: {error}") from error


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return decoding.decode(path.read_bytes(), kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unexpected(path, "", f"is not the JSON of this data set: {error}") from error
