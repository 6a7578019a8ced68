"""The paper's tables are typed as its text prints them, and its sizes follow from the widths."""

from __future__ import annotations

import pytest
from benchmarks.engine.paper_tables import CELLS, FACTORS, GRAPHS, MODELS, fixed_share, weight_bytes

from gnnserve_api.variants import columns_of

RATIOS = {
    "GIN": {
        "flickr": (1.79, 3.62, 5.60), "arxiv": (1.49, 2.06, 2.59), "reddit": (1.79, 3.20, 5.28),
        "yelp": (1.73, 3.21, 4.65), "products": (1.96, 2.73, 3.63),
    },
    "GraphSAGE": {
        "flickr": (1.73, 3.55, 5.35), "arxiv": (1.44, 1.98, 2.29), "reddit": (1.85, 3.31, 5.46),
        "yelp": (1.78, 3.43, 4.72), "products": (1.97, 2.70, 3.44),
    },
}  # fmt: skip
"""Latency of 1x over 2x, 4x and 8x, derived from the paper's table 3 apart from this code."""
CELL = pytest.mark.parametrize(("name", "model"), [(name, model) for name in GRAPHS for model in MODELS])


@CELL
def test_latencies_give_the_ratios_of_the_paper(name: str, model: str) -> None:
    cells = CELLS[name, model]
    found = [cells[1].latency_ms / cells[factor].latency_ms for factor in FACTORS[1:]]
    assert found == pytest.approx(RATIOS[model][name], abs=0.0051)


@CELL
@pytest.mark.parametrize("factor", FACTORS)
def test_sizes_follow_from_the_widths(name: str, model: str, factor: int) -> None:
    graph = GRAPHS[name]
    kib = weight_bytes(graph, model, columns_of(graph.features, factor)) / 1024
    framing = {"GraphSAGE": (5.5, 8.1), "GIN": (11.6, 17.0)}[model]
    assert framing[0] <= CELLS[name, model][factor].size_kib - kib <= framing[1]


@CELL
@pytest.mark.parametrize("factor", FACTORS)
def test_memory_is_the_pruned_features_with_the_labels(name: str, model: str, factor: int) -> None:
    graph = GRAPHS[name]
    mib = graph.nodes * (4 * columns_of(graph.features, factor) + graph.label_bytes) / 2**20
    assert CELLS[name, model][factor].memory_mib == pytest.approx(mib, rel=0.042, abs=5.5)


def test_what_pruning_leaves_of_the_products() -> None:
    flickr = GRAPHS["flickr"]
    # 26 rows of 62·64 and 64·256, and for the seed 256·64 and 64·7
    fixed = 26 * 64 * 256 + 256 * 64 + 64 * 7
    assert fixed_share(flickr, "GIN", 62, 1024, 25) == pytest.approx(fixed / (fixed + 26 * 62 * 64))
    assert fixed_share(flickr, "GraphSAGE", 500, 1024, 25) == pytest.approx(7 / (26 * 500 + 7))


def test_the_transfer_takes_its_share_of_the_latency() -> None:
    # 54.3 ms as comm : comp = 12.64 : 1
    assert CELLS["reddit", "GraphSAGE"][1].transfer_ms == pytest.approx(51.86 * 12.64 / 13.64)
