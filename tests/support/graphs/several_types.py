"""Small typed graphs as users write them: one graph in every layout that a source may have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData

Arrays = dict[str, np.ndarray]
Key = tuple[str, str, str]


@dataclass
class TypedParts:
    """What a source consists of, to be changed by tests before it is written."""

    nodes: dict[str, Arrays] = field(default_factory=dict)
    """Arrays of each type, as in `nodes_TYPE.npz`."""
    edges: dict[Key, Arrays] = field(default_factory=dict)
    """`src` and `dst` of each relation, and what else there is of its edges."""


def shop(seed: int = 0, users: int = 30, items: int = 20, tags: int = 5) -> TypedParts:
    """Users buy items, which have tags, and know each other. Users have features and classes, tags have no features."""
    draw = np.random.default_rng(seed)
    labels = np.arange(users) % 2
    split = np.arange(users) % 3
    parts = TypedParts()
    parts.nodes["user"] = {
        "num_nodes": np.array(users),
        "features": (draw.normal(size=(users, 4)) + labels[:, None]).astype(np.float32),
        "labels": labels.astype(np.int64),
        "train_mask": split == 0,
        "val_mask": split == 1,
        "test_mask": split == 2,
    }
    parts.nodes["item"] = {
        "num_nodes": np.array(items),
        "features": draw.normal(size=(items, 3)).astype(np.float32),
    }
    parts.nodes["tag"] = {"num_nodes": np.array(tags)}
    for key, count in {
        ("user", "buys", "item"): 4 * users,
        ("item", "has", "tag"): 2 * items,
        ("user", "knows", "user"): 2 * users,
    }.items():
        pairs = _distinct_pairs(
            draw, int(parts.nodes[key[0]]["num_nodes"]), int(parts.nodes[key[2]]["num_nodes"]), count
        )
        parts.edges[key] = {"src": pairs[:, 0], "dst": pairs[:, 1]}
    return parts


def divided_shop() -> TypedParts:
    """A larger shop whose two classes of users have nothing in common: they know and buy from their own side alone, and
    their features are sixteen deviations apart. A network that learns at all is right about all of them, from however
    few neighbours and however coarse a table."""
    parts = shop(users=240, items=60)
    users = parts.nodes["user"]
    side = np.where(users["labels"] == 1, 2, -2)
    noise = np.random.default_rng(1).normal(scale=0.25, size=users["features"].shape)
    users["features"] = (noise + side[:, None]).astype(np.float32)
    for relation in (("user", "buys", "item"), ("user", "knows", "user")):
        ends = parts.edges[relation]
        ends["dst"] = ends["dst"] - ends["dst"] % 2 + ends["src"] % 2
    return parts


def _distinct_pairs(draw: np.random.Generator, sources: int, targets: int, count: int) -> np.ndarray:
    chosen = draw.permutation(sources * targets)[:count]
    pairs: np.ndarray = np.stack([chosen // targets, chosen % targets], axis=1).astype(np.int32)
    return pairs


def write_folder(folder: Path, parts: TypedParts) -> dict[str, Any]:
    """Write `.npz` files. Returns what the manifest says of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arrays in parts.nodes.items():
        np.savez(folder / f"nodes_{name}.npz", **arrays)
    for key, arrays in parts.edges.items():
        np.savez(folder / f"edges_{'__'.join(key)}.npz", **arrays)
    return {"npz": {"uri": folder.as_uri()}}


def write_hetero(folder: Path, parts: TypedParts) -> dict[str, Any]:
    """Write what the exporter of docs/data.md writes."""
    folder.mkdir(parents=True, exist_ok=True)
    called = {"features": "x", "labels": "y"}
    tensors = {
        f"{name}/{called.get(key, key)}": np.ascontiguousarray(array)
        for name, arrays in parts.nodes.items()
        for key, array in arrays.items()
        if key != "num_nodes"
    }
    for key, arrays in parts.edges.items():
        tensors[f"{'/'.join(key)}/edge_index"] = np.stack([arrays["src"], arrays["dst"]]).astype(np.int64)
        tensors |= {f"{'/'.join(key)}/{name}": array for name, array in _beside_ends(arrays).items()}
    path = folder / "graph.safetensors"
    safetensors.numpy.save_file(tensors, path)
    counts = {name: int(arrays["num_nodes"]) for name, arrays in parts.nodes.items()}
    path.with_suffix(".json").write_text(json.dumps({"nodes": counts}))
    return {"heteroData": {"uri": path.as_uri()}}


def write_tables(folder: Path, parts: TypedParts, suffix: str = ".csv", ids: Mapping[str, str] | None = None) -> Any:
    """Write a table for each type and relation. `ids`: what the ids of a type begin with, as texts."""
    folder.mkdir(parents=True, exist_ok=True)
    begins = ids or {}

    def names(kind: str, positions: np.ndarray) -> list[Any]:
        found: list[Any] = positions.tolist()
        return [f"{begins[kind]}{one}" for one in found] if kind in begins else found

    # Imported here: a machine with a GPU has no pyarrow, and writes no tables.
    from tests.support.graphs.tables import write_table

    nodes, edges = [], []
    for kind, arrays in parts.nodes.items():
        columns: dict[str, Any] = {"id": names(kind, np.arange(int(arrays["num_nodes"])))}
        if "features" in arrays:
            columns |= {f"f{place}": column.astype(float).tolist() for place, column in enumerate(arrays["features"].T)}
        table: dict[str, Any] = {"type": kind}
        if "labels" in arrays:
            columns["kind"] = [f"class{label}" for label in arrays["labels"]]
            masks = {
                name: arrays[mask]
                for name, mask in (("train", "train_mask"), ("val", "val_mask"), ("test", "test_mask"))
            }
            columns["part"] = [
                next((name for name, mask in masks.items() if mask[row]), "none") for row in range(len(columns["id"]))
            ]
            table |= {"label": "kind", "split": "part"}
        nodes.append({**table, "uri": write_table(folder / f"{kind}{suffix}", columns).as_uri()})
    for (source, relation, target), arrays in parts.edges.items():
        columns = {"source": names(source, arrays["src"]), "target": names(target, arrays["dst"])}
        columns |= {name: array.tolist() for name, array in _beside_ends(arrays).items()}
        path = write_table(folder / f"{source}-{relation}-{target}{suffix}", columns)
        edges.append({"sourceType": source, "relation": relation, "targetType": target, "uri": path.as_uri()})
    return {"csv" if suffix == ".csv" else "parquet": {"nodes": nodes, "edges": edges}}


def _beside_ends(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in {"src", "dst", "split"}}


def load_types(source: HeterogeneousSource) -> GraphData:
    return load_source(GraphSource(typed=source), Path("unused"))


def typed_source(given: Mapping[str, Any], **options: Any) -> HeterogeneousSource:
    return HeterogeneousSource.model_validate({**given, **options})
