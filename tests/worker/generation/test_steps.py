"""What a generation learns, and guesses of what it takes, before anything of it was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.lessons import lessons_of, searched_of, steps_of

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


def spec_of(variants: dict[str, Any], **stated: Any) -> GNNServiceSpec:
    graph = {"source": {"builtin": "Digits"}}
    model = {"fanouts": [4, 3], "hidden": 8, **stated.pop("model", {})}
    return GNNServiceSpec.model_validate({"graph": graph, "model": model, "variants": variants, **stated})


ALL = {
    "pruning": {"factors": [4, 1, 2], "choice": "Auto", "stabilitySeeds": 1}, "oneRow": [{"hops": 1}, {"hops": 0}],
    "channels": [{"factor": 2, "columnFactor": 2}, {"factor": 4, "table": "Projected"}],
}  # fmt: skip


OF_LINKS = {"task": {"links": {}}, "model": {"architecture": "LightGCN", "fanouts": [0]}}
OF_ALL = "x1, rank by Greedy, choose factors, network of seed 1, x2, x4, channels2-x2, channels4, mlp0, mlp1"


@pytest.mark.parametrize(
    ("spec", "listed"),
    [
        (spec_of(ALL), OF_ALL),
        (spec_of({"pruning": {"factors": [2], "method": "Random"}, "projection": "Disabled"}), "rank by Random, x2"),
        (spec_of({"search": "Auto"}), "x1, rank by Greedy"),
        (spec_of({"pruning": {"factors": [1]}}, **OF_LINKS), "x1"),
    ],
    ids=["all kinds", "no network of all columns", "a search", "embeddings"],
)
def test_what_is_learnt_is_a_list_in_which_what_is_needed_comes_first(spec: GNNServiceSpec, listed: str) -> None:
    lessons = lessons_of(spec)

    names = [lesson.name for lesson in lessons]
    assert ", ".join(names) == listed
    for place, lesson in enumerate(lessons):
        assert lesson.why
        assert {*lesson.needs} <= {*names[:place]}


def test_a_search_may_learn_what_it_finds_promising() -> None:
    lessons = searched_of(spec_of({"search": "Auto"}))

    assert [lesson.name for lesson in lessons] == ["x2", "x4", "x8", "mlp0", "mlp1", "mlp2"]
    assert all(lesson.why.startswith("where a search finds it promising: ") for lesson in lessons)
