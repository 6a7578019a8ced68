"""Fields of a manifest's text that describe a network layer by layer: named as users name them, without defaults."""

from __future__ import annotations

from gnnserve_api.files.layer_fields import layer_fields
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import RelationKey

ONE = RelationKey()
CITED = {"source": "paper", "name": "cites", "target": "paper"}
WRITES, CITES = RelationKey("author", "writes", "paper"), RelationKey("paper", "cites", "paper")


def of_one(*convolutions: ConvolutionManifest) -> list[dict[str, object]]:
    layers = LayersManifest(tuple(LayerManifest((each,)) for each in convolutions))
    found: list[dict[str, object]] = layer_fields(layers, [""], [ONE])["layers"]
    return found


def test_a_layer_of_one_type_has_the_fields_of_its_convolution() -> None:
    conv = ConvolutionManifest(Convolution.GATV2, width=8, heads=2, averages_heads=True, edge_columns=("amount",))
    layer = LayerManifest((conv,), norm=Norm.BATCH, is_norm_behind=True, activation=Activation.ELU, slope=0.5)
    layers = LayersManifest(
        (layer,), (TypeProductsManifest(0, (DenseManifest(4),)),), JumpingKnowledge.CAT, (DenseManifest(3, bias=False),)
    )
    assert layer_fields(layers, [""], [ONE]) == {
        "before": [{"products": [{"width": 4}]}],
        "layers": [
            {
                "conv": "GATv2", "width": 8, "heads": 2, "averageHeads": True, "edgeColumns": ["amount"],
                "norm": "Batch", "normBehind": True, "activation": "Elu", "slope": 0.5,
            }
        ],
        "head": [{"width": 3, "bias": False}],
        "jumpingKnowledge": "Cat",
    }  # fmt: skip


def test_what_a_text_assumes_otherwise_than_a_revision_is_left_out_or_stated() -> None:
    mean, total = (Aggregation.MEAN,), (Aggregation.SUM,)
    assert of_one(
        ConvolutionManifest(Convolution.GRAPH_CONV, width=4, aggregations=total),
        ConvolutionManifest(Convolution.GRAPH_CONV, width=4, aggregations=mean),
        ConvolutionManifest(Convolution.TAG, width=4, hops=2, self_loops=False),
        ConvolutionManifest(Convolution.TAG, width=4, hops=2),
        ConvolutionManifest(Convolution.GCNII, width=4, shares_weights=True),
        ConvolutionManifest(Convolution.GCNII, width=4, self_loops=False, is_normalised=False),
        ConvolutionManifest(Convolution.APPNP, width=4, alpha=0.1),
        ConvolutionManifest(Convolution.PNA, width=4, aggregations=mean),
        ConvolutionManifest(Convolution.FILM, width=4, negative_slope=0.0),
        ConvolutionManifest(Convolution.FILM, width=4),
    ) == [
        {"conv": "GraphConv", "width": 4, "aggregations": ["Sum"]},
        {"conv": "GraphConv", "width": 4, "aggregations": ["Mean"]},
        {"conv": "TAG", "width": 4, "hops": 2},
        {"conv": "TAG", "width": 4, "hops": 2, "selfLoops": True},
        {"conv": "GCNII"},
        {"conv": "GCNII", "selfLoops": False, "normalize": False, "shareWeights": False},
        {"conv": "APPNP", "alpha": 0.1},
        {"conv": "PNA", "width": 4, "aggregations": ["Mean"]},
        {"conv": "FiLM", "width": 4},
        {"conv": "FiLM", "width": 4, "negativeSlope": 0.2},
    ]


def test_a_perceptron_has_no_layers_and_a_head() -> None:
    layers = LayersManifest((), head=(DenseManifest(2, activation=Activation.RELU),), head_reads_input=False)
    assert layer_fields(layers, [""], [ONE]) == {"layers": [], "head": [{"width": 2, "activation": "Relu"}]}


def test_relations_and_types_are_called_by_their_names() -> None:
    convs = (
        ConvolutionManifest(Convolution.GRAPH_SAGE, 1, width=4),
        ConvolutionManifest(Convolution.GAT, 0, width=4, self_loops=False),
        ConvolutionManifest(Convolution.GAT, 1, width=4),
    )
    layers = LayersManifest(
        (LayerManifest(convs, Combination.MEAN, own=True),), (TypeProductsManifest(1, (DenseManifest(4),)),)
    )
    assert layer_fields(layers, ["paper", "author"], [WRITES, CITES]) == {
        "before": [{"type": "author", "products": [{"width": 4}]}],
        "layers": [
            {
                "relations": [
                    {"relation": CITED, "conv": "GraphSAGE", "width": 4, "aggregations": ["Mean"]},
                    {"relation": {"source": "author", "name": "writes", "target": "paper"}, "conv": "GAT", "width": 4},
                    {
                        "relation": CITED, "conv": "GAT", "width": 4,
                        "selfLoops": True,
                    },
                ],
                "combine": "Mean",
                "own": True,
            }
        ],
    }  # fmt: skip
