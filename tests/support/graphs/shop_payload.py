"""A shop's tables whose edges have features and times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.support.graphs.several_types import TypedParts, shop, write_tables

from gnnserve_worker.compaction.folding import folded_relations
from gnnserve_worker.graph.store import Relation
from gnnserve_worker.inference.living import LivingRevision

BUYS = ("user", "buys", "item")
OPTIONS = {"features": ["amount", "discount"], "time": "at"}


def tables_of(folder: Path, parts: TypedParts) -> dict[str, Any]:
    """What a manifest says of tables whose edges of one relation have payload."""
    given: dict[str, Any] = write_tables(folder, parts)
    (tables,) = given.values()
    for table in tables["edges"]:
        if (table["sourceType"], table["relation"], table["targetType"]) == BUYS:
            table.update(OPTIONS)
    return given


def shop_with_payload() -> TypedParts:
    """One user buys an item a second time: of equal edges the last one listed counts."""
    parts, draw = shop(), np.random.default_rng(7)
    edges = parts.edges[BUYS]
    for name in ("src", "dst"):
        edges[name] = np.append(edges[name], edges[name][0])
    count = len(edges["src"])
    edges |= {
        "amount": draw.normal(size=count).astype(np.float32).astype(float),
        "discount": draw.integers(0, 9, count).astype(float),
        "at": draw.integers(0, 2**40, count),
    }
    return parts


def relations_of(living: LivingRevision) -> tuple[Relation, ...]:
    return folded_relations(living.graph, [ids.kept for ids in living.graph.ids_of])
