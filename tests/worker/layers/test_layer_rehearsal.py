"""Rehearsed networks bring every kernel, for all types that others are run with: no first request compiles."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from tests.support.models.random_layers import Case, RandomGraph, draw_case, one_type, several_types

from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_worker.generation.programs.running import ProgramScores
from gnnserve_worker.kernel_cache import KERNELS
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.passes import projected, projected_tensors, why_not_projected
from gnnserve_worker.layers.rehearsal import rehearse_layers
from gnnserve_worker.layers.runner import LayersRunner


def kernels() -> set[tuple[str, str]]:
    """Kernels of layers that this process has, each with the types of its arguments."""
    return {
        (name, str(signature))
        for name, kernel in KERNELS.items()
        if ".layers." in name
        for signature in kernel.signatures
    }


def kernels_beyond_the_rehearsal() -> set[tuple[str, str]]:
    rehearse_layers()
    rehearsed = kernels()
    for kind in Convolution:
        for make in (one_type, several_types):
            case = draw_case(0, make, kind)
            run(case, case.layers, case.tensors)
            if kind in PROJECTED:
                case = draw_case(0, make, kind, reads_products)
                schema, columns = case.graph.data.schema, case.graph.columns
                tensors = projected_tensors(case.tensors, case.layers, schema, columns)
                run(case, projected(case.layers, schema, columns), tensors)
    return kernels() - rehearsed


def reads_products(layers: LayersManifest, graph: RandomGraph) -> bool:
    return not why_not_projected(layers, graph.data.schema)


def run(case: Case, layers: LayersManifest, tensors: Mapping[str, np.ndarray]) -> None:
    schema = case.graph.data.schema
    program = program_of(layers, schema, case.graph.columns)
    runner = LayersRunner(tensors, program, schema)
    ProgramScores(program, case.graph.as_programs_read, runner).scores(np.arange(3))


@pytest.mark.campaign
def test_a_rehearsal_brings_the_kernels_of_all_networks() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        assert process.submit(kernels_beyond_the_rehearsal).result() == set()
