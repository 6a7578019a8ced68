"""What passes leave of a network over listed layers gives what the whole network gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET
from tests.support.models.random_layers import Case, RandomGraph, draw_case, one_type, several_types

from gnnserve_api.files.graph_schema import GraphSchema, TypeManifest
from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.passes import one_layer, stored, tensors_behind, why_not_stored
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.stored import RowParts, parts_of, stored_rows

GRAPHS = {"one type": one_type, "several types": several_types}


def scores_of(case: Case, part: LayersManifest, graph: ProgramGraph, type_: int = 0) -> np.ndarray:
    """What a part of the network gives of all nodes of a type, over whole lists."""
    schema, columns = case.graph.data.schema, case.graph.columns
    program = program_of(part, schema, columns, (type_,))
    runner = LayersRunner(tensors_behind(case.tensors, part, schema, columns), program, schema)
    nodes = schema.first_nodes[type_] + np.arange(schema.types[type_].nodes)
    return ProgramScores(program, graph, runner).scores(nodes)


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
