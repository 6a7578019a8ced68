"""Overlays over several types: drawn, described, read, and put into the graph itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import AttentionModel, HeteroModel, RelationalModel, with_overlay
from tests.support.models.networks_of_types import generated, saved, service_of
from tests.support.serving.questions import question_of

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.requests import Question

Given = tuple[GraphData, LoadedRevision, Any]


def made(folder: Path, architecture: str, variants: dict[str, Any] | None = None, layers: int = 2) -> Given:
    data, service, model = described(folder, architecture, variants, layers)
    return data, generated(folder, service), model


def described(
    folder: Path, architecture: str, variants: dict[str, Any] | None = None, layers: int = 2
) -> tuple[GraphData, GNNService, Any]:
    """The graph, a service over it with given weights, and torch_geometric's model, which has them."""
    source = write_folder(folder / "graph", shop())
    data = load_types(typed_source(source))
    model = model_of(architecture, data, layers)
    spec = {**saved(model, folder / "model.safetensors"), **spec_of(architecture), "fanouts": [-1] * layers}
    return data, service_of(source, spec, variants), model


def model_of(architecture: str, data: GraphData, layers: int = 2) -> Any:
    """torch_geometric's, with weights drawn by a fixed seed."""
    torch.manual_seed(3)
    models = {"GraphSAGE": HeteroModel, "GAT": AttentionModel, "RGCN": partial(RelationalModel, bases=2)}
    model: Any = models[architecture](data, layers=layers)
    with torch.no_grad():
        model(data)
    return model


def spec_of(architecture: str) -> dict[str, Any]:
    """What a manifest says of it."""
    own: dict[str, Any] = {"RGCN": {"bases": 2}, "GAT": {"heads": 2, "outputHeads": 3}}.get(architecture, {})
    return {"architecture": architecture, **own}


def drawn_overlay(data: GraphData, draw: np.random.Generator) -> dict[str, Any]:
    """A request's body, with new nodes of any types, edges by any relations and other features, in random forms."""
    counts = {kind.name: kind.nodes for kind in data.types}
    new, nodes = dict.fromkeys(counts, 0), []
    for _ in range(draw.integers(0, 5)):
        kind = data.types[draw.integers(len(data.types))]
        name = kind.name
        node: dict[str, Any] = {"id": f"{name}/{counts[name] + new[name]}"}
        if kind.features is not None:
            node["features"] = draw.normal(size=kind.features.shape[1]).tolist()
        new[name] += 1
        nodes.append(node)
    own = [one for one in data.relations if one.reverse_of is None]
    edges = []
    for _ in range(draw.integers(0, 9)):
        one = own[draw.integers(len(own))]
        ends = [int(draw.integers(counts[name] + new[name])) for name in (one.source, one.target)]
        edges.append([f"{one.source}/{ends[0]}", one.name, {"type": one.target, "id": ends[1]}])
    overrides = [
        {"id": f"{kind.name}/{node}", "features": draw.normal(size=kind.features.shape[1]).tolist()}
        for kind in data.types
        if kind.features is not None
        for node in draw.choice(kind.nodes, draw.integers(0, 3), replace=False).tolist()
    ]
    asked = draw.integers(0, counts[data.target.name] + new[data.target.name], draw.integers(1, 6)).tolist()
    return {
        "nodes": [f"{data.target.name}/{node}" for node in asked],
        "overlay": {"nodes": nodes, "edges": edges, "overrides": overrides},
    }


def changed_by(data: GraphData, model: Any, overlay: dict[str, Any]) -> tuple[GraphData, dict[str, np.ndarray]]:
    """The graph that has all that a request brings, and features or embeddings of all nodes of each type, float64."""
    features: dict[str, np.ndarray] = {}
    edges: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    embeddings = {name: module.weight.detach().numpy() for name, module in model.embeddings.items()}
    for kind in data.types:
        rows = np.array(embeddings[kind.name] if kind.features is None else kind.features)
        begins = f"{kind.name}/"
        default = rows.mean(axis=0) if kind.features is None else None
        added = [one.get("features", default) for one in overlay["nodes"] if one["id"].startswith(begins)]
        rows = np.concatenate([rows, np.array(added, np.float32).reshape(len(added), rows.shape[1])])
        for one in overlay["overrides"]:
            if one["id"].startswith(begins):
                rows[int(one["id"].removeprefix(begins))] = one["features"]
        features[kind.name] = rows.astype(np.float64)
    for source, name, target in overlay["edges"]:
        kind, _, place = source.partition("/")
        edges.setdefault((kind, name, target["type"]), []).append((int(place), target["id"]))
    return with_overlay(data, features, {key: np.array(pairs) for key, pairs in edges.items()}), features


@contextmanager
def embeddings_of(model: Any, features: dict[str, np.ndarray]) -> Iterator[None]:
    """The model with embeddings of more nodes."""
    before = dict(model.embeddings.items())
    for name in before:
        rows = torch.from_numpy(features[name])
        model.embeddings[name] = torch.nn.Embedding.from_pretrained(rows)
    yield
    for name, module in before.items():
        model.embeddings[name] = module


def read(served: ServedRevision, body: dict[str, Any]) -> Question:
    return question_of(JsonCodec(), json.dumps(body).encode(), served, max_nodes=1_000)
