"""The comparison over several types: what servers are verified by, and what becomes of the figures."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.relations.batch_training import errors_below
from benchmarks.relations.relations_graph import CLASSES, TypedFiles, random_weights, write_typed
from benchmarks.relations.relations_peers import service_manifest
from benchmarks.shapes import FANOUTS
from tests.support.graphs.several_types import load_types
from torch_geometric.nn import HeteroConv, SAGEConv

from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.store import GraphData

PROGRAMS = Path(__file__).parents[2] / "benchmarks/peers/programs"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TypedFiles:
    return write_typed(tmp_path_factory.mktemp("typed"), 1 / 2048)


@pytest.fixture(scope="module")
def data(files: TypedFiles) -> GraphData:
    return load_types(HeterogeneousSource.model_validate(files.source))


def test_probes_scores_are_those_of_torch_geometric_over_all_neighbours(files: TypedFiles, data: GraphData) -> None:
    states = {kind.name: torch.from_numpy(np.asarray(kind.features)) for kind in data.types}
    lists = {
        (one.source, one.name, one.target): torch.from_numpy(
            np.stack([one.lists.indices.astype(np.int64), one.lists.targets()])
        )
        for one in data.relations
    }
    weights = random_weights(data)
    for layer, width in enumerate((files.described["hidden"], CLASSES)):
        network = HeteroConv({key: SAGEConv((128, 128), width) for key in lists})
        prefix = f"convs.{layer}."
        network.load_state_dict(
            {key.removeprefix(prefix): torch.from_numpy(one) for key, one in weights.items() if key.startswith(prefix)}
        )
        with torch.inference_mode():
            states = network(states, lists)
        states = states if layer else {name: state.relu() for name, state in states.items()}
    assert np.abs(states["paper"][files.seeds_end :].numpy() - files.probe_scores()).max() < 1e-4


def test_probes_neighbourhoods_fit_every_fan_out_and_load_asks_for_other_nodes(
    files: TypedFiles, data: GraphData
) -> None:
    probes = {kind.name: kind.nodes for kind in data.types}
    for one in data.relations:
        of_probes = 64 if one.target in {"paper", "author"} else 16
        degrees = np.diff(one.lists.indptr)[probes[one.target] - of_probes :]
        assert 0 < degrees.min() <= degrees.max() <= min(FANOUTS)
    assert files.seeds_end == data.target.nodes - len(files.probe_scores())


def test_the_manifest_of_our_server_is_valid_and_pinned_to_the_projected_variant(files: TypedFiles) -> None:
    service = GNNService.model_validate(service_manifest(files))
    assert (service.spec.routing.mode, service.spec.routing.variant) == ("Static", "projected")


def test_hops_are_counted_from_the_order_of_a_sample() -> None:
    """Two seeds (papers 0, 1); hop 1 brings authors 0, 1 and paper 2; hop 2 paper 3 by author 1, and author 2."""
    writes, cites, wrote = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "wrote", "author")
    sources = {writes: [0, 1, 1, 2], cites: [2], wrote: [0, 3]}
    readers = {writes: [0, 0, 1, 2], cites: [1], wrote: [0, 1]}
    nodes, edges = runpy.run_path(str(PROGRAMS / "hops.py"))["count_hops"](
        {"paper": torch.arange(4), "author": torch.arange(3), "field": torch.arange(0)},
        {key: torch.tensor(one) for key, one in sources.items()},
        {key: torch.tensor(one) for key, one in readers.items()},
        "paper", 2,
    )  # fmt: skip
    assert nodes == {"paper": [2, 1, 1], "author": [0, 2, 1], "field": [0, 0, 0]}
    assert edges == {writes: [3, 1], cites: [1, 0], wrote: [0, 2]}


def test_batches_are_judged_by_the_standard_error_of_their_difference() -> None:
    def trained(batches: str, score: float, deviation: float) -> dict[str, object]:
        of = {"graph": "acm", "architecture": "RGCN", "batches": batches}
        return {**of, "macroF1": score, "deviation": deviation, "seeds": 4}

    found = {"batchTraining": [trained("WholeGraph", 0.9, 0.03), trained("Sampled", 0.85, 0.04)]}
    assert errors_below("acm", "RGCN", found) == 2
    found["batchTraining"][1] = trained("Sampled", 0.91, 0.04)
    below = errors_below("acm", "RGCN", found)
    assert below is not None and below < 0
    quick = {"batchTraining": [{**one, "seeds": 1} for one in found["batchTraining"]]}
    assert errors_below("acm", "RGCN", quick) is None
    with pytest.raises(LookupError):
        errors_below("imdb", "RGCN", found)
