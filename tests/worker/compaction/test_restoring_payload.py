"""An older model is gone back to, by spec.revision, over a graph whose edges have features and times and have changed
since, of one type and of several."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.changes.compacted_relations import UID, Service
from tests.support.graphs.shop_payload import OPTIONS, relations_of, shop_with_payload, tables_of
from tests.support.graphs.tables import write_table

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.compaction.restoring import restore
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.store import Relation
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.serving.http.changes.reading import read_changes

ROOM_BYTES = 1 << 22
ROW = {"edgeFeatures": [[1.5, 2.0]], "edgeTimes": [7]}


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def service_with(source: dict[str, Any], hidden: int) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "shop"},
            "spec": {
                "graph": {"source": source},
                "model": {"hidden": hidden, "fanouts": [-1, -1], "training": {"epochs": 1}},
                "variants": {"pruning": {"factors": [1]}},
            },
        }
    )  # fmt: skip


def of_one_type(folder: Path) -> dict[str, Any]:
    """Users who pay each other, some of them twice."""
    draw, count = np.random.default_rng(3), 40
    users = range(30)
    nodes = {"id": [*users], "kind": [f"k{one % 2}" for one in users], "age": [float(one) for one in users]}
    edges = {
        "source": draw.integers(0, 30, count).tolist(), "target": draw.integers(0, 30, count).tolist(),
        "amount": draw.normal(size=count).tolist(), "discount": [0.5] * count,
        "at": draw.integers(0, 99, count).tolist(),
    }  # fmt: skip
    folder.mkdir()
    tables = [write_table(folder / f"{name}.csv", found) for name, found in (("nodes", nodes), ("edges", edges))]
    listed = {"uri": tables[1].as_uri(), "duplicates": "Keep", "direction": "Directed", **OPTIONS}
    return {"csv": {"nodes": {"uri": tables[0].as_uri(), "label": "kind"}, "edges": listed}}


def of_several_types(folder: Path) -> dict[str, Any]:
    return {"typed": tables_of(folder, shop_with_payload())}


SCENES = {
    "one type": (
        of_one_type,
        [{"nodes": [{"id": 100, "features": [3.0]}], "edges": [[100, 4]], **ROW},
         {"edges": [[4, 5]], "edgeFeatures": [[9.0, 8.0]], "edgeTimes": [-3], "removedNodes": [7]}],
        {"edges": [[100, 5]], **ROW},
    ),
    "several types": (
        of_several_types,
        [{"nodes": [{"id": "user/100", "features": [1, 0, 2, 0]}], "edges": [["user/100", "buys", "item/4"]], **ROW},
         {"edges": [["user/4", "buys", "item/5"]], "edgeFeatures": [[9.0, 8.0]], "edgeTimes": [-3],
          "removedNodes": ["user/7"]}],
        {"edges": [["user/100", "buys", "item/5"]], **ROW},
    ),
}  # fmt: skip


def batch_of(body: dict[str, Any], living: LivingRevision) -> ChangeBatch:
    served = served_revision(living.loaded, living)
    return read_changes(json.dumps(body).encode(), b"application/json", served)[1]


def told(relations: tuple[Relation, ...]) -> list[list[Any]]:
    """Entries of each relation, with the payload of each."""
    found = []
    for one in relations:
        ends = [one.lists.targets(), one.lists.indices]
        if one.payload is not None:
            rows = one.lists.payload_rows
            ends += [*one.payload.features[rows].T, one.payload.times[rows]]
        found.append([*zip(*(column.tolist() for column in ends), strict=True)])
    return found


@pytest.mark.parametrize(("source", "changes", "later"), SCENES.values(), ids=SCENES)
def test_an_older_model_answers_over_the_newest_version_of_edges_with_payload(
    tmp_path: Path, source: Callable[[Path], dict[str, Any]], changes: list[dict[str, Any]], later: dict[str, Any]
) -> None:
    given = source(tmp_path / "tables")
    first = Service(tmp_path, service_with(given, 8))
    other = Service(tmp_path, service_with(given, 4))
    living, older = other.opened(), first.opened()
    batches = [batch_of(body, living) for body in changes]
    other.write(living, batches)
    older.apply(1, batches)
    other.compact()

    spec = first.service.spec.model_copy(update={"revision": first.manifest.revision})
    named = first.service.model_copy(update={"spec": spec})
    restored = restore(named, first.manifest.revision, first.repository, UID)
    assert (restored.graph, restored.model) == (other.manifest.graph, first.manifest.model)
    loaded = load_revision(first.repository, restored.revision, ROOM_BYTES)
    again = LivingRevision(loaded, ROOM_BYTES)
    assert told(relations_of(again)) == told(relations_of(older))
    assert any(one.payload is not None for one in relations_of(again))

    # It goes on to change as a model does that was there all along.
    again.apply(again.offset + 1, [batch_of(later, again)])
    older.apply(older.offset + 1, [batch_of(later, older)])
    assert told(relations_of(again)) == told(relations_of(older))
    seeds = np.arange(len(loaded.labels.values))
    kept = older.graph.ids_of[0].kept[: len(seeds)]
    for name in loaded.variants:
        np.testing.assert_allclose(
            served_revision(loaded, again).compute.infer(name, seeds.copy(), 0).scores,
            served_revision(older.loaded, older).compute.infer(name, np.asarray(kept, np.int64), 0).scores,
            atol=1e-6, rtol=1e-6, err_msg=name,
        )  # fmt: skip
