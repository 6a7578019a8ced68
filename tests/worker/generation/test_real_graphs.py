"""The graphs of `../shared/datasets`: every one imports, and the kinds they stand for train to what is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.lacks import needs_graphs
from tests.support.missing_data import DATASETS

from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.repository.repository import Repository

pytestmark = needs_graphs

SHAPES = {
    # nodes, edges, features, classes, multi-label, and train/validation/test nodes with a label
    "cora": (2708, 10556, 1433, 7, False, (140, 500, 1000)),
    "citeseer": (3327, 9228, 3703, 6, False, (120, 500, 1000)),
    "amazon_photo": (7650, 238163, 745, 8, False, (4590, 1530, 1530)),
    "eukloc": (7766, 23371, 32, 22, True, (4659, 1553, 1554)),
    "tolokers": (11758, 1038000, 10, 2, False, (5879, 2939, 2940)),
    "amazon_computers": (13752, 491722, 767, 10, False, (8251, 2750, 2751)),
    "coauthor_cs": (18333, 163788, 6805, 15, False, (10999, 3667, 3667)),
    "facebook_pages": (22470, 341825, 4714, 4, False, (13482, 4494, 4494)),
    "yelpchi": (45954, 553582, 16, 2, False, (27572, 9191, 9191)),
    "ogbn_arxiv_topo": (169343, 2315598, 128, 40, False, (90941, 29799, 48603)),
}


def source_of(name: str) -> GraphSource:
    return GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))


@pytest.mark.campaign
@pytest.mark.parametrize("name", SHAPES)
def test_a_published_graph_is_read_as_it_is_described(name: str) -> None:
    data = load_source(source_of(name), Path("unused"))
    splits = tuple(len(split) for split in (data.splits.train, data.splits.validation, data.splits.test))
    found = (data.graph.nodes, data.graph.edges, data.features.shape[1], len(data.classes), data.multi_label)
    assert found == SHAPES[name][:5]
    unlabelled = 0 if data.multi_label else int(np.count_nonzero(data.labels < 0))
    assert sum(SHAPES[name][5]) - sum(splits) <= unlabelled


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "model", "least", "most"),
    [
        pytest.param("amazon_photo", {"training": {"epochs": 6}}, 0.90, 1.0, id="dense features, inductive"),
        pytest.param(
            "cora", {"training": {"epochs": 30, "scope": "Transductive"}}, 0.74, 0.9, id="sparse features, transductive"
        ),
        pytest.param("eukloc", {"training": {"epochs": 6}}, 0.12, 0.4, id="multi-label, judged by F1-micro"),
        pytest.param(
            "amazon_photo",
            {"architecture": "GIN", "fanouts": [5, 5], "training": {"epochs": 12}},
            0.70,
            1.0,
            id="GIN",
        ),
    ],
)
def test_a_real_graph_is_served_at_several_accuracies(
    name: str, model: dict, least: float, most: float, tmp_path: Path
) -> None:
    service = GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": name.replace("_", "-")},
            "spec": {
                "graph": {"source": source_of(name).model_dump(mode="json", exclude_none=True)},
                "model": model,
                "variants": {"pruning": {"factors": [1, 4]}},
            },
        }
    )
    profile = generate(service, Repository(tmp_path, "default", "real")).profile
    full, pruned = profile.variant("x1"), profile.variant("x4")
    features = SHAPES[name][2]
    assert (full.columns, pruned.columns) == (features, features // 4)
    for variant in (full, pruned):
        assert variant.test_accuracy is not None
        assert abs(variant.test_accuracy - variant.validation_accuracy) < 0.08
    assert least <= full.test_accuracy <= most
