"""One-row variants over hops where the graph changes: rows are those that generation makes, of any kind of graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.changes.living import ROOM_BYTES, batch_of
from tests.support.changes.living_types import batch_of as typed_batch_of
from tests.support.changes.living_types import served_by
from tests.support.graphs.graphs import npz_arrays, service_of, write_npz
from tests.support.graphs.several_types import shop, typed_source, write_folder
from tests.support.programs.program_links import GRAPH

from gnnserve_api.families import point_of
from gnnserve_api.files.repository import FOLLOWED_ROWS_SCHEMA_VERSION
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.propagated_rows import PropagatedRowMaker
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

CLOSE = 1e-5
ONE_ROWS: dict[str, Any] = {
    "oneRow": [{"hops": 0}, {"hops": 1}, {"hops": 2}], "storedFollowChanges": True, "storage": ["float32", "int8"],
}  # fmt: skip
TRAINING = {"training": {"epochs": 1}, "hidden": 8}
OVER_TYPES: dict[str, Any] = {
    "nodes": [{"id": "user/900", "features": [1, 2, 3, 4]}, {"id": "tag/77"}],
    "overrides": [{"id": "item/3", "features": [1, 2, 3]}],
    "edges": [["user/900", "buys", "item/3"], ["item/3", "has", "tag/77"], ["user/900", "knows", "user/4"]],
    "removedNodes": ["tag/2", "item/7"],
}
LINKS = {"task": {"links": {"dimensions": 4, "relation": "buys"}}}


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0.02")


def one_type(folder: Path, normalization: str) -> GNNService:
    uri = write_npz(folder / "graph.npz", npz_arrays(GRAPH)).as_uri()
    model = {"architecture": "GraphSAGE", "fanouts": [3, 2], **TRAINING}
    return service_of(uri, normalization=normalization, model=model, variants=ONE_ROWS)


def several_types(folder: Path, **parts: Any) -> GNNService:
    source = typed_source(write_folder(folder / "shop", shop()))
    model = {"architecture": "GraphSAGE", "fanouts": [3, 2], **TRAINING}
    spec = {"graph": {"source": {"typed": source}}, "model": model, "variants": ONE_ROWS, **parts}
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "tiny"}, "spec": spec}
    return GNNService.model_validate(body)


SERVICES: dict[str, Callable[[Path], GNNService]] = {
    "Standardize": lambda folder: one_type(folder, "Standardize"),
    "RowNormalize": lambda folder: one_type(folder, "RowNormalize"),
    "classes over types": several_types,
    "links over types": lambda folder: several_types(folder, **LINKS),
}


def living_of(folder: Path, service: GNNService) -> LivingRevision:
    repository = Repository(folder / "repository", "default", "tiny")
    published = generate(service, repository, silent)
    following = [one.name for one in published.variants if point_of(one).capabilities.changes]
    assert {"mlp0", "mlp1", "mlp2", "mlp2-int8"} <= {*following}
    assert published.schema_version == FOLLOWED_ROWS_SCHEMA_VERSION
    loaded = load_revision(repository, published.revision, ROOM_BYTES)
    return LivingRevision(loaded, ROOM_BYTES)


def makers_of(living: LivingRevision) -> list[PropagatedRowMaker]:
    assert living.loaded.changes is not None
    (layer,) = (one for one in living.loaded.changes.layers if any(map(_is_propagated, one.makers)))
    assert layer.hops == 2
    return [maker for maker in layer.makers if isinstance(maker, PropagatedRowMaker)]


def _is_propagated(maker: object) -> bool:
    return isinstance(maker, PropagatedRowMaker)


def assert_rows_are_made_of_the_graph(living: LivingRevision) -> None:
    for maker in makers_of(living):
        nodes = living.graph.kept
        made = maker.make(nodes, None)
        ((values, scales),) = made.rows
        stored = maker.table.rows
        if stored.format.has_scales:
            np.testing.assert_allclose(stored.scales[made.nodes], scales, rtol=1e-4, atol=1e-6)
        else:
            np.testing.assert_allclose(stored.values[made.nodes, : values.shape[1]], values, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("kind", SERVICES)
def test_rows_over_hops_are_those_that_generation_makes_before_and_after_changes(kind: str, tmp_path: Path) -> None:
    living = living_of(tmp_path, SERVICES[kind](tmp_path))
    assert_rows_are_made_of_the_graph(living)
    before = {id(maker): maker.table.rows.values.copy() for maker in makers_of(living)}
    if "types" in kind:
        batches = [typed_batch_of(OVER_TYPES, served_by(living))]
    else:
        draw, width = np.random.default_rng(0), GRAPH.features.shape[1]
        rows = draw.normal(size=(3, width)).astype(np.float32)
        batches = [
            batch_of(rows, new=[900, 901], overrides=[4], edges=[(900, 901), (901, 3), (3, 900), (7, 9), (5, 5)]),
            batch_of(rows[:0], removed_edges=[(7, 9)], removed=[11]),
        ]
    said = living.apply(living.offset + 1, batches)
    assert all(isinstance(one, BatchEffect) for one in said), said
    assert all((maker.table.rows.values != before[id(maker)]).any() for maker in makers_of(living))
    assert_rows_are_made_of_the_graph(living)
    if "types" not in kind:
        assert_rows_are_those_of_plain_arithmetic(living)


def assert_rows_are_those_of_plain_arithmetic(living: LivingRevision) -> None:
    """Over a dense matrix of the graph as it is, of nodes of one type."""
    served, kept = served_by(living), living.graph.kept
    adjacency = np.eye(int(kept.max()) + 1)
    for node in kept.tolist():
        assert served.graph.neighbours_of is not None
        adjacency[node, served.graph.neighbours_of(node)] = 1
    roots = 1 / np.sqrt(adjacency.sum(axis=1))
    over_hop = roots[:, np.newaxis] * adjacency * roots
    for maker in makers_of(living):
        if maker.table.rows.format.has_scales:
            continue
        (of_type,) = maker.rows
        rows = maker.source.rows.values[: len(adjacency), : maker.widths[0]].astype(np.float64)
        blocks = [rows]
        for scaling in of_type.scalings[1:]:
            rows = over_hop @ rows
            block = rows
            if scaling.mean is not None and scaling.deviation is not None:
                block = (rows - scaling.mean) / scaling.deviation
            elif scaling.order:
                block = rows / np.maximum(1e-30, np.abs(rows).sum(axis=1, keepdims=True))
            blocks.append(block)
        expected = np.concatenate(blocks, axis=1) @ of_type.product.dense
        found = maker.table.rows.values[kept, : maker.table.columns]
        np.testing.assert_allclose(found, expected[kept], rtol=0, atol=CLOSE)
