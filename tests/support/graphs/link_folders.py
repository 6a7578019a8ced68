"""Folders and models of graphs whose links are scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.support.graphs.several_types import TypedParts

from gnnserve_api.spec.service import GNNService


def typed_folder(parts: TypedParts, folder: Path) -> str:
    folder.mkdir()
    for name, arrays in parts.nodes.items():
        np.savez(folder / f"nodes_{name}.npz", **{key: arrays[key] for key in arrays if "mask" not in key})
    for (source, relation, target), arrays in parts.edges.items():
        np.savez(folder / f"edges_{source}__{relation}__{target}.npz", **arrays)
    return folder.as_uri()


def light_gcn(uri: str, model: dict[str, Any] | None = None, reverse: str = "Add", **links: Any) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "shop"},
            "spec": {
                "graph": {"source": {"typed": {"npz": {"uri": uri}, "reverse": reverse}}},
                "task": {"links": {"relation": "buys", "dimensions": 8, **links}},
                "model": model
                or {"architecture": "LightGCN", "fanouts": [0], "training": {"epochs": 3, "batchSize": 32}},
                "variants": {"pruning": {"factors": [1]}},
            },
        }
    )
