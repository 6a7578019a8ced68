"""Small data sets in the formats of public ones, byte for byte as the programs of their authors write them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """A graph that all formats can hold."""

    edges: np.ndarray
    """int64 [edges, 2], source and target."""
    features: np.ndarray
    """float32 [nodes, columns]."""
    labels: np.ndarray
    """int64 [nodes], or 0 and 1 [nodes, classes]."""
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.features)

    def adjacency(self) -> sp.csr_matrix:
        """Row i has the targets of i; edges that are there twice are there once."""
        ones = np.ones(len(self.edges))
        matrix = sp.csr_matrix((ones, self.edges.T), shape=(self.nodes, self.nodes))
        matrix.data[:] = 1
        return matrix


def sample(nodes: int = 12, columns: int = 4, classes: int = 3, *, several: bool = False) -> Sample:
    draw = np.random.default_rng(nodes)
    edges = draw.integers(0, nodes, (4 * nodes, 2))
    features = (draw.random((nodes, columns)) * (draw.random((nodes, columns)) < 0.7)).astype(np.float32)
    labels = (draw.random((nodes, classes)) < 0.4).astype(np.int64) if several else np.arange(nodes) % classes
    order = draw.permutation(nodes)
    return Sample(edges, features, labels, order[: nodes // 2], order[nodes // 2 : -2], order[-2:])


# --- Open Graph Benchmark


def ogb_members(data: Sample, folder: str, split: str, **replaced: str) -> Files:
    """Members by path in the zip. `replaced`: other text for the file of that name, `edge` and so on."""
    texts = {
        "raw/edge": _csv(data.edges),
        "raw/node-feat": _csv(data.features),
        "raw/node-label": _csv(data.labels[:, None]),
        "raw/num-node-list": f"{data.nodes}\n",
        "raw/num-edge-list": f"{len(data.edges)}\n",
        f"split/{split}/train": _csv(data.train[:, None]),
        f"split/{split}/valid": _csv(data.validation[:, None]),
        f"split/{split}/test": _csv(data.test[:, None]),
    }
    for name, text in replaced.items():
        texts[next(path for path in texts if path.endswith(f"/{name.replace('_', '-')}"))] = text
    return {f"{folder}/{path}.csv.gz": gzip.compress(text.encode(), mtime=0) for path, text in texts.items()}


def zipped(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def ogb_files(data: Sample, folder: str = "arxiv", split: str = "time", **replaced: str) -> Files:
    return {f"{folder}.zip": zipped(ogb_members(data, folder, split, **replaced))}


def _csv(rows: np.ndarray) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())


# --- GraphSAINT


def saint_files(data: Sample) -> Files:
    adjacency, features = io.BytesIO(), io.BytesIO()
    sp.save_npz(adjacency, data.adjacency())
    np.save(features, data.features.astype(np.float64))
    roles = {"tr": data.train.tolist(), "va": data.validation.tolist(), "te": data.test.tolist()}
    return {
        "adj_full.npz": adjacency.getvalue(),
        "feats.npy": features.getvalue(),
        "class_map.json": json.dumps({str(node): label for node, label in enumerate(data.labels.tolist())}).encode(),
        "role.json": json.dumps(roles).encode(),
    }


# --- gnn-benchmark


def benchmark_files(data: Sample, name: str = "amazon_electronics_photo") -> Files:
    file = io.BytesIO()
    np.savez_compressed(file, **benchmark_arrays(data))
    return {f"{name}.npz": file.getvalue()}


def benchmark_arrays(data: Sample) -> dict[str, np.ndarray]:
    attributes = sp.csr_matrix(data.features)
    adjacency = data.adjacency()
    return {
        **{f"adj_{part}": getattr(adjacency, part) for part in ("data", "indices", "indptr")},
        "adj_shape": np.array(adjacency.shape),
        "attr_data": attributes.data,
        "attr_indices": attributes.indices.astype(np.float32),  # as published for some
        "attr_indptr": attributes.indptr,
        "attr_shape": np.array(attributes.shape),
        "labels": data.labels.astype(np.int8),
        "node_names": np.array([f"node {i}" for i in range(data.nodes)], dtype=object),
    }


# --- Planetoid


@dataclass(frozen=True, slots=True)
class Citations:
    """A graph in the order of Planetoid: training nodes, 500 for validation, others, test nodes."""

    data: Sample
    train: int
    listed: np.ndarray
    """The test nodes, in the order of their rows in the files."""


def citations(isolated: Sequence[int] = ()) -> Citations:
    """With `isolated`: nodes among the test nodes that no file says anything of."""
    first, nodes = 520, 540
    data = sample(nodes, columns=6, classes=3)
    features = data.features.copy()
    features[list(isolated)] = 0
    listed = np.random.default_rng(1).permutation([n for n in range(first, nodes) if n not in isolated])
    edges = data.edges[~np.isin(data.edges, list(isolated)).any(axis=1)]
    return Citations(replace(data, edges=edges, features=features), 9, listed)


def planetoid_files(made: Citations, name: str = "cora") -> Files:
    data, first = made.data, int(made.listed.min())
    one_hot = np.eye(3, dtype=np.int32)[data.labels]
    features = sp.csr_matrix(data.features)
    neighbours = {node: data.edges[data.edges[:, 0] == node, 1].tolist() for node in range(data.nodes)}
    parts = {
        "x": pickled_csr(features[: made.train]),
        "tx": pickled_csr(features[made.listed]),
        "allx": pickled_csr(features[:first]),
        "y": pickled_array(one_hot[: made.train]),
        "ty": pickled_array(one_hot[made.listed]),
        "ally": pickled_array(one_hot[:first]),
        "graph": pickled_lists(neighbours),
        "test.index": "".join(f"{node}\n" for node in made.listed).encode(),
    }
    return {f"ind.{name}.{part}": content for part, content in parts.items()}


def pickled(*instructions: bytes) -> bytes:
    """A pickle of protocol 2, as Python 2 wrote them."""
    return b"\x80\x02" + b"".join(instructions) + b"."


def pickled_array(array: np.ndarray) -> bytes:
    return pickled(_array(array))


def pickled_csr(matrix: sp.csr_matrix) -> bytes:
    state = {
        "_shape": _tuple(*map(_integer, matrix.shape)),
        "indptr": _array(matrix.indptr),
        "indices": _array(matrix.indices),
        "data": _array(matrix.data),
        "format": _text("csr"),
        "maxprint": _integer(50),
    }
    items = b"".join(_text(name) + value for name, value in state.items())
    return pickled(named("scipy.sparse.csr", "csr_matrix"), b")\x81}(", items, b"ub")


def pickled_lists(lists: Mapping[int, Iterable[int]]) -> bytes:
    items = b"".join(_integer(key) + b"](" + b"".join(map(_integer, row)) + b"e" for key, row in lists.items())
    made = named("collections", "defaultdict") + named("__builtin__", "list") + b"\x85R"
    return pickled(made, b"(", items, b"u")


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _array(array: np.ndarray) -> bytes:
    empty = (
        named("numpy.core.multiarray", "_reconstruct")
        + named("numpy", "ndarray")
        + b"K\x00\x85"
        + _text("b")
        + b"\x87R"
    )
    kind = array.dtype.str.removeprefix("<").removeprefix("|")
    dtype = (
        named("numpy", "dtype") + _text(kind) + b"K\x00K\x01\x87R(K\x03" + _text("<") + b"NNN"
        + 2 * _integer(-1) + b"K\x00tb"
    )  # fmt: skip
    raw = np.ascontiguousarray(array).tobytes()
    shape = b"(" + b"".join(map(_integer, array.shape)) + b"t"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _integer(value: Any) -> bytes:
    return b"J" + struct.pack("<i", int(value))


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()
