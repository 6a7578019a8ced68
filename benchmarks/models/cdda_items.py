"""The graph of `../shared/modal/cdda_items` as one file: items of a game, groups that they are found in, and monsters.

Features are made of the nodes' words, pictures and tables as the set's own baselines make theirs; nodes of all types
stand in one list, items first. An edge goes both ways. A pair of nodes is listed once, whatever lies between the two:
columns count the edges of each relation in each direction, and tell the means of what these say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

SHARED = Path(__file__).parents[3] / "shared" / "modal" / "cdda_items"
TYPES = ("item", "group", "monster")
_TEXT_COLUMNS, _PICTURE_COLUMNS = 256, 192
_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "component_of": ("count", "alternatives", "difficulty", "time_s", "is_disassembly"),
    "tool_for": ("alternatives", "charges"),
    "teaches": ("skill_level",),
    "spawns_in": ("weight",),
    "includes": ("weight",),
}
"""Numbers of edges, by relation."""
_KINDS = {"component_of": "skill"}
"""The array of a relation that tells kinds of edges apart, by whole numbers."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Items:
    """The graph, whose first nodes are those that are classified."""

    indptr: np.ndarray
    """int64 [nodes + 1]: the neighbours that a node reads"""
    indices: np.ndarray
    """int32 [edges]"""
    edge_columns: np.ndarray
    """float32 [edges, columns]"""
    features: np.ndarray
    """float32 [nodes, columns]"""
    labels: np.ndarray
    """int64 [nodes], -1 of those that have none"""
    train: np.ndarray
    """int64, places of nodes, as the next two"""
    validation: np.ndarray
    test: np.ndarray

    @property
    def edges(self) -> np.ndarray:
        """int64 [2, edges]: the node that is read, and the one that reads it."""
        return np.stack([self.indices.astype(np.int64), np.repeat(np.arange(len(self.labels)), np.diff(self.indptr))])

    def write(self, path: Path) -> None:
        masks = {"train_mask": self.train, "val_mask": self.validation, "test_mask": self.test}
        of_nodes = {name: np.isin(np.arange(len(self.labels)), nodes) for name, nodes in masks.items()}
        np.savez(
            path, indptr=self.indptr, indices=self.indices, features=self.features, labels=self.labels,
            edge_attr=self.edge_columns, **of_nodes,
        )  # fmt: skip


