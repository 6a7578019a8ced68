"""The user's graph as files that gnnserve reads (`graph.source.npz`, `csv` where nodes have ids, or `typed.heteroData`
over several types), so that the folder can be served as it is."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from gnnserve_api.files.programs import InputRole, ProgramInput
from gnnserve_describe.calling import TENSORS
from gnnserve_describe.example import Example
from gnnserve_describe.layout import InputLayout

GRAPH, TYPED_GRAPH = "graph.npz", "graph.safetensors"
NODES, EDGES = "nodes.csv", "edges.csv"
MOST_BYTES = 4 << 30
"""Larger graphs are not written again."""
_MASKS = ("train_mask", "val_mask", "test_mask")
_SHARES = (0.6, 0.2)
_OTHER_IN_CSV = re.compile(r"-?\d+|.*[\r\n].*|\s.*|.*\s|", re.DOTALL)
"""Texts that a table in CSV gives back as something else, or in other lines."""


@dataclass(frozen=True, slots=True, eq=False)
class WrittenGraph:
    """Arrays of the user's graph, as programs are given them."""

    tensors: Mapping[ProgramInput, torch.Tensor]
    counts: Mapping[str, int]
    """Nodes by type."""
    target: str
    labelled: Mapping[str, np.ndarray]
    """Labels and masks of the nodes that are scored; empty: none are classified."""


def write_graph(
    example: Example, layout: InputLayout, folder: Path, seed: int, ids: np.ndarray | None = None
) -> dict[str, Any] | None:
    """Write the graph, and return `spec.graph.source`. `ids`: int64 or texts, of the nodes that are scored. None: it
    has no labels that are classes, is too large, or its files would lose the ids. Where nothing is classified, the
    labels of the file say nothing, which a graph of one type must have all the same."""
    graph, target, has_classes = example.graph, example.target, example.scored.has_classes
    is_plain = example.call.form == TENSORS
    labels = None if example.labels is None else _classes(example.labels)
    if not has_classes:
        labels = np.arange(graph.nodes(target)) % 2
    tensors = dict(zip(layout.inputs, layout.tensors_of(graph), strict=True))
    if labels is None or sum(tensor.nbytes for tensor in tensors.values()) > MOST_BYTES:
        return None
    labelled = {"y": labels, **_splits(example.masks, labels, seed)} if has_classes or is_plain else {}
    written = WrittenGraph(tensors, {kind: graph.nodes(kind) for kind in graph.types}, target, labelled)
    if ids is not None:
        is_kept = ids.dtype.kind != "U" or not any(_OTHER_IN_CSV.fullmatch(each) for each in ids.tolist())
        return _write_tables(written, ids.tolist(), folder) if is_plain and is_kept else None
    return _write_npz(written, folder) if is_plain else _write_hetero_data(written, folder)


def _write_tables(graph: WrittenGraph, ids: Sequence[int | str], folder: Path) -> dict[str, Any]:
    """A table of nodes and one of edges, of a graph of one type. Columns of edges are called by their places, as
    listed layers call them."""
    of = {each.role: tensor.numpy() for each, tensor in graph.tensors.items()}
    labels, features = graph.labelled["y"], of[InputRole.FEATURES]
    splits = np.select([graph.labelled[name] for name in _MASKS], ["train", "validation", "test"], "")
    classes = ["label"] if labels.ndim == 1 else [str(place) for place in range(labels.shape[1])]
    known = ([label if label >= 0 else ""] for label in labels.tolist()) if labels.ndim == 1 else labels.tolist()
    head = ["id", "split", *classes, *(f"f{place}" for place in range(features.shape[1]))]
    nodes = zip(ids, splits.tolist(), known, features.tolist(), strict=True)
    _write_rows(folder / NODES, head, ([name, split, *label, *row] for name, split, label, row in nodes))
    ends = ([ids[source], ids[target]] for source, target in of[InputRole.EDGES].T.tolist())
    columns = of.get(InputRole.EDGE_FEATURES, np.zeros((of[InputRole.EDGES].shape[1], 0)))
    columns = columns.reshape(len(columns), -1)
    names = [str(place) for place in range(columns.shape[1])]
    times = of.get(InputRole.EDGE_TIMES)
    at = [] if times is None else ["time"]
    given = columns.tolist() if times is None else np.column_stack([columns.astype(object), times]).tolist()
    rows = ([*pair, *row] for pair, row in zip(ends, given, strict=True))
    _write_rows(folder / EDGES, ["source", "target", *names, *at], rows)
    told = {"label": "label"} if labels.ndim == 1 else {"labels": classes}
    edges: dict[str, Any] = {"uri": EDGES, "direction": "Directed", "duplicates": "Keep"}
    edges |= {"features": names} if names else {}
    edges |= {"time": "time"} if at else {}
    return {"csv": {"nodes": {"uri": NODES, "id": "id", "split": "split", **told}, "edges": edges}}


