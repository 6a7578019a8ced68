"""Descriptions of networks as layers: what is wrong with them is told in sentences, and they read what they need."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
from tests.support.models.random_layers import one_type, several_types

from gnnserve_api.files.layers import (
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    EdgeFilter,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
    ResidualPlace,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import contract_problems
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.shapes import (
    columns_of,
    inputs_of,
    needed_rows,
    output_columns,
    problems_of,
    reads_degrees,
)
from gnnserve_worker.programs.numbering import relations_of

GRAPH = one_type(np.random.default_rng(1))
SEVERAL = several_types(np.random.default_rng(2))
SAGE = ConvolutionManifest(Convolution.GRAPH_SAGE, width=6)
RGAT = ConvolutionManifest(Convolution.RGAT, width=6)
USERS, ITEMS, TAGS = range(3)
RELATIONS = {one.name: place for place, one in enumerate(SEVERAL.data.schema.relations)}


def of(kind: Convolution, **fields: object) -> LayersManifest:
    conv = ConvolutionManifest(kind, width=fields.pop("width", 6), **fields)
    return LayersManifest((LayerManifest((conv,)),))


def of_kind(number: int) -> ConvolutionManifest:
    return msgspec.structs.replace(SAGE, where=EdgeFilter("kind", float(number)))


def between(name: str) -> ConvolutionManifest:
    return msgspec.structs.replace(SAGE, relation=RELATIONS[name])


TWO = LayerManifest((SAGE,))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (of(Convolution.GAT, heads=4), r"layers\[0\]\.conv GAT: width 6 is no multiple of heads 4"),
        (of(Convolution.GCN, heads=2), r"layers\[0\]\.conv GCN: heads is read by GAT, GATv2, Transformer, RGAT; leave"),
        (of(Convolution.GINE), "conv GINE: mlp is empty.*; .*edgeColumns is empty; name columns"),
        (of(Convolution.GRAPH_CONV, edge_weight="length"), "edges have no column 'length': they have amount, rate, "),
        (of(Convolution.GCNII), "GCNII: width is 6, and the layer's input has 7 columns"),
        (of(Convolution.PNA, towers=4, scalers=()), "width 6 is no multiple of towers 4; .* scalers is empty"),
        (of(Convolution.SGC, hops=0), "hops is 0; give 1 or more"),
        (of(Convolution.GRAPH_SAGE, width=0), "width is 0; give 1 or more"),
        (of(Convolution.GRAPH_SAGE, relation=3), r"layers\[0\]\.convs\[0\]: relation 3 is none of the graph's 1"),
        (LayersManifest((LayerManifest((SAGE, SAGE)),)), r"layers\[0\]: relation 0 has 2 convolutions; give one"),
        (
            LayersManifest((LayerManifest((of_kind(1), of_kind(1), of_kind(2))),)),
            r"layers\[0\]: relation 0 has 2 convolutions where kind is 1; give one",
        ),
        (of(Convolution.GRAPH_SAGE, where=EdgeFilter("sort", 1.0)), "edges have no column 'sort': they have amount"),
        (LayersManifest((LayerManifest(()),)), r"layers\[0\]: convs is empty"),
        (
            LayersManifest((LayerManifest((SAGE,), residual=Residual.ADDED),)),
            r"layers\[0\]: residual Added adds the layer's input of 7 columns to 6; set residual to Projected",
        ),
        (
            LayersManifest(
                (TWO, LayerManifest((msgspec.structs.replace(SAGE, width=4),))), jumping_knowledge=JumpingKnowledge.MAX
            ),
            "jumpingKnowledge: Max is of layers of one width, and theirs are 6, 4",
        ),
        (LayersManifest((TWO,), head_reads_input=True), "head: it is empty, and headReadsInput is of a head"),
        (
            LayersManifest((LayerManifest((SAGE,), Combination.ATTENTION),)),
            "combine Attention: conv GraphSAGE has no softmax .*; give GAT, GATv2, Transformer, RGAT, or Sum",
        ),
        (
            LayersManifest((LayerManifest(of(Convolution.GAT).layers[0].convs, Combination.ATTENTION),)),
            "combine Attention: with selfLoops a node would read itself in each of its relations; set selfLoops",
        ),
        (
            LayersManifest((
                LayerManifest(of(Convolution.TRANSFORMER, has_beta=True).layers[0].convs, Combination.ATTENTION),
            )),
            "combine Attention: beta is a gate of one relation",
        ),
        (
            LayersManifest((
                LayerManifest(
                    tuple(
                        msgspec.structs.replace(RGAT, heads=heads, where=EdgeFilter("kind", float(heads)))
                        for heads in (1, 2)
                    ), Combination.ATTENTION,
                ),
            )),
            "combine Attention: convolutions that nodes read have 1, 2 heads; give one number",
        ),
        (
            LayersManifest((
                LayerManifest(
                    (SAGE,), residual=Residual.PROJECTED, residual_place=ResidualPlace.BEFORE_NORM, output_product=True
                ),
            )),
            "outputProduct stands behind the activation, and residualPlace before it; leave one of them out",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(layers: LayersManifest, words: str) -> None:
    problems = "; ".join(problems_of(layers, GRAPH.data.schema, GRAPH.columns))
    assert re.search(words, problems), problems


@pytest.mark.parametrize(
    ("convs", "words"),
    [
        ((between("buys"),), "the last one writes no rows of nodes of type 'user', which scores are of"),
        (
            (ConvolutionManifest(Convolution.GCN, RELATIONS["rev_buys"], 6),),
            "GCN: it is of relations within a type; take GraphSAGE, GraphConv or attention",
        ),
        (
            (ConvolutionManifest(Convolution.GAT, RELATIONS["rev_buys"], 6),),
            "GAT: nodes of another type are read, which have no self-loops; set selfLoops to false",
        ),
        (
            (ConvolutionManifest(Convolution.RGAT, RELATIONS["rev_buys"], 6),),
            "RGAT: rows of 5 columns read rows of 8, and one matrix is of both; give products before the layers",
        ),
        (
            (between("knows"), msgspec.structs.replace(between("rev_buys"), width=4)),
            "convolutions that nodes of type 'user' read are 4, 6 wide; give one width",
        ),
    ],
)
def test_what_is_wrong_between_types_is_told(convs: tuple[ConvolutionManifest, ...], words: str) -> None:
    layers = LayersManifest((LayerManifest(convs),))
    problems = "; ".join(problems_of(layers, SEVERAL.data.schema, SEVERAL.columns))
    assert re.search(words, problems), problems


def test_rows_that_no_layer_writes_are_missed() -> None:
    layer = LayerManifest((between("rev_buys"), between("knows")))
    (problem,) = problems_of(LayersManifest((layer, layer)), SEVERAL.data.schema, SEVERAL.columns)
    assert problem == (
        "layers[1].convs[0] GraphSAGE: it reads nodes of type 'item', of which there are no rows: they are features, "
        "or written by the layer before"
    )


def test_a_type_without_features_is_refused_with_what_to_do() -> None:
    types = tuple(
        msgspec.structs.replace(one, features=None if one.name == "item" else one.features)
        for one in SEVERAL.data.schema.types
    )
    schema = msgspec.structs.replace(SEVERAL.data.schema, types=types)
    layer = LayerManifest((between("rev_buys"), between("knows")))
    (problem,) = problems_of(LayersManifest((layer,)), schema, columns_of(schema))
    assert problem.endswith(
        "; give such nodes features in the source (a column of ones, or embeddings), or let relations of the layer "
        "leave out those that read them"
    )


def test_rows_that_no_layer_reads_are_not_among_the_inputs() -> None:
    """The last layer writes items and users; of the first one only items are read, which read users and tags."""
    first = LayerManifest((between("buys"), between("marks"), between("follows")))
    last = LayerManifest((msgspec.structs.replace(between("rev_buys"), root=False), between("buys")), Combination.MEAN)
    layers = LayersManifest((first, last), head=(DenseManifest(3),))
    schema = SEVERAL.data.schema
    assert needed_rows(layers, schema) == ({USERS, ITEMS, TAGS}, {ITEMS}, {USERS})
    program = program_of(layers, schema, SEVERAL.columns)
    assert {each.relation.name for each in program.inputs} == {"", "buys", "marks", "rev_buys"}
    assert {each.type for each in program.inputs} == {"", "user", "item", "tag"}
    assert contract_problems(program, schema) == []
    assert relations_of(schema).types == 3


def test_degrees_are_the_samples_where_they_can_be() -> None:
    schema, several = GRAPH.data.schema, SEVERAL.data.schema
    assert not reads_degrees(of(Convolution.GCN), schema)
    assert [each.name for each in inputs_of(of(Convolution.GCN), schema)][-2:] == ["edge_weights", "own_weights"]
    for fields in ({"self_loops": False}, {"edge_weight": "weight"}):
        assert reads_degrees(of(Convolution.GCN, **fields), schema), fields
    assert reads_degrees(of(Convolution.GCN, relation=RELATIONS["knows"]), several)
    assert not reads_degrees(of(Convolution.GCN, is_normalised=False), schema)
    assert reads_degrees(of(Convolution.GCN, where=EdgeFilter("kind", 1.0)), schema)


def test_outputs() -> None:
    schema, columns = GRAPH.data.schema, GRAPH.columns
    before = (TypeProductsManifest(0, (DenseManifest(9),)),)
    assert output_columns(LayersManifest((TWO,), before), schema, columns) == (6, 0)
    assert output_columns(LayersManifest((TWO, TWO), before), schema, columns) == (6, 6)
    jumped = LayersManifest((TWO, TWO), before, JumpingKnowledge.CAT, (DenseManifest(3),))
    assert output_columns(jumped, schema, columns) == (3, 12)
    assert output_columns(LayersManifest((), before), schema, columns) == (9, 0)
