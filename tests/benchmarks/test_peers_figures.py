"""Figures about other servers, from results of before and after x1 and groups."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.page.peers_figures import peers, ratios_by_shape

RATIOS = {"one_seed_p50": 3.7, "throughput_32": 9.5, "seeds_1024": 7.7}
X1_RATIOS = {"one_seed_p50": 2.1, "throughput_32": 4.2, "seeds_1024": 3.3}
GRAPH = {"nodes": 1000, "edges": 2_300_000, "features": 128}


def _server(label: str, p50_ms: float) -> dict[str, Any]:
    median = {"p50_ms": p50_ms, "p99_ms": 2 * p50_ms, "requests_per_s": 1000 / p50_ms}
    names = ("one_seed", "throughput_32", "seeds_1024")
    return {"label": label, "workloads": {name: {"median": median} for name in names}}


def _result(shape: dict[str, Any]) -> dict[str, Any]:
    shapes = {
        name: {"graph": GRAPH, "ratios": RATIOS, "answeredBy": {"1": "projected"}, **shape}
        for name in ("arxiv", "reddit")
    }
    return {"shapes": shapes, "storage": "float32"}


WITHOUT_X1 = _result({"servers": {"gnnserve": _server("gnnserve, JSON", 0.25), "pyg": _server("PyG", 1.0)}})
WITH_X1 = _result(
    {
        "x1Ratios": X1_RATIOS,
        "groups": [
            {
                "ratios": {**RATIOS, "one_seed_p50": 3.7 + place},
                "x1Ratios": X1_RATIOS,
                "servers": {
                    "gnnserve": _server("gnnserve, JSON, projected", 0.25),
                    "gnnserve_x1": _server("gnnserve, JSON, x1", 0.5),
                    peer: _server(peer, 1.0),
                },
            }
            for place, peer in enumerate(("PyG", "Triton"))
        ],
    }
)


def test_a_result_without_x1_is_one_group_and_says_that_x1_was_not_measured() -> None:
    block = peers(WITHOUT_X1)
    assert "| PyG | 1.00 / 2.00 | 1.00 / 2.00 | 1,000 | 1.00 / 2.00 |" in block
    assert block.count("| **best other server over gnnserve** | 3.7 |  | 9.5 | 7.7 |") == 2
    assert "group" not in block
    assert block.endswith("gnnserve answers by variant projected, float32; x1 was not measured.")


def test_each_group_has_the_ratios_of_both_variants() -> None:
    block = peers(WITH_X1)
    rows = block.partition("group 2 of 2")[0].splitlines()
    assert rows[2].startswith("| *ogbn-arxiv's shape: 1,000 nodes, 2.3 million edges, 128 features; group 1 of 2*")
    assert [row.split(" | ")[0] for row in rows[3:8]] == [
        "| gnnserve, JSON, projected",
        "| gnnserve, JSON, x1",
        "| PyG",
        "| **best other server over gnnserve, projected**",
        "| **best other server over gnnserve, x1**",
    ]
    assert block.count("| **best other server over gnnserve, projected** | 4.7 |  | 9.5 | 7.7 |") == 2
    assert block.count("| **best other server over gnnserve, x1** | 2.1 |  | 4.2 | 3.3 |") == 4
    assert "pinned to x1, it computes the whole first layer in each request" in block


@pytest.mark.parametrize(
    ("found", "named", "words"),
    [
        (WITHOUT_X1, False, "9.5 and 9.5 times"),
        (WITHOUT_X1, True, "9.5 (ogbn-arxiv's shape) and 9.5 (Reddit's shape) times"),
        (WITH_X1, False, "9.5 and 9.5 times by projected, 4.2 and 4.2 times by x1"),
    ],
    ids=["without x1", "with the shapes in words", "both variants"],
)
def test_ratios_in_a_sentence_say_which_variant_they_are_of(found: dict[str, Any], named: bool, words: str) -> None:
    assert ratios_by_shape(found, "throughput_32", ("arxiv", "reddit"), " times", named=named) == words
