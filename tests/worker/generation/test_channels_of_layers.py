"""Networks with fewer hidden channels beside listed layers, from a manifest to what they answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support.generation.learning import labels_of
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    npz_arrays,
    planted_graph,
    random_graph,
    random_splits,
    random_tensors,
    service_of,
    write_npz,
)
from tests.support.models.pyg import assert_close
from tests.support.programs.generated_programs import ProgramWorker
from tests.support.programs.program_types import USERS
from tests.support.programs.program_types_generated import hetero_data
from tests.support.serving.secured_worker import started

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.layers import (
    Activation,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    LayerManifest,
    LayersManifest,
)
from gnnserve_api.files.repository import PRODUCTS_SCHEMA_VERSION, RevisionManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.channels import narrow
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.programs.layer_channels import narrow_listed_aloud
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.layers.channels import NetworkChannels
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.tasks.generated import DecoderTensors

DATA = planted_graph((1, 5, 8), nodes=300)
CHANNELS = [
    {"factor": 4},
    {"factor": 2, "columnFactor": 3},
    *({"factor": 4, "table": table} for table in ("Projected", "Stored")),
]
LAYERS = [
    {"conv": "GraphSAGE", "width": 16, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
    {"conv": "GraphSAGE"},
]
LISTED: dict[str, Any] = {"layers": LAYERS, "fanouts": [-1, -1], "training": {"epochs": 30}}
VARIANTS: dict[str, Any] = {
    "pruning": {"factors": [1, 3]}, "storage": ["float32", "int8"], "channels": CHANNELS, "fanouts": [[3, 2]],
}  # fmt: skip


@dataclass
class Made:
    service: Any
    manifest: RevisionManifest
    loaded: LoadedRevision

    def scores(self, name: str, nodes: np.ndarray) -> np.ndarray:
        return infer_batch(self.loaded, name, nodes, key=1).scores


def made(folder: Path, model: dict[str, Any], variants: dict[str, Any]) -> Made:
    uri = write_npz(folder / "graph.npz", npz_arrays(DATA)).as_uri()
    repository = Repository(folder / "repository", "default", "tiny")
    service = service_of(uri, model=model, variants=variants)
    manifest = generate(service, repository)
    return Made(service, manifest, load_revision(repository, manifest.revision))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("channels"), LISTED, VARIANTS)


def test_networks_over_each_table_are_published_by_the_names_that_a_manifest_promises(trained: Made) -> None:
    variants = {one.name: one for one in trained.manifest.variants}
    assert {*trained.service.spec.variants.listed_names()} <= variants.keys()
    assert trained.manifest.schema_version == PRODUCTS_SCHEMA_VERSION
    found = {
        name: (variants[name].family, variants[name].table, variants[name].columns)
        for name in ("channels4-int8", "channels2-x3", "channels4-projected", "channels4-stored1", "channels4-f3x2")
    }
    assert found == {
        "channels4-int8": ("channels-layers", "features-int8", 12),
        "channels2-x3": ("channels-pruned-layers", "features-x3-float32", 4),
        # Both products of the layer, and that of the residual, of 4 channels each.
        "channels4-projected": ("channels-projected-layers", "channels4-projected", 12),
        "channels4-stored1": ("channels-stored-overlays-layers", "channels4-stored1-float32", 4),
        "channels4-f3x2": ("channels-layers-fanouts", "features-float32", 12),
    }
    assert trained.manifest.training is not None
    assert [run.name for run in trained.manifest.training.runs] == ["x1", "x3", "channels4", "channels2-x3"]


def test_few_channels_tell_the_planted_classes_from_every_table(trained: Made) -> None:
    seeds = DATA.splits.test
    names = ("channels4", "channels4-int8", "channels2-x3", "channels4-projected-int8", "channels4-stored1")
    for name in ("x1", *names):
        assert (trained.scores(name, seeds).argmax(axis=1) == DATA.labels[seeds]).mean() > 0.8, name
    assert_close(trained.scores("channels4-projected", seeds), trained.scores("channels4", seeds))
    assert_close(trained.scores("channels4-stored1", seeds), trained.scores("channels4", seeds))


def test_nodes_that_a_request_brings_are_answered_about_and_embeddings_are_not_given(trained: Made) -> None:
    node = int(DATA.splits.test[0])
    new = {"id": 300, "features": np.asarray(DATA.features)[node].tolist()}
    edges = [[int(other), 300] for other in DATA.graph.list_of(node)]
    body: dict[str, Any] = {"nodes": [300, node], "overlay": {"nodes": [new], "edges": edges}, "return": ["scores"]}
    worker = ProgramWorker(trained.loaded)
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)

        def answered(**fields: Any) -> tuple[int, Any]:
            text = json.dumps({**body, **fields})
            connection.request("POST", "/v1/predict", text, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

        for name in ("channels4", "channels2-x3", "channels4-projected", "channels4-stored1"):
            status, answer = answered(variant=name)
            assert status == 200, answer
            first, second = np.array(answer["scores"])
            assert_close(first, second)
        status, answer = answered(variant="channels4", **{"return": ["embeddings"], "overlay": None, "nodes": [node]})
        assert status == 400, answer
        connection.close()


# --- beside an architecture


NODES, FEATURES = 300, 12
GRAPH, FEATURE_ROWS = random_graph(NODES, 0), dense_features(NODES, FEATURES, 0)


def relu(width: int) -> DenseManifest:
    return DenseManifest(width, activation=Activation.RELU)


def listed(conv: Convolution, widths: tuple[int, ...], inner: int = 0) -> LayersManifest:
    layers = []
    for number, width in enumerate(widths, 1):
        mlp = (relu(inner), DenseManifest(width)) if inner else ()
        activation = Activation.NONE if number == len(widths) else Activation.RELU
        layers.append(LayerManifest((ConvolutionManifest(conv, width=width, mlp=mlp),), activation=activation))
    return LayersManifest(tuple(layers))


ALIKE = {
    "GraphSAGE": (network_manifest("GraphSAGE", (-1, -1, -1)), listed(Convolution.GRAPH_SAGE, (8, 8, 3))),
    "GCN": (network_manifest("GCN", (-1, -1, -1)), listed(Convolution.GCN, (8, 8, 3))),
    "GIN": (network_manifest("GIN", (-1, -1, -1), mlp_hidden=10), listed(Convolution.GIN, (8, 8, 3), 10)),
}


def key_of_listed(key: str) -> str:
    """Key of a listed layer's tensor, from that of an architecture's."""
    _, layer, name = key.split(".", 2)
    return f"layers.{layer}.convs.0.{name.replace('nn.lins.', 'nn.')}"


def as_listed(tensors: Tensors) -> Tensors:
    return {key_of_listed(key): tensor for key, tensor in tensors.items()}


@pytest.mark.parametrize("name", ALIKE)
def test_layers_that_an_architecture_stands_for_lose_the_same_channels(name: str) -> None:
    network, layers = ALIKE[name]
    tensors = random_tensors(network, FEATURES, seed=1)
    data = labelled()
    inner = None if network.mlp_hidden is None else network.mlp_hidden // 2
    wanted = msgspec.structs.replace(network, hidden=4, mlp_hidden=inner)
    expected = narrow(tensors, network, wanted, FEATURE_ROWS, GRAPH, np.arange(NODES))
    given = GivenLayers(as_listed(tensors), data.schema, DecoderTensors("", {}, "", "", ""))
    channels = NetworkChannels(layers, data.schema, (FEATURES,))
    model = Model.model_validate({"fanouts": [-1, -1, -1], "training": {"scope": "Transductive"}})
    found = narrow_listed_aloud(model, channels, given, 2, data, "channels2", silent)
    for key, tensor in as_listed(expected).items():
        np.testing.assert_allclose(found[key], tensor, rtol=0, atol=1e-4 * max(1.0, float(np.abs(tensor).max())))


def labelled() -> TrainingSet:
    labels, splits = np.zeros(NODES, np.int64), random_splits(NODES, 0)
    rules = EdgeRules(Direction.DIRECTED)
    data = GraphData.of_one_type("made up", "0", GRAPH, FEATURE_ROWS, labels, (0, 1, 2), splits, rules)
    return training_set(data, labels_of(data), 3, Scope.TRANSDUCTIVE, Normalization.DISABLED)


# --- weights that are given, several types, and what is refused


def test_given_weights_are_fitted_and_not_trained(tmp_path: Path) -> None:
    """The checkpoint has 12 channels of the first layer, of which 8 are twins of others, and read less."""
    draw = np.random.default_rng(3)
    first = {key: draw.normal(size=shape).astype(np.float32) for key, shape in _SHAPES.items()}
    for key, tensor in first.items():
        if key.startswith("layers.0."):
            tensor[4:8] = tensor[8:] = tensor[:4]
        elif tensor.ndim > 1:
            tensor[:, 4:8], tensor[:, 8:] = 0.3 * tensor[:, :4], 0.2 * tensor[:, :4]
    save_file(first, tmp_path / "model.safetensors")
    layers = [{"conv": "GraphSAGE", "width": 12, "activation": "Relu"}, {"conv": "GraphSAGE"}]
    given = {
        "layers": layers, "fanouts": [-1, -1], "checkpoint": {"uri": (tmp_path / "model.safetensors").as_uri()},
    }  # fmt: skip
    found = made(tmp_path, given, {"channels": [{"factor": 3}], "pruning": {"factors": [1]}})
    assert found.manifest.training is None or not found.manifest.training.runs
    nodes = np.arange(300)
    whole, left = found.scores("x1", nodes), found.scores("channels3", nodes)
    assert 0 < np.abs(left - whole).max() < 0.05 * np.abs(whole).max()


_SHAPES = {
    "layers.0.convs.0.lin_l.weight": (12, 12), "layers.0.convs.0.lin_l.bias": (12,),
    "layers.0.convs.0.lin_r.weight": (12, 12), "layers.1.convs.0.lin_l.weight": (3, 12),
    "layers.1.convs.0.lin_l.bias": (3,), "layers.1.convs.0.lin_r.weight": (3, 12),
}  # fmt: skip


def typed_service(folder: Path, variants: dict[str, Any]) -> Any:
    model: dict[str, Any] = {
        "before": [{"type": "item", "products": [{"width": 6, "activation": "Relu"}]}],
        "layers": [
            {"conv": "GraphSAGE", "width": 8, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
            {"conv": "GATv2", "width": 8, "heads": 2, "selfLoops": False, "residual": "Added"},
        ],
        "jumpingKnowledge": "Cat", "head": [{}], "headReadsInput": True, "fanouts": [-1, -1],
        "training": {"epochs": 2},
    }  # fmt: skip
    service = service_of("file:///none.npz", model=model, variants=variants)
    spec = service.model_dump(by_alias=True, exclude_none=True)
    spec["spec"]["graph"]["source"] = {"typed": {**hetero_data(folder), "target": "user", "reverse": "Disabled"}}
    return type(service).model_validate(spec)


def test_layers_over_several_types_lose_channels_of_each(tmp_path: Path) -> None:
    channels = [{"factor": 2, "table": table} for table in ("Features", "Projected", "Stored")]
    service = typed_service(tmp_path, {"storage": ["float32"], "channels": channels})
    repository = Repository(tmp_path / "repository", "default", "tiny")
    revision = generate(service, repository)
    loaded = load_revision(repository, revision.revision)
    found = {name: infer_batch(loaded, name, np.arange(USERS), 1).scores for name in loaded.variants}
    assert {"x1", "channels2", "channels2-projected", "channels2-stored1"} <= found.keys()
    for name in ("channels2-projected", "channels2-stored1"):
        assert_close(found[name], found["channels2"])


@pytest.mark.parametrize(
    ("layers", "channels", "said"),
    [
        (
            [{"conv": "GraphSAGE", "width": 6}, {"conv": "GraphSAGE"}], [{"factor": 2}, {"factor": 8}],
            "spec.variants.channels[1].factor: 8: layers[0] has 6 channels, of which 8 leaves none",
        ),
        (
            [{"conv": "PNA", "width": 6, "towers": 2, "aggregations": ["Mean"]}, {"conv": "GraphSAGE"}],
            [{"factor": 2}],
            "spec.variants.channels[0].factor: 2: layers[0]: conv PNA: each of its towers",
        ),
    ],
)  # fmt: skip
def test_channels_that_cannot_be_left_out_are_refused_before_anything_is_trained(
    tmp_path: Path, layers: list[dict[str, Any]], channels: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        made(tmp_path, {**LISTED, "layers": layers}, {"channels": channels})
    assert said in str(caught.value)