def _write_rows(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(head)
        table.writerows(rows)


def _write_npz(graph: WrittenGraph, folder: Path) -> dict[str, Any]:
    """Neighbour lists in one file, of a graph of one type."""
    (edges,) = (tensor.numpy() for each, tensor in graph.tensors.items() if each.role is InputRole.EDGES)
    nodes = graph.counts[graph.target]
    order = np.argsort(edges[1], kind="stable")
    arrays = {
        "indptr": np.concatenate([[0], np.cumsum(np.bincount(edges[1], minlength=nodes))]),
        "indices": edges[0, order],
        "labels": graph.labelled["y"],
        **{name: graph.labelled[name] for name in _MASKS},
    }
    roles = {
        InputRole.FEATURES: ("features", False),
        InputRole.EDGE_FEATURES: ("edge_attr", True),
        InputRole.EDGE_TIMES: ("edge_time", True),
    }
    for each, tensor in graph.tensors.items():
        if each.role in roles:
            name, is_of_edges = roles[each.role]
            arrays[name] = tensor.numpy()[order] if is_of_edges else tensor.numpy()
    np.savez(folder / GRAPH, **arrays)
    source: dict[str, Any] = {"uri": GRAPH, "direction": "Undirected" if _goes_both_ways(edges, nodes) else "Directed"}
    return {"npz": source | _columns_read(graph)}


_NAMES = {
    InputRole.FEATURES: "x",
    InputRole.EDGES: "edge_index",
    InputRole.EDGE_FEATURES: "edge_attr",
    InputRole.EDGE_TIMES: "edge_time",
}
"""What torch_geometric's HeteroData calls the tensors of inputs."""


def _write_hetero_data(graph: WrittenGraph, folder: Path) -> dict[str, Any]:
    """Tensors by type and relation, and how many nodes there are of each type."""
    tensors = {f"{_place_of(each)}/{_NAMES[each.role]}": tensor.contiguous() for each, tensor in graph.tensors.items()}
    tensors |= {f"{graph.target}/{name}": torch.from_numpy(array) for name, array in graph.labelled.items()}
    save_file(tensors, folder / TYPED_GRAPH)
    (folder / TYPED_GRAPH).with_suffix(".json").write_text(json.dumps({"nodes": dict(graph.counts)}))
    # The relations are those that the module was called with, added ones among them.
    target = {"target": graph.target} if graph.labelled else {}
    source = {"uri": TYPED_GRAPH} | _columns_read(graph)
    return {"typed": {"heteroData": source, **target, "reverse": "Disabled"}}


def _place_of(each: ProgramInput) -> str:
    key = each.relation
    return each.type if each.role is InputRole.FEATURES else f"{key.source}/{key.name}/{key.target}"


def _columns_read(graph: WrittenGraph) -> dict[str, str]:
    is_read = any(each.role in (InputRole.EDGE_FEATURES, InputRole.EDGE_TIMES) for each in graph.tensors)
    return {"edgeColumns": "Read"} if is_read else {}


def class_count(labels: torch.Tensor) -> int | None:
    """Classes that a server finds in labels; None: they are no classes."""
    found = _classes(labels)
    if found is None:
        return None
    return found.shape[1] if found.ndim == 2 else len(np.unique(found[found >= 0]))


def _classes(labels: torch.Tensor) -> np.ndarray | None:
    """Labels as the file has them: integers, or a matrix of 0 and 1; None: they are others."""
    found: np.ndarray = labels.squeeze(-1).numpy() if labels.dim() == 2 and labels.shape[1] == 1 else labels.numpy()
    if found.ndim == 1:
        return found.astype(np.int64) if found.dtype.kind in "biu" else None
    return found.astype(np.int64) if np.isin(found, (0, 1)).all() else None


def _splits(masks: Mapping[str, torch.Tensor], labels: np.ndarray, seed: int) -> Mapping[str, np.ndarray]:
    """The user's, where they part the labelled nodes; else 60, 20 and 20 of 100, drawn."""
    given = [masks.get(name) for name in _MASKS]
    if given[0] is not None and given[1] is not None:
        found = [np.zeros(len(labels), bool) if mask is None else mask.numpy().astype(bool) for mask in given]
        if found[0].any() and found[1].any() and np.sum(found, axis=0).max() <= 1:
            return dict(zip(_MASKS, found, strict=True))
    labelled = np.flatnonzero(labels >= 0) if labels.ndim == 1 else np.arange(len(labels))
    drawn = np.random.default_rng(seed).permutation(labelled)
    ends = [int(len(drawn) * _SHARES[0]), int(len(drawn) * sum(_SHARES))]
    made = {}
    for name, part in zip(_MASKS, np.split(drawn, ends), strict=True):
        made[name] = np.zeros(len(labels), bool)
        made[name][part] = True
    return made


def _goes_both_ways(edges: np.ndarray, nodes: int) -> bool:
    """Whether each edge is listed as often the one way as the other."""
    there, back = edges[0] * nodes + edges[1], edges[1] * nodes + edges[0]
    return np.array_equal(np.sort(there), np.sort(back))
