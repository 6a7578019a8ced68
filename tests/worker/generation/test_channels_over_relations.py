"""Hidden channels of networks over several types: those that are read are kept of each type, what is left computes
nearly the same, and follows changes of the graph as the whole network does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import assert_answers_are_those_of, batch_of, opened, served_by
from tests.support.generation.recommended_links import service_of as service_of_links
from tests.support.graphs.several_types import divided_shop, shop, write_folder
from tests.support.models.hetero_pyg import HIDDEN
from tests.support.models.networks_of_types import data_of, generated, saved, scores_of, service_of
from tests.support.overlays.typed_overlays import model_of, spec_of

from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision

CHANNELS = [{"factor": 2, "table": "Projected"}, {"factor": 2, "table": "Stored"}]
OVER_FEATURES = {"factor": 2, "table": "Features"}
LIVE = {"user": [0, 3, 5, 6], "item": [1, 2, 4, 7], "tag": [0, 1, 6, 7]}
"""Channels of 8 that the last layer reads of each type: as many of the first half, a head's, as of the second."""


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def planted(architecture: str, data: GraphData) -> Any:
    """torch_geometric's model, whose last layer reads those channels alone; RGCN reads the same ones of all types."""
    model = model_of(architecture, data)
    with torch.no_grad():
        for name, weight in model.convs[0].named_parameters():
            if name.endswith("bias"):
                weight.add_(3)  # no channel is 0 for many nodes
        last = model.convs[1]
        if architecture == "RGCN":
            dead = _dead("user")
            last.weight[:, dead] = 0
            last.root[dead] = 0
            return model
        own = {"lin_r.weight", "lin_dst.weight"}
        for (source, _, target), conv in last.convs.items():
            for name, weight in conv.named_parameters():
                if name.startswith("lin") and name.endswith("weight"):
                    weight[:, _dead(target if name in own else source)] = 0
    return model


def _dead(kind: str) -> np.ndarray:
    return np.setdiff1d(np.arange(HIDDEN), LIVE[kind])


def made(
    folder: Path, architecture: str, model: Any, source: dict[str, Any], variants: dict[str, Any]
) -> LoadedRevision:
    """A revision with the model's weights, over the whole neighbourhood."""
    spec = {**saved(model, folder / "model.safetensors"), **spec_of(architecture)}
    return generated(folder, service_of(source, spec, variants))


def variants_of(loaded: LoadedRevision) -> dict[str, VariantManifest]:
    assert loaded.manifest is not None
    return {one.name: one for one in loaded.manifest.variants}


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_channels_that_the_next_layer_reads_are_kept_of_each_type_and_follow_changes(
    tmp_path: Path, architecture: str
) -> None:
    source, data = data_of(tmp_path, shop())
    model = planted(architecture, data)
    channels = [*CHANNELS, OVER_FEATURES]
    loaded = made(tmp_path, architecture, model, source, {"channels": channels, "storage": ["float32", "int8"]})
    hidden = {name: one.network.hidden for name, one in variants_of(loaded).items()}
    assert hidden == {
        "x1": 8, "x1-int8": 8, "channels2": 4, "channels2-int8": 4, "projected": 8, "projected-int8": 8,
        "channels2-projected": 4, "channels2-projected-int8": 4,
        "channels2-stored1": 4, "channels2-stored1-int8": 4,
    }  # fmt: skip
    living, plain, draw = opened(tmp_path), PlainTypedGraph(data, model), np.random.default_rng(5)
    assert_answers_are_those_of(living, plain)
    served = served_by(living)
    for _ in range(4):
        said = living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 8), served)])
        assert all(isinstance(one, BatchEffect) for one in said), said
    assert_answers_are_those_of(living, plain)


def test_what_is_left_is_fitted_to_channels_that_are_gone(tmp_path: Path) -> None:
    """Where every channel has a twin that is read less, half of them suffice, but with other weights than before."""
    source, data = data_of(tmp_path, shop())
    model = model_of("GraphSAGE", data)
    with torch.no_grad():
        for conv in model.convs[0].convs.values():
            conv.lin_l.bias.add_(3)
            for weight in conv.parameters():
                weight[4:] = weight[:4]
        for conv in model.convs[1].convs.values():
            for weight in (conv.lin_l.weight, conv.lin_r.weight):
                weight[:, 4:] *= 0.1
    loaded = made(tmp_path, "GraphSAGE", model, source, {"channels": CHANNELS[:1]})
    nodes = np.arange(data.target.nodes)
    whole, left = (scores_of(loaded, name, nodes) for name in ("projected", "channels2-projected"))
    np.testing.assert_allclose(left, whole, atol=1e-2 * float(np.abs(whole).max()))


def test_channels_of_columns_are_made_also_where_a_default_factor_leaves_no_column(tmp_path: Path) -> None:
    """The default factors go to 8, and no type has more than 6 columns; none but that of the channels is made."""
    source, _ = data_of(tmp_path, shop())
    model = {"hidden": 6, "fanouts": [2, 2], "training": {"epochs": 1}}
    loaded = generated(tmp_path, service_of(source, model, {"channels": [{**OVER_FEATURES, "columnFactor": 4}]}))
    assert {*variants_of(loaded)} == {"x4", "channels2-x4", "projected"}


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_few_channels_learn_from_labels(tmp_path: Path, architecture: str) -> None:
    source, _ = data_of(tmp_path, divided_shop())
    model = {
        "architecture": architecture, "hidden": 16, "fanouts": [5, 5],
        "training": {"epochs": 60, "scope": "Transductive"},
    }  # fmt: skip
    channels = [{**one, "factor": 4} for one in CHANNELS]
    service = service_of(source, model, {"channels": channels, "fanouts": [[2, 2]], "stored": [1]})
    loaded = generated(tmp_path, service)
    manifest = loaded.manifest
    assert manifest is not None and manifest.training is not None
    assert {*variants_of(loaded)} == {*service.spec.possible_variants()}
    assert [run.name for run in manifest.training.runs] == ["network", "channels4"]
    assert all(one.validation_accuracy > 0.9 for one in manifest.profile.variants)
    assert not served_revision(loaded).capabilities["channels4-projected"].embeddings


def test_an_index_of_links_is_not_searched_with_what_another_network_gives(tmp_path: Path) -> None:
    spec = {
        "graph": {"source": {"typed": write_folder(tmp_path / "graph", shop())}},
        "model": {"hidden": 8, "fanouts": [3, 3], "training": {"epochs": 2}},
        "task": {"links": {"relation": "buys", "dimensions": 4}},
        "variants": {"channels": CHANNELS, "stored": [1, 2], "storedFollowChanges": True},
    }
    loaded = generated(tmp_path, service_of_links(spec))
    rows = variants_of(loaded)["stored2"]
    assert rows.fanouts == (0,)
    assert loaded.manifest is not None
    weights = loaded.manifest.files[rows.weights].sha256
    assert {*served_revision(loaded).comparable_variants(weights)} == {"projected", "stored1", "stored2"}