def read_items(folder: Path = SHARED) -> Items:
    nodes = {kind: _arrays(folder / f"nodes_{kind}.npz") for kind in TYPES}
    counts = [int(nodes[kind]["num_nodes"]) for kind in TYPES]
    begins = dict(zip(TYPES, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    items = nodes["item"]
    labels = np.full(sum(counts), -1, np.int64)
    labels[: counts[0]] = items["labels"]
    train, validation, test = (np.flatnonzero(items[name]) for name in ("train_mask", "val_mask", "test_mask"))
    lists = _lists(folder, begins, sum(counts))
    return Items(*lists, _features(folder, nodes, begins, sum(counts)), labels, train, validation, test)


def _arrays(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# --- edges


def _lists(folder: Path, begins: Mapping[str, int], nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`indptr`, `indices` and columns of the edges."""
    relations = [tuple(one[:3]) for one in json.loads((folder / "meta.json").read_text())["relations"]]
    pairs, columns, width = [], [], 0
    for source, name, target in relations:
        file = _arrays(folder / f"edges_{source}__{name}__{target}.npz")
        ends = file["src"].astype(np.int64) + begins[source], file["dst"].astype(np.int64) + begins[target]
        told = _told(name, file)
        for read, reads in (ends, ends[::-1]):
            pairs.append(reads * nodes + read)
            columns.append((width, told))
            width += told.shape[1]
    codes, places = np.unique(np.concatenate(pairs), return_inverse=True)
    summed = np.zeros((len(codes), width), np.float64)
    begin = 0
    for at, told in columns:
        rows = places[begin : begin + len(told)]
        begin += len(told)
        for column in range(told.shape[1]):
            summed[:, at + column] = np.bincount(rows, weights=told[:, column], minlength=len(codes))
        count = summed[:, at].copy()
        summed[:, at + 1 : at + told.shape[1]] /= np.maximum(count, 1)[:, None]
        summed[:, at] = np.log1p(count)
    indptr = np.searchsorted(codes // nodes, np.arange(nodes + 1)).astype(np.int64)
    there = np.count_nonzero(summed, axis=0)
    scaled = summed * there / np.maximum(np.abs(summed).sum(axis=0), 1e-6)  # by the mean of what is there
    return indptr, (codes % nodes).astype(np.int32), scaled.astype(np.float32)


def _told(relation: str, file: Arrays) -> np.ndarray:
    """Columns of the edges of a relation, float64 [edges, columns]: that it is one, its numbers, and its kind."""
    parts = [np.ones((len(file["src"]), 1))]
    parts += [_logarithms(file[name]) for name in _NUMBERS.get(relation, ())]
    if relation in _KINDS:
        kinds = file[_KINDS[relation]].astype(np.int64)
        parts.append(np.eye(int(kinds.max()) + 1)[kinds])
    return np.concatenate(parts, axis=1)


def _logarithms(numbers: np.ndarray) -> np.ndarray:
    """float64 [edges, 1], 0 of those that are missing."""
    return np.log1p(np.maximum(np.nan_to_num(numbers.astype(np.float64)), 0))[:, None]


# --- features


def _features(folder: Path, nodes: Mapping[str, Arrays], begins: Mapping[str, int], count: int) -> np.ndarray:
    kinds = np.zeros((count, len(TYPES)))
    texts, pictures, tables = [""] * count, np.zeros((count, _PICTURE_COLUMNS + 1)), [kinds]
    for place, kind in enumerate(TYPES):
        begin, found = begins[kind], nodes[kind]
        own = int(found["num_nodes"])
        kinds[begin : begin + own, place] = 1
        words = [_strings(found, name) for name in ("text_name", "text_description") if f"{name}_offsets" in found]
        texts[begin : begin + own] = [" . ".join(parts) for parts in zip(*words, strict=True)]
        if "tab_num" in found:
            table = _table(found["tab_num"].astype(np.float64), found["tab_cat"])
            tables.append(np.zeros((count, table.shape[1])))
            tables[-1][begin : begin + own] = table
        if (path := folder / f"images_{kind}.npz").is_file():
            images = _arrays(path)
            rows = _pictures(images["rgba"])
            pictures[begin + images["index"], : rows.shape[1]] = rows
            pictures[begin + images["index"], -1] = 1
    features = np.concatenate([*tables, _text(texts), pictures], axis=1)
    return np.ascontiguousarray(features, dtype=np.float32)


def _strings(found: Arrays, name: str) -> list[str]:
    data, ends = found[f"{name}_bytes"].tobytes(), found[f"{name}_offsets"]
    return [data[begin:end].decode() for begin, end in pairwise(ends.tolist())]


def _table(numbers: np.ndarray, kinds: np.ndarray) -> np.ndarray:
    is_missing = np.isnan(numbers)
    scaled = np.sign(numbers) * np.log1p(np.abs(numbers))
    scaled = (scaled - np.nanmean(scaled, axis=0)) / (np.nanstd(scaled, axis=0) + 1e-6)
    each = [np.eye(int(column.max()) + 1)[column] for column in kinds.T.astype(np.int64)]
    return np.concatenate([np.nan_to_num(scaled), is_missing, *each], axis=1)


def _text(texts: list[str]) -> np.ndarray:
    ways = ({"analyzer": "word", "ngram_range": (1, 2)}, {"analyzer": "char_wb", "ngram_range": (3, 4)})
    counted = [HashingVectorizer(n_features=2**16, alternate_sign=False, norm=None, **way) for way in ways]
    weighed = TfidfTransformer(sublinear_tf=True).fit_transform(
        sparse.hstack([one.transform(texts) for one in counted]).tocsr()
    )
    rows = TruncatedSVD(_TEXT_COLUMNS, random_state=0).fit_transform(weighed)
    rows[[place for place, text in enumerate(texts) if not text]] = 0
    return rows / (rows.std(axis=0).mean() + 1e-9)


def _pictures(rgba: np.ndarray) -> np.ndarray:
    """Rows of uint8 [pictures, 32, 32, 4]: coarse pixels, directions of edges in 16 fields, and colours."""
    pixels = rgba.astype(np.float32) / 255
    count, alpha = len(pixels), pixels[..., 3]
    coarse = pixels.reshape(count, 16, 2, 16, 2, 4).mean(axis=(2, 4)).reshape(count, -1)
    across, along = np.gradient(pixels[..., :3].mean(axis=-1) * alpha, axis=(2, 1))
    steepness, way = np.hypot(across, along), ((np.arctan2(along, across) / np.pi + 1) * 4).astype(np.int64) % 8
    fields = (steepness[..., None] * np.eye(8, dtype=np.float32)[way]).reshape(count, 4, 8, 4, 8, 8).sum(axis=(2, 4))
    shade = (pixels[..., :3] * 3.999).astype(np.int64) @ np.array([16, 4, 1])
    places = (np.arange(count)[:, None, None] * 64 + shade).ravel()
    colours = np.bincount(places, weights=alpha.ravel(), minlength=64 * count).reshape(count, 64) / 32
    parts = [(part - part.mean(axis=0)) / (part.std() + 1e-9) for part in (coarse, fields.reshape(count, -1), colours)]
    rows = PCA(_PICTURE_COLUMNS, random_state=0).fit_transform(np.concatenate(parts, axis=1))
    scaled: np.ndarray = rows / (rows.std(axis=0).mean() + 1e-9)
    return scaled
