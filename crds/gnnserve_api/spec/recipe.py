"""Recipe of a revision: the digest that decides whether a spec needs a new revision.

Its text must never change for a spec that is stored in a cluster: another digest trains the model again. Hence the
names of fields are the Python ones of the first release, and both tables here are frozen history, not settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_RECIPE_FORMAT = 3
"""Part of every recipe; never changes. It was the repository's schema version when this was fixed: a later one must not
give a spec another recipe, which would train its model again."""

_PUBLISHED = {"direction": "Undirected", "sha256": {}}
_NODES = {"id": "id", "labels": [], "features": [], "exclude_features": [], "missing": "Refuse"}
_EDGES = {
    "source": "source", "target": "target", "direction": "Undirected", "duplicates": "Merge", "self_loops": "Keep",
    "dangling": "Refuse",
}  # fmt: skip


def _under(path: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{path}.{name}": value for name, value in defaults.items()}


HISTORICAL_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **_under("graph.source.ogb", _PUBLISHED),
        **_under("graph.source.pyg", _PUBLISHED),
        **_under("graph.source.parquet.nodes", _NODES),
        **_under("graph.source.parquet.edges", _EDGES),
        **_under("graph.source.csv", {"delimiter": ",", "decimal": "."}),
        **_under("graph.source.csv.nodes", _NODES),
        **_under("graph.source.csv.edges", _EDGES),
        "graph.source.npz.edge_columns": "Ignore",
        "graph.source.typed.npz.edge_columns": "Ignore",
        "graph.source.typed.hetero_data.edge_columns": "Ignore",
        **_under("graph.source.typed", {"without_features": [], "reverse": "Add"}),
        **_under("graph.source.typed.csv", {"delimiter": ",", "decimal": "."}),
        "graph.normalization": "Auto",
        "model": {},
        "model.architecture": "GraphSAGE",
        "model.hidden": 128,
        "model.fanouts": [25, 10],
        "model.relation_fanouts": [],
        "model.training": {},
        "model.training.epochs": 30,
        "model.training.batch_size": 1024,
        "model.training.batches": "Auto",
        "model.training.scope": "Inductive",
        "model.training.weight_decay": 0.0005,
        "model.training.dropout": 0.5,
        "model.training.seed": 0,
        "model.program.reads_degrees": False,
        "model.program.inputs": [],
        "model.program.other_scores": [],
        "model.program.scores.type": "",
        "model.program.embeddings.type": "",
        "model.before": [],
        "model.jumping_knowledge": "Last",
        "model.head": [],
        "model.head_reads_input": False,
        "model.head_by_type": False,
        "model.expected.scores": "Logits",
        "model.expected.tolerance_permille": 1.0,
        "variants": {},
        "variants.pruning": {},
        "variants.pruning.method": "Greedy",
        "variants.pruning.factors": [1, 2, 4, 8],
        "variants.pruning.choice": "All",
        "variants.pruning.wide_tables": "Auto",
        "variants.pruning.lasso": {},
        "variants.pruning.lasso.epochs": 200,
        "variants.pruning.lasso.steps_per_epoch": 5,
        "variants.pruning.lasso.initial_penalty_permille": 0,
        "variants.pruning.lasso.penalty_step_permille": 5,
        "variants.pruning.stability_seeds": 0,
        "variants.storage": ["float32"],
        "variants.projection": "Auto",
        "variants.fanouts": [],
        "variants.metric": "Auto",
        "variants.given": [],
        "variants.one_row": [],
        "variants.thresholds": "Fixed",
        "variants.stored": [],
        "variants.stored_follow_changes": False,
        "variants.cascades": [],
        "variants.search": "Disabled",
        "variants.channels": [],
        "variants.budget": {},
        "variants.budget.seconds": 1800,
        "variants.budget.variants": 8,
        "task": {},
        "task.links.decoder": "Dot",
        "task.links.dimensions": 64,
        "task.links.negatives": 1,
        "task.links.compared_with": "Drawn",
        "task.links.recall_at": 20,
        "task.links.split": {},
        "task.links.split.validation_percent": 10,
        "task.links.split.test_percent": 10,
        "task.links.split.seed": 0,
    }
)
"""The default that each field had in the release which introduced it. A field of this value is left out of the recipe,
also where a later release has another default: stored objects carry the value of their time. `{}`: a section, left out
once all of its fields are. Never edit a row; a new field adds its own. Fields without a row default to null."""


def digest_of_recipe(parts: Mapping[str, Any]) -> str:
    """`parts`: the canonical spec as JSON, every field present, under the Python names of its fields."""
    said = {**_without_defaults(parts, ""), "schemaVersion": _RECIPE_FORMAT}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _without_defaults(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    kept = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        remaining = _reduced(value, path)
        if remaining is None or (path in HISTORICAL_DEFAULTS and remaining == HISTORICAL_DEFAULTS[path]):
            continue
        kept[name] = remaining
    return kept


def _reduced(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return _without_defaults(value, f"{path}.")
    if isinstance(value, list):
        return [_reduced(entry, f"{path}[]") for entry in value]
    return value
