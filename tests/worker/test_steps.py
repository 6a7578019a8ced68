"""Guesses of what a generation takes, before anything of it was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.steps import GraphSizes, steps_of

DIGITS = GraphSizes(nodes=1797, neighbours=13.7, columns=64, numbers=31.0, train=1257, validation=180)


def training_s(sizes: GraphSizes) -> float:
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"fanouts": [25, 10], "hidden": 128, "training": {"epochs": 50, "batchSize": 256}},
        }
    )
    return next(step.seconds for step in steps_of(spec, sizes, 3.0) if step.stage == "train x1")


def test_a_node_that_the_neighbourhoods_of_a_batch_share_is_guessed_to_be_read_once() -> None:
    spread_out = replace(DIGITS, nodes=10**9)

    assert training_s(DIGITS) < training_s(spread_out) / 4


def test_where_neighbourhoods_hardly_meet_the_size_of_the_graph_changes_no_guess() -> None:
    assert training_s(replace(DIGITS, nodes=10**8)) == pytest.approx(training_s(replace(DIGITS, nodes=10**9)), rel=0.01)
