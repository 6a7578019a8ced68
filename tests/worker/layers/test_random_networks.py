"""Networks of layers that are drawn from all operations answer as torch_geometric's modules of the same description."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.support.models.random_layers import Case, RandomGraph, draw_case, one_type, several_types

from gnnserve_api.files.layers import Convolution
from gnnserve_worker.generation.programs.running import ProgramScores
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner

GRAPHS = {"one type": one_type, "several types": several_types}


def scores_of(case: Case, nodes: np.ndarray) -> np.ndarray:
    """Scores over whole lists, as a revision computes them."""
    schema = case.graph.data.schema
    program = program_of(case.layers, schema, case.graph.columns)
    runner = LayersRunner(case.tensors, program, schema)
    return ProgramScores(program, case.graph.as_programs_read, runner).scores(nodes)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", Convolution)
def test_answers_are_torch_geometrics(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], seed: int
) -> None:
    case = draw_case(seed, make, kind)
    count = len(case.scores)
    for nodes in (np.array([0]), np.array([count - 1]), np.random.default_rng(seed).permutation(count)):
        np.testing.assert_allclose(
            scores_of(case, nodes), case.scores[nodes], rtol=0, atol=case.tolerance, err_msg=f"{case.layers}"
        )
