"""Synthetic graphs in the shape of public data sets, with weights and scores that every right server must give.

The data sets themselves need a network; what a request costs depends on nodes, degrees and widths, and these are
reproduced: a Chung-Lu power law, symmetric, without loops or repeated edges. Accuracy means nothing here. Everything
follows from fixed seeds, is made once under `~/.cache/gnnserve/bench` and is checked by SHA-256 whenever it is used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors.numpy

CACHE = Path.home() / ".cache/gnnserve/bench"
FANOUTS = (25, 10)
PROBES = 64
"""The last nodes: a component of their own whose neighbourhoods fit every fan-out, so their scores are exact."""
_PROBE_REACH = 3
"""Each probe is linked to this many others on either side of a ring."""
_VALIDATION, _TRAIN = 8192, 1024
"""Nodes of the splits that a graph file must have; few, so that a profile takes seconds."""
_GENERATOR = 1
"""Raise it when the same shape would come out differently: cached files are then made anew."""


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    nodes: int
    edges: int
    """Directed; each link counts twice."""
    features: int
    hidden: int
    classes: int
    exponent: float = 0.45
    """A node of rank r is drawn with probability ~ r^-exponent, as either end of a link."""
    seed: int = 20261121

    @property
    def seeds_end(self) -> int:
        """Load asks for nodes below it."""
        return self.nodes - PROBES


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("arxiv", nodes=169_343, edges=2_332_486, features=128, hidden=128, classes=40),
        Shape("reddit", nodes=232_965, edges=23_213_838, features=602, hidden=256, classes=41),
        Shape("products", nodes=2_449_029, edges=123_718_280, features=100, hidden=256, classes=47),
    )
}

Tensors = dict[str, np.ndarray]


class ProbedGraph(Protocol):
    """A graph in files that servers load, some of whose nodes have scores that every right server must give."""

    @property
    def folder(self) -> Path:
        """Folder of the files."""

    @property
    def seeds_end(self) -> int:
        """Load asks for nodes below it; the probes follow."""

    def probe_scores(self) -> np.ndarray:
        """float64 [probes, classes] of the nodes from `seeds_end` on."""


@dataclass(frozen=True, slots=True)
class ShapeFiles:
    """A folder with `indptr.npy` (int64), `indices.npy` (int32), `features.npy` (float32), `weights.npz` and
    `shape.json`; and, for servers that read one file, `graph.npz` and `checkpoint.safetensors`."""

    shape: Shape
    folder: Path

    @property
    def seeds_end(self) -> int:
        return self.shape.seeds_end

    def array(self, name: str) -> np.ndarray:
        array: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return array

    def weights(self) -> Tensors:
        with np.load(self.folder / "weights.npz") as archive:
            return dict(archive)

    def probe_scores(self) -> np.ndarray:
        """float64 [PROBES, classes] of the last nodes."""
        start = self.shape.seeds_end
        indptr = self.array("indptr")[start:]
        neighbours = self.array("indices")[indptr[0] : indptr[-1]].reshape(PROBES, -1) - start
        return exact_scores(np.asarray(self.array("features")[start:]), neighbours, self.weights())


def prepare(shape: Shape) -> ShapeFiles:
    """The files of a shape, made if they are not there yet."""
    with _cached_folder(shape, "arrays") as (folder, new):
        if new:
            _write_arrays(shape, folder)
    return ShapeFiles(shape, _folder(shape, "arrays"))


def prepare_sources(files: ShapeFiles) -> Path:
    """A folder with `graph.npz` and `checkpoint.safetensors`: what a GNNService names to serve this shape."""
    shape = files.shape
    with _cached_folder(shape, "sources") as (folder, new):
        if new:
            write_graph(files, folder / "graph.npz")
            safetensors.numpy.save_file(files.weights(), folder / "checkpoint.safetensors")
    return _folder(shape, "sources")


def write_graph(files: ShapeFiles, path: Path, *, multi_label: bool = False) -> None:
    """Writes the graph as a GNNService reads it. `multi_label`: a node has any of the classes, and not one of them."""
    shape = files.shape
    draw = np.random.default_rng(shape.seed + 2)
    masks = np.zeros((3, shape.nodes), dtype=bool)
    chosen = draw.permutation(shape.seeds_end)[: _TRAIN + _VALIDATION]
    masks[0, chosen[:_TRAIN]] = True
    masks[1, chosen[_TRAIN:]] = True
    labels = draw.permutation(np.arange(shape.nodes) % shape.classes)
    np.savez(
        path,
        indptr=files.array("indptr"),
        indices=files.array("indices"),
        features=files.array("features"),
        labels=(labels[:, None] == np.arange(shape.classes)).astype(np.uint8) if multi_label else labels,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


def power_law_graph(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """indptr int64 [nodes + 1] and indices int32 [edges], rows ascending, of the shape and its probes."""
    draw = np.random.default_rng(shape.seed)
    nodes = shape.seeds_end
    links = _draw_links(nodes, shape.edges // 2 - PROBES * _PROBE_REACH, shape.exponent, draw)
    low, high = links // nodes, links % nodes
    del links
    ring = np.arange(PROBES)
    for step in range(1, _PROBE_REACH + 1):
        low = np.concatenate([low, nodes + ring])
        high = np.concatenate([high, nodes + (ring + step) % PROBES])
    both = np.concatenate([low * shape.nodes + high, high * shape.nodes + low])
    del low, high
    both.sort()
    indptr = np.searchsorted(both, np.arange(shape.nodes + 1) * shape.nodes)
    both %= shape.nodes
    return indptr.astype(np.int64), both.astype(np.int32)


def _draw_links(nodes: int, count: int, exponent: float, draw: np.random.Generator) -> np.ndarray:
    """`count` distinct links, each as low · nodes + high with low < high, in no order."""
    cumulated = np.cumsum(np.arange(1, nodes + 1, dtype=np.float64) ** -exponent)
    cumulated /= cumulated[-1]
    # So that a node's id says nothing about its degree.
    names = draw.permutation(nodes)
    links = np.empty(0, dtype=np.int64)
    while len(links) < count:
        missing = int((count - len(links)) * 1.02) + 16
        ends = names[np.searchsorted(cumulated, draw.random((2, missing)))]
        ends.sort(axis=0)
        new = ends[0] * nodes + ends[1]
        links = np.concatenate([links, new[ends[0] != ends[1]]])
        links.sort()
        links = links[np.append(True, np.diff(links) > 0)]
    return draw.permutation(links)[:count]


def random_weights(shape: Shape) -> Tensors:
    """Random weights of a two-layer torch_geometric.nn.GraphSAGE, under its keys, uniform within 1/√inputs as torch
    begins."""
    draw = np.random.default_rng(shape.seed + 1)
    tensors = {}
    for layer, (inputs, outputs) in enumerate(((shape.features, shape.hidden), (shape.hidden, shape.classes))):
        for name, size in (("lin_l.weight", (outputs, inputs)), ("lin_l.bias", (outputs,)),
                           ("lin_r.weight", (outputs, inputs))):  # fmt: skip
            tensors[f"convs.{layer}.{name}"] = (draw.uniform(-1, 1, size) / np.sqrt(inputs)).astype(np.float32)
    return tensors


def exact_scores(features: np.ndarray, neighbours: np.ndarray, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """GraphSAGE-mean in float64 over a closed component: `neighbours` is [nodes, degree], numbered within it."""
    hidden = features.astype(np.float64)
    for layer in range(2):
        weights = {
            name: tensors[f"convs.{layer}.{name}"].astype(np.float64)
            for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight")
        }
        mean = hidden[neighbours].mean(axis=1)
        hidden = mean @ weights["lin_l.weight"].T + weights["lin_l.bias"] + hidden @ weights["lin_r.weight"].T
        if layer == 0:
            np.maximum(hidden, 0, out=hidden)
    return hidden


def _write_arrays(shape: Shape, folder: Path) -> None:
    print(f"making the {shape.name} shape: {shape.nodes:,} nodes, {shape.edges:,} edges", flush=True)
    indptr, indices = power_law_graph(shape)
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", indices)
    features = np.random.default_rng(shape.seed + 3).standard_normal((shape.nodes, shape.features), dtype=np.float32)
    np.save(folder / "features.npy", features)
    np.savez(folder / "weights.npz", **random_weights(shape))
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))


def _folder(shape: Shape, what: str) -> Path:
    digest = hashlib.sha256(json.dumps([_GENERATOR, asdict(shape)]).encode()).hexdigest()[:12]
    return CACHE / f"{shape.name}-{digest}" / what


@contextmanager
def _cached_folder(shape: Shape, what: str) -> Iterator[tuple[Path, bool]]:
    """A folder to fill, and True; or the filled one, verified, and False. `sha256.json` is written last."""
    folder = _folder(shape, what)
    if folder.is_dir():
        verify(folder)
        yield folder, False
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{what}-"))
    try:
        yield unfinished, True
        digests = {path.name: _digest(path) for path in sorted(unfinished.iterdir())}
        (unfinished / "sha256.json").write_text(json.dumps(digests, indent=2))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def verify(folder: Path) -> None:
    """SystemExit where a file is not what was written."""
    for name, wanted in json.loads((folder / "sha256.json").read_text()).items():
        if not (folder / name).is_file() or _digest(folder / name) != wanted:
            raise SystemExit(f"{folder / name} is damaged: remove {folder} and run again")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
