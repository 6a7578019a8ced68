"""`model.layers` in a manifest: what is refused, in whose words, and what a revision keeps of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.graphs.graphs import planted_graph

from gnnserve_api.errors import InputError
from gnnserve_api.files.layer_fields import layer_fields
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    EdgeFilter,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
)
from gnnserve_api.files.programs import RelationKey
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNServiceSpec

SCHEMA = planted_graph((0, 1, 2), nodes=12, columns=6, seed=4).schema
SAGE = {"conv": "GraphSAGE", "width": 8}


def model_with(*layers: dict[str, Any], **parts: Any) -> Model:
    given = {
        "checkpoint": {"uri": "data/model.safetensors"}, "layers": list(layers),
        "fanouts": [-1] * len(layers) or [0], **parts,
    }  # fmt: skip
    return Model.model_validate(given)


def manifest_of(model: Model, outputs: int = 3) -> LayersManifest:
    return layers_manifest(
        SCHEMA, 6, outputs, model.before, model.layers or (), model.jumping_knowledge, model.head,
        head_reads_input=model.head_reads_input,
    )  # fmt: skip


def test_what_a_layer_leaves_out_has_the_defaults_of_torch_geometric() -> None:
    made = manifest_of(model_with(SAGE, {"conv": "GraphConv"}))
    first = ConvolutionManifest(Convolution.GRAPH_SAGE, width=8)
    second = ConvolutionManifest(Convolution.GRAPH_CONV, width=3, aggregations=(Aggregation.SUM,))
    assert made == LayersManifest((LayerManifest((first,)), LayerManifest((second,))))


def test_parts_around_a_convolution_are_kept() -> None:
    attention = {
        "conv": "GATv2", "width": 8, "heads": 2, "edgeColumns": ["amount"], "norm": "Batch", "activation": "Elu",
        "residual": "Projected",
    }  # fmt: skip
    made = manifest_of(model_with(attention, {**SAGE}, head=[{"width": 4, "activation": "Relu"}, {}]))
    (first, _), (hidden, last) = made.layers, made.head
    assert first.convs == (
        ConvolutionManifest(Convolution.GATV2, width=8, heads=2, edge_columns=("amount",)),
    )  # fmt: skip
    assert (first.norm, first.activation, first.residual) == (Norm.BATCH, Activation.ELU, Residual.PROJECTED)
    assert (hidden, last) == (DenseManifest(4, activation=Activation.RELU), DenseManifest(3))


def test_kinds_of_edges_have_convolutions_of_their_own_over_the_only_relation() -> None:
    of_kinds = [{**SAGE, "where": {"column": "kind", "equals": kind}} for kind in (0, 2)]
    (layer,) = manifest_of(model_with({"relations": of_kinds}, head=[{}])).layers
    assert [one.where for one in layer.convs] == [EdgeFilter("kind", 0.0), EdgeFilter("kind", 2.0)]
    assert layer.keys == ("0_0", "0_1")
    told = layer_fields(LayersManifest((layer,)), [""], [RelationKey()])
    assert told["layers"][0]["relations"][1] == {"conv": "GraphSAGE", "width": 8, "where": {"column": "kind",
            "equals": 2.0}, "aggregations": ["Mean"]}  # fmt: skip


def test_attention_over_all_relations_is_kept_with_its_product_and_its_gate() -> None:
    hgt = {
        "conv": "Transformer", "width": 8, "heads": 2, "root": False, "combine": "Attention", "activation": "Gelu",
        "residual": "Gated", "outputProduct": True,
    }  # fmt: skip
    (layer,) = manifest_of(model_with(hgt, head=[{}])).layers
    assert (layer.combination, layer.residual, layer.output_product) == (Combination.ATTENTION, Residual.GATED, True)
    assert layer_fields(LayersManifest((layer,)), [""], [RelationKey()])["layers"] == [hgt]


def test_a_perceptron_has_no_layer() -> None:
    assert manifest_of(model_with(head=[{"width": 4, "activation": "Relu"}, {}])).hops == 0


def test_convolutions_that_keep_their_width_need_none() -> None:
    made = manifest_of(
        model_with(
            {"conv": "APPNP", "hops": 2, "alpha": 0.1}, before=[{"products": [{"width": 5}]}], head=[{}],
            fanouts=[-1, -1],
        )
    )  # fmt: skip
    assert made.layers[0].convs[0].width == 5
    assert made.hops == 2


@pytest.mark.parametrize(
    ("layers", "parts", "words"),
    [
        ([SAGE], {"architecture": "GCN"}, "architecture must be left out with layers"),
        ([SAGE], {"hidden": 64}, "hidden must be left out with layers"),
        (
            [SAGE, SAGE],
            {"fanouts": [-1]},
            r"fanouts \[-1\] must be one number for each of layers, of which.* 2",
        ),
        ([], {}, "layers must not be empty without a head"),
        ([{"conv": "GraphSAGE"}, SAGE], {}, "width must be given for each of layers"),
        ([{**SAGE, "heads": 2}], {}, "heads may be given with conv GAT, GATv2, Transformer and RGAT only"),
        ([{"conv": "GAT", "width": 9, "heads": 2}], {}, r"width 9 must be a multiple of heads 2.*use width 10"),
        ([{"conv": "GIN"}], {}, "mlp must be given with conv GIN, GINE and GEN"),
        ([{"conv": "PNA", "width": 4}], {}, "aggregations must be given with conv PNA"),
        ([{**SAGE, "slope": 0.1}], {}, "slope may be given with activation LeakyRelu and Elu only"),
        ([{"width": 4}], {}, "either conv or relations must be given"),
        ([{**SAGE, "conv": "GATv3"}], {}, "GATv3|should be"),
    ],
)
def test_what_does_not_go_together_is_refused(layers: list[dict[str, Any]], parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        model_with(*layers, **parts)


@pytest.mark.parametrize("parts", [{"head": [{}]}, {"headReadsInput": True}, {"jumpingKnowledge": "Cat"}])
def test_parts_of_layers_need_layers(parts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="may be given with layers only"):
        Model.model_validate(parts)


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (
            {"given": [{"checkpoint": {"uri": "data/a.safetensors"}, "columns": [0]}]},
            "columns and hidden of variants.given must be left out with model.layers",
        ),
    ],
)
def test_variants_that_look_into_a_network_are_refused(variants: dict[str, Any], words: str) -> None:
    model = {"checkpoint": {"uri": "data/model.safetensors"}, "layers": [SAGE, SAGE], "fanouts": [-1, -1]}
    with pytest.raises(ValidationError, match=words):
        GNNServiceSpec.model_validate(
            {"graph": {"source": {"builtin": "Digits"}}, "model": model, "variants": variants}
        )


def test_a_relation_or_a_type_that_the_graph_lacks_is_named() -> None:
    relations = [{"conv": "GraphSAGE", "width": 3, "relation": {"source": "a", "name": "b", "target": "c"}}]
    with pytest.raises(InputError, match="names the relation 'a b c', and the graph has"):
        manifest_of(model_with({"relations": relations}))
    with pytest.raises(InputError, match="names the type 'paper', and the graph has"):
        manifest_of(model_with(SAGE, before=[{"type": "paper", "products": [{"width": 3}]}]))
