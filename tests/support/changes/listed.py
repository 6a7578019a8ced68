"""Networks of listed layers over a plain graph and over several types, a service of them, and what torch says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import UNSET
from safetensors.numpy import load_file
from tests.support.changes.living import PlainGraph
from tests.support.graphs.graphs import service_of, write_npz
from tests.support.programs.program_types_generated import GrownGraph

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.repository.repository import Repository

CLASSES = 3
SAGE = {"conv": "GraphSAGE", "width": 8, "activation": "Relu"}
ONE_TYPE: dict[str, dict[str, Any]] = {
    "attention and degrees": {
        "layers": [
            {"conv": "GATv2", "width": 8, "heads": 2, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
            {"conv": "GCN", "width": 8, "activation": "Gelu"},
        ],
        "jumpingKnowledge": "Cat", "head": [{}], "fanouts": [-1, -1],
    },
    "what is read beside": {
        "before": [{"products": [{"width": 8, "activation": "Relu"}]}],
        "layers": [
            {**SAGE, "aggregations": ["Max", "Std"]},
            {"conv": "GCN", "width": 8, "residual": "Added", "residualOfInput": True},
            {"conv": "GIN", "mlp": [{"width": 8, "activation": "Relu"}, {"width": 8}]},
        ],
        "head": [{}], "headReadsInput": True, "fanouts": [-1, -1, -1],
    },
    "several hops": {
        "layers": [
            {"conv": "TAG", "width": 8, "hops": 2, "activation": "Tanh"}, {"conv": "SGC", "width": 8, "hops": 2},
        ],
        "head": [{}], "fanouts": [-1, -1, -1, -1],
    },
    "propagation": {
        "before": [{"products": [{"width": 8, "activation": "Relu"}]}],
        "layers": [
            {"conv": "GCNII", "alpha": 0.2, "activation": "Relu"}, {"conv": "APPNP", "hops": 2, "alpha": 0.2},
        ],
        "head": [{}], "fanouts": [-1, -1, -1],
    },
    "scaled by degrees": {
        "layers": [
            {"conv": "PNA", "width": 8, "aggregations": ["Mean", "Max"], "scalers": ["Identity", "Amplification"]},
            {"conv": "AGNN"}, {"conv": "FiLM", "width": 8},
        ],
        "head": [{}], "fanouts": [-1, -1, -1],
    },
}  # fmt: skip
BOTH_WAYS = {"layers": [{"conv": "Chebyshev", "width": 8, "hops": 2}, SAGE], "head": [{}], "fanouts": [-1, -1, -1]}
"""Degrees are those of the lists, a hop further than the layer reads."""
SEVERAL_TYPES: dict[str, Any] = {
    "before": [{"type": "item", "products": [{"width": 6, "activation": "Relu"}]}],
    "layers": [
        {
            "relations": [
                {"relation": {"source": "user", "name": "knows", "target": "user"}, "conv": "GraphSAGE", "width": 8},
                {
                    "relation": {"source": "item", "name": "bought_by", "target": "user"}, "conv": "GATv2", "width": 8,
                    "selfLoops": False, "edgeColumns": ["0", "1"],
                },
                {"relation": {"source": "user", "name": "buys", "target": "item"}, "conv": "GraphSAGE", "width": 8},
            ],
            "norm": "Layer", "activation": "Elu",
        },
        {"conv": "GraphSAGE", "width": 8, "aggregations": ["Max"], "residual": "Projected"},
    ],
    "jumpingKnowledge": "Cat", "head": [{}], "headReadsInput": True, "fanouts": [-1, -1],
}  # fmt: skip


def service_over(source: dict[str, Any], model: dict[str, Any], variants: dict[str, Any], **parts: Any) -> GNNService:
    """`source`: of the graph; `parts`: of the spec beside."""
    made = service_of(
        "file:///none.npz", model={"training": {"epochs": 1}, **model}, variants=variants,
        **{"normalization": "Disabled", **parts},
    )  # fmt: skip
    document = made.model_dump(by_alias=True, exclude_none=True)
    document["spec"]["graph"]["source"] = source
    return GNNService.model_validate(document)


def source_of(folder: Path, plain: PlainGraph) -> dict[str, Any]:
    """A file of the graph."""
    graph, features, rules = plain.built()
    labels, parts = np.arange(graph.nodes) % CLASSES, np.arange(graph.nodes) // 2 % 3
    masks = {f"{name}_mask": parts == place for place, name in enumerate(("train", "val", "test"))}
    arrays = {"indptr": graph.indptr, "indices": graph.indices, "features": features, "labels": labels, **masks}
    path = write_npz(folder / "graph.npz", arrays)
    return {"npz": {"uri": path.as_uri(), "direction": str(rules.direction)}}


def tensors_of(plain: PlainGraph) -> GraphTensors:
    graph, features, _ = plain.built()
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    edges = np.stack([graph.indices.astype(np.int64), targets])
    return GraphTensors([torch.from_numpy(features)], [torch.from_numpy(edges)], [{}])


def typed_tensors_of(grown: GrownGraph, schema: GraphSchema) -> GraphTensors:
    arrays = {name: torch.from_numpy(one) for name, one in grown.arrays().items()}
    first, second = arrays["attr"].T
    columns = {"bought_by": {"0": first, "1": second}}
    return GraphTensors(
        [arrays[f"x_{kind.name}"] for kind in schema.types],
        [arrays[one.name] for one in schema.relations],
        [columns.get(one.name, {}) for one in schema.relations],
    )


def module_scores(
    manifest: RevisionManifest, repository: Repository, schema: GraphSchema, graph: GraphTensors, variant: str = "x1"
) -> np.ndarray:
    """Scores of all nodes of the first type by torch_geometric's modules with the variant's weights. `graph`: with the
    columns that the variant reads."""
    whole = next(one for one in manifest.variants if one.name == variant)
    program = whole.network.program
    assert program is not UNSET and program.layers is not UNSET
    module = LayersModule(program.layers, schema, program.layers.columns or columns_of(schema)).eval()
    (path,) = repository.folder.glob(f"**/{manifest.revision}/{whole.weights}")
    load_canonical(module, load_file(path))
    with torch.no_grad():
        found: np.ndarray = module(graph).numpy()
    return found
