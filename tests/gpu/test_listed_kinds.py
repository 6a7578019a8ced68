"""Layers that a manifest may list on a GPU are those that have twins there; others are refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.gpu.listed_revisions import HIDDEN, convolution, layers_of, listed_revision
from tests.support.graphs.graphs import service_of

from gnnserve_api.device import Device
from gnnserve_api.errors import DeviceError
from gnnserve_api.files.device_layers import CONVOLUTIONS, NO_AGGREGATIONS, NO_JUMPS, why_not_on_gpu
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import PayloadManifest, one_type
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
)
from gnnserve_api.spec.device_rules import why_not_on_gpu as why_not_asked
from gnnserve_worker.gpu.listed.convolutions import AGGREGATED, TWINS
from gnnserve_worker.gpu.listed.network import JUMPS, RESIDUALS
from gnnserve_worker.gpu.listed.rows import ACTIVATIONS
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.network import LayersNetwork
from gnnserve_worker.layers.passes import projected
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes
from gnnserve_worker.pods.device import DeviceSettings, require_device, require_listed_layers

COLUMNS = HIDDEN
SCHEMA = one_type(
    10, 20, COLUMNS, edge_rules=EdgeRules(Direction.UNDIRECTED), payload=PayloadManifest(("length",), "", 20)
)
MLP = (DenseManifest(HIDDEN),)
FIELDS: dict[Convolution, dict[str, object]] = {
    Convolution.GIN: {"mlp": MLP},
    Convolution.GEN: {"mlp": MLP},
    Convolution.GINE: {"mlp": MLP, "edge_columns": ("length",)},
    Convolution.PNA: {"scalers": ("Identity",)},
    Convolution.GRAPH_CONV: {"aggregations": (Aggregation.SUM,)},
}
"""Fields that a convolution must have."""


def _layers(conv: ConvolutionManifest) -> LayersManifest:
    layers = LayersManifest((LayerManifest((conv,)),))
    assert problems_of(layers, SCHEMA, (COLUMNS,)) == []
    return layers


def _built(conv: ConvolutionManifest) -> Iterator[type]:
    """Classes that the convolution is built as, over rows and over products."""
    layers = _layers(conv)
    made = [layers]
    if conv.conv in PROJECTED and not PROJECTED[conv.conv].why_not(conv):
        made.append(projected(layers, SCHEMA, (COLUMNS,)))
    for each in made:
        tensors = {key: np.ones(shape, np.float32) for key, shape in tensor_shapes(each, SCHEMA, (COLUMNS,)).items()}
        (layer,) = LayersNetwork.build(each, SCHEMA, (COLUMNS,), tensors).layers
        yield type(layer.convolutions[0].built)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_each_convolution_that_a_manifest_may_list_has_a_twin(kind: Convolution) -> None:
    conv = convolution(kind, **FIELDS.get(kind, {}))

    assert set(_built(conv)) <= TWINS.keys()
    assert why_not_on_gpu(program_of(_layers(conv), SCHEMA, (COLUMNS,)), SCHEMA) == ""


def test_parts_of_layers_that_a_manifest_may_list_have_twins() -> None:
    assert set(AGGREGATED) == set(Aggregation) - set(NO_AGGREGATIONS)
    assert JUMPS.keys() == set(JumpingKnowledge) - set(NO_JUMPS)
    assert ACTIVATIONS.keys() | {Activation.PRELU} == set(Activation)
    assert RESIDUALS.keys() == set(Residual)


REFUSED = {
    "a kind without kernels": (convolution(Convolution.FILM), "conv FiLM has no kernels there"),
    "columns of edges": (
        convolution(Convolution.GAT, edge_columns=("length",)), "conv GAT reads edgeColumns"
    ),
    "weights of edges": (
        convolution(Convolution.GRAPH_CONV, aggregations=(Aggregation.SUM,), edge_weight="length"),
        "conv GraphConv reads edgeWeight",
    ),
    "an aggregation": (
        convolution(Convolution.GRAPH_SAGE, aggregations=(Aggregation.SOFTMAX,)), "has aggregation Softmax"
    ),
    "counted lists": (convolution(Convolution.GCN, self_loops=False), "count the edges of whole lists"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_twin_is_refused_in_words(name: str) -> None:
    conv, words = REFUSED[name]

    assert words in why_not_on_gpu(program_of(_layers(conv), SCHEMA, (COLUMNS,)), SCHEMA)


def test_jumping_knowledge_that_has_no_twin_is_refused_in_words() -> None:
    layers = msgspec.structs.replace(
        _layers(convolution(Convolution.GCN)), jumping_knowledge=JumpingKnowledge.LSTM, head=MLP
    )

    assert why_not_on_gpu(program_of(layers, SCHEMA, (COLUMNS,)), SCHEMA) == "jumpingKnowledge is Lstm"


def test_a_worker_names_the_variant_that_a_gpu_does_not_compute() -> None:
    require_listed_layers(listed_revision(layers_of(convolution(Convolution.GCN)), (3, 2)))
    loaded = listed_revision(layers_of(convolution(Convolution.FILM)), (3, 2))

    with pytest.raises(DeviceError, match=r"layers of rows: conv FiLM has no kernels there; use .*--device\) CPU"):
        require_listed_layers(loaded)


def test_a_gpu_alone_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()

    def require(device: Device, **model: object) -> None:
        spec = service_of("file:///none.npz", model=model, variants={}).spec
        require_device(DeviceSettings(device), spec, {}, tmp_path)

    listed = [{"conv": "GAT", "width": 4, "edgeColumns": ["length"]}]
    require(Device.AUTO, layers=listed, fanouts=[5])
    require(Device.GPU, layers=[{"conv": "GAT", "width": 4}], fanouts=[5])
    with pytest.raises(DeviceError, match=r"these model\.layers: a GPU computes GraphSAGE.*without.* edgeColumns"):
        require(Device.GPU, layers=listed, fanouts=[5])
    with pytest.raises(DeviceError, match=r"not whole neighbourhoods; use .* Auto or CPU"):
        require(Device.GPU, layers=[{"conv": "GAT", "width": 4}], fanouts=[-1])


def test_a_manifest_says_the_same_whatever_device_it_asks_for() -> None:
    service = service_of(
        "file:///none.npz", model={"layers": [{"conv": "PNA", "width": 4, "aggregations": ["Max"]}], "fanouts": [5]},
        variants={},
    )  # fmt: skip

    assert service.spec.worker.device is Device.AUTO
    assert "a GPU computes" in (why_not_asked(service.spec) or "")
