"""What passes leave of a network over listed layers gives what the whole network gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET
from tests.support.models.random_layers import Case, draw_case, one_type

from gnnserve_api.files.layers import Convolution, LayersManifest, StoredRowsManifest
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.passes import one_layer, stored, tensors_behind, why_not_stored
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.stored import RowParts, parts_of, stored_rows


def scores_of(case: Case, part: LayersManifest, graph: ProgramGraph) -> np.ndarray:
    """What a part of the network gives of all nodes, over whole lists."""
    schema, columns = case.graph.data.schema, case.graph.columns
    program = program_of(part, schema, columns)
    runner = LayersRunner(tensors_behind(case.tensors, part, schema, columns), program, schema)
    return ProgramScores(program, graph, runner).scores(np.arange(len(case.scores)))


def row_of(rest: LayersManifest) -> StoredRowsManifest:
    assert rest.stored is not UNSET
    (row,) = rest.stored.rows
    return row


def rows_behind(case: Case, count: int) -> np.ndarray:
    """Rows of all nodes behind the first layers."""
    schema, columns, graph = case.graph.data.schema, case.graph.columns, case.graph.as_programs_read
    features = graph.rows(np.arange(len(case.scores)), 0)
    output = scores_of(case, one_layer(case.layers, schema, columns, 0), graph)
    row = row_of(stored(case.layers, schema, columns, 0))
    rows = stored_rows(row, output, RowParts(output, (), output[:, :0], features))
    for number in range(1, count + 1):
        output = scores_of(case, one_layer(case.layers, schema, columns, number), replace(graph, features=[rows]))
        before, row = row, row_of(stored(case.layers, schema, columns, number))
        rows = stored_rows(row, output, parts_of(before, rows))
        assert rows.shape[1] == row.columns
    return rows


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", Convolution)
def test_the_network_behind_stored_layers_gives_what_the_whole_one_gives(kind: Convolution, seed: int) -> None:
    case = draw_case(seed, one_type, kind)
    schema, columns, graph = case.graph.data.schema, case.graph.columns, case.graph.as_programs_read
    whole = scores_of(case, case.layers, graph)
    for count in range(len(case.layers.layers) + 1):
        rest = stored(case.layers, schema, columns, count)
        found = scores_of(case, rest, replace(graph, features=[rows_behind(case, count)]))
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
