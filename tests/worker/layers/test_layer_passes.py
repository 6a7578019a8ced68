"""What passes leave of a network over listed layers gives what the whole network gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from pydantic import ValidationError
from tests.support.models.random_layers import Case, RandomGraph, draw_case, one_type, several_types

from gnnserve_api.files.graph_schema import GraphSchema, TypeManifest
from gnnserve_api.files.graph_schema import one_type as one_type_schema
from gnnserve_api.files.layers import (
    COMMUTING,
    Aggregation,
    Convolution,
    ConvolutionManifest,
    LayerManifest,
    LayersManifest,
    Residual,
)
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.passes import (
    one_layer,
    over_own_rows,
    projected,
    projected_tensors,
    stored,
    tensors_behind,
    why_not_projected,
    why_not_stored,
)
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import problems_of
from gnnserve_worker.layers.stored import RowParts, parts_of, stored_rows


def layer(conv: Convolution, **fields: object) -> LayerManifest:
    return LayerManifest((ConvolutionManifest(conv, width=4, **fields),))  # type: ignore[arg-type]


MUST_HAVE: dict[str, dict[str, Any]] = {
    "PNA": {"aggregations": ["Mean"]}, **{conv: {"mlp": [{"width": 4}]} for conv in ("GIN", "GINE", "GEN")},
}  # fmt: skip
"""Fields without which a convolution is not taken."""
GRAPHS = {"one type": one_type, "several types": several_types}


def scores_of(case: Case, part: LayersManifest, graph: ProgramGraph, type_: int = 0) -> np.ndarray:
    """What a part of the network gives of all nodes of a type, over whole lists."""
    schema, columns = case.graph.data.schema, case.graph.columns
    program = program_of(part, schema, columns, (type_,))
    runner = LayersRunner(tensors_behind(case.tensors, part, schema, columns), program, schema)
    nodes = schema.first_nodes[type_] + np.arange(schema.types[type_].nodes)
    return ProgramScores(program, graph, runner).scores(nodes)


def first_reads_products(layers: LayersManifest, graph: RandomGraph) -> bool:
    return not why_not_projected(layers, graph.data.schema)


def rows_behind(case: Case, count: int) -> list[np.ndarray]:
    """Rows of all nodes of each type behind the first layers."""
    schema, columns, graph = case.graph.data.schema, case.graph.columns, case.graph.as_programs_read
    features = [graph.rows(first + np.arange(kind.nodes), place) for place, first, kind in of_types(schema)]
    none = [np.zeros((len(one), 0), np.float32) for one in features]
    read = [RowParts(nothing, (), nothing, own) for nothing, own in zip(none, features, strict=True)]
    for number in range(count + 1):
        rest, alone = stored(case.layers, schema, columns, number), one_layer(case.layers, schema, columns, number)
        assert rest.stored is not UNSET
        rows = {row.type: row for row in rest.stored.rows}
        made = [*none]
        for place, row in rows.items():
            output = scores_of(case, alone, graph, place) if row.output else none[place]
            made[place] = stored_rows(row, output, read[place])
            assert made[place].shape[1] == row.columns
        graph = replace(graph, features=made)
        read = [
            parts_of(rows[place], one) if place in rows else RowParts(one, (), one, one)
            for place, one in enumerate(made)
        ]
    return made


def of_types(schema: GraphSchema) -> list[tuple[int, int, TypeManifest]]:
    return [(place, schema.first_nodes[place], kind) for place, kind in enumerate(schema.types)]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", Convolution)
def test_the_network_behind_stored_layers_gives_what_the_whole_one_gives(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], seed: int
) -> None:
    case = draw_case(seed, make, kind)
    schema, columns, graph = case.graph.data.schema, case.graph.columns, case.graph.as_programs_read
    whole = scores_of(case, case.layers, graph)
    for count in range(len(case.layers.layers) + 1):
        rest = stored(case.layers, schema, columns, count)
        found = scores_of(case, rest, replace(graph, features=rows_behind(case, count)))
        np.testing.assert_allclose(found, whole, rtol=0, atol=case.tolerance, err_msg=f"{count} of {case.layers}")


def test_layers_that_are_not_there_are_not_stored() -> None:
    case = draw_case(0, one_type, Convolution.GCN)
    schema, columns, count = case.graph.data.schema, case.graph.columns, len(case.layers.layers)
    assert not why_not_stored(case.layers, count)
    problem = f"{count + 1} is no layer of the network, which has {count}"
    assert why_not_stored(case.layers, count + 1) == problem
    with pytest.raises(ValueError, match=problem):
        stored(case.layers, schema, columns, count + 1)
    rest = stored(case.layers, schema, columns, 1)
    assert why_not_stored(rest, 1) == "1 layers before these are stored already"


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", PROJECTED)
def test_a_first_layer_over_products_gives_what_it_gives_over_rows(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], seed: int
) -> None:
    def fits(layers: LayersManifest, graph: RandomGraph) -> bool:
        has_kind = any(conv.conv is kind for conv in layers.layers[0].convs)
        return has_kind and first_reads_products(layers, graph)

    case = draw_case(seed, make, kind, fits)
    schema, columns, graph = case.graph.data.schema, case.graph.columns, case.graph.as_programs_read
    whole = scores_of(case, case.layers, graph)
    layers = projected(case.layers, schema, columns)
    made = replace(case, layers=layers, tensors=projected_tensors(case.tensors, case.layers, schema, columns))
    said = f"{case.layers}"
    np.testing.assert_allclose(scores_of(made, layers, graph), whole, rtol=0, atol=case.tolerance, err_msg=said)
    found = scores_of(made, stored(layers, schema, columns, 0), replace(graph, features=rows_behind(made, 0)))
    np.testing.assert_allclose(found, whole, rtol=0, atol=case.tolerance, err_msg=said)


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        pytest.param(
            layer(Convolution.GRAPH_SAGE, aggregations=(Aggregation.MAX,)),
            "layers[0]: conv GraphSAGE: aggregations Max do not commute with products, as Mean or Sum alone does",
            id="max",
        ),
        pytest.param(
            layer(Convolution.GRAPH_SAGE, projects=True),
            "layers[0]: conv GraphSAGE: project stands between rows and what is aggregated", id="project",
        ),
        pytest.param(
            layer(Convolution.PNA), "layers[0]: conv PNA: it does not commute with products of rows", id="PNA"
        ),
        pytest.param(
            msgspec.structs.replace(layer(Convolution.GCN), is_pre_activated=True),
            "layers[0]: norm and activation stand before its convolutions", id="pre-activation",
        ),
        pytest.param(
            msgspec.structs.replace(layer(Convolution.GCN), residual=Residual.ADDED),
            "layers[0]: residual Added adds rows as they are", id="residual",
        ),
    ],
)  # fmt: skip
def test_a_first_layer_that_reads_rows_says_why(first: LayerManifest, problem: str) -> None:
    schema = one_type_schema(4, 4, 7)
    assert why_not_projected(LayersManifest((first,)), schema) == problem
    with pytest.raises(ValueError, match=re.escape(problem)):
        projected(LayersManifest((first,)), schema, (7,))


def test_a_network_whose_later_layers_read_its_input_keeps_rows() -> None:
    layers = LayersManifest((layer(Convolution.GCN), layer(Convolution.GCNII)))
    assert why_not_projected(layers, one_type_schema(4, 4, 7)) == "later layers read what stands before the first one"
    none = LayersManifest(())
    assert why_not_projected(none, one_type_schema(4, 4, 7)) == "there is no layer over features"


_SECOND = [{"conv": "GraphSAGE", "width": 4}]
FIRST_LAYERS: list[list[dict[str, Any]]] = [
    *([{"conv": conv, "width": 4, **MUST_HAVE.get(conv, {})}, *_SECOND] for conv in Convolution),
    *([{"conv": "GraphConv", "width": 4, "aggregations": list(some)}, *_SECOND]
      for some in [*((one,) for one in Aggregation), ("Mean", "Sum")]),
    *([{"conv": "GCN", "width": 4, "residual": one}, *_SECOND] for one in Residual),
    [{"conv": "GCN", "width": 4, "preActivation": True}, *_SECOND],
    [{"conv": "GraphSAGE", "width": 4, "project": True}, *_SECOND],
    [{"relations": [{"conv": "GCN", "width": 4}, {"conv": "GAT", "width": 4}]}, *_SECOND],
    [{"relations": [{"conv": "GCN", "width": 4}, {"conv": "GEN", "width": 4, "mlp": [{"width": 4}]}]}, *_SECOND],
    [{"conv": "GCN", "width": 4}, {"conv": "GCNII"}],
    *([{"conv": "GCN", "width": 4}, {**_SECOND[0], "residual": one, "residualOfInput": True}]
      for one in ("None", "Projected")),
]  # fmt: skip


@pytest.mark.parametrize("products", [[], [{"products": [{"width": 3}]}]], ids=["features", "products before"])
@pytest.mark.parametrize("listed", FIRST_LAYERS, ids=json.dumps)
def test_a_manifest_may_ask_for_products_exactly_where_some_stand_before_the_first_aggregation(
    listed: list[dict[str, Any]], products: list[dict[str, Any]]
) -> None:
    schema = one_type_schema(4, 4, 7)
    model = {"layers": listed, "before": products, "fanouts": [-1] * len(listed)}
    variants = {"channels": [{"factor": 2, "table": "Projected"}]}
    read = Model.model_validate(model)
    layers = layers_manifest(
        schema, 7, 2, read.before, read.layers or (), read.jumping_knowledge, read.head, head_reads_input=False
    )
    try:
        GNNServiceSpec.model_validate(
            {"graph": {"source": {"builtin": "Digits"}}, "model": model, "variants": variants}
        )
        is_taken = True
    except ValidationError as error:
        assert "no product stands before the first aggregation" in str(error)
        is_taken = False
    assert is_taken == (over_own_rows(layers, schema, (7,)) is not None)


def test_the_contract_lists_the_convolutions_that_read_products() -> None:
    assert set(COMMUTING) == PROJECTED.keys()


def test_a_file_in_which_a_layer_reads_products_that_there_are_not_is_refused() -> None:
    wrong = msgspec.structs.replace(layer(Convolution.PNA), reads_products=True)
    problems = problems_of(LayersManifest((wrong,)), one_type_schema(4, 4, 7), (7,))
    assert problems == ["layers[0]: conv PNA: it does not commute with products of rows"]
