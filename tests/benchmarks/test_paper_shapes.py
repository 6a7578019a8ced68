"""The paper's tables on synthetic graphs: their shapes and models, and how rows are compared with the paper's."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.engine.paper_shapes import compare, random_model, shape_of, table_of, verdicts_of
from benchmarks.engine.paper_tables import CELLS, FACTORS, GRAPHS, MODELS, weight_bytes
from benchmarks.shapes import SHAPES

from gnnserve_api.variants import columns_of


def rows(graph: str = "flickr", model: str = "GIN", **changed: dict[int, float]) -> list[dict[str, Any]]:
    """Measured just as the paper did; `changed` gives other figures by factor."""
    measured = []
    for factor in FACTORS:
        cell, columns = CELLS[graph, model][factor], columns_of(GRAPHS[graph].features, factor)
        size = weight_bytes(GRAPHS[graph], model, columns)
        row: dict[str, Any] = {
            "graph": graph, "model": model, "factor": factor, "columns": columns,
            "window_p50_ms": cell.latency_ms, "request_p50_ms": cell.latency_ms + 1,
            "gather_ms": cell.transfer_ms, "compute_ms": cell.latency_ms - cell.transfer_ms,
            "size_bytes": size, "memory_bytes": size + 4 * columns * GRAPHS[graph].nodes,
        }  # fmt: skip
        measured.append({**row, **{field: of[factor] for field, of in changed.items() if factor in of}})
    return compare(measured)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_shape_has_the_sizes_of_the_papers_graph(name: str) -> None:
    shape, graph = shape_of(name), GRAPHS[name]
    found = (shape.nodes, shape.edges, shape.features, shape.classes)
    assert found == (graph.nodes, graph.edges, graph.features, graph.classes)
    assert shape == SHAPES.get(name, shape), "files that are there already are used"


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_as_many_numbers_as_the_formula_says(name: str, model: str) -> None:
    tensors = random_model(GRAPHS[name], model)
    numbers = sum(tensor.nbytes for tensor in tensors.values())
    assert numbers == weight_bytes(GRAPHS[name], model, GRAPHS[name].features)


def test_rows_measured_as_the_paper_did_give_its_ratios() -> None:
    for row in rows():
        assert row["over_paper"] == pytest.approx(1, abs=0.001)
        assert row["differs"] == ""
    found = verdicts_of(rows())
    assert found["sizes_within_limits"]
    assert found["window_falls_with_every_factor"]
    assert (found["window_ratios_alike"], found["window_ratios_below_paper"]) == (3, [])
    assert found["memory_ratio_off_by"] < 0.07


def test_a_ratio_is_that_of_1x_over_kx() -> None:
    row = rows(window_p50_ms={1: 30.0, 4: 10.0})[2]
    assert (row["factor"], row["ratio"], row["paper_ratio"]) == (4, 3.0, 3.623)
    assert (row["ratio_columns"], row["ratio_cache_lines"]) == (4.0, 4.0)


def test_twelve_columns_take_a_whole_cache_line() -> None:
    row = rows("products")[3]
    assert (row["columns"], row["ratio_columns"], row["ratio_cache_lines"]) == (12, 8.333, 7.0)


def test_a_model_whose_computing_hardly_shrinks_is_told_so() -> None:
    measured = rows(
        window_p50_ms={1: 20.0, 8: 10.0}, gather_ms={1: 10.0, 8: 1.0}, compute_ms={1: 10.0, 8: 9.0}
    )  # fmt: skip
    assert measured[3]["differs"] == (
        "gather 10.00x faster (8.00x fewer cache lines), compute 1.11x (50% of 1x): computing weighs more than on a "
        "GPU, and 81% of its products are not pruned"
    )
    assert verdicts_of(measured)["window_ratios_below_paper"] == ["flickr GIN 8x"]


def test_a_window_that_shrinks_more_than_the_papers_is_told_so() -> None:
    measured = rows(window_p50_ms={1: 80.0, 8: 8.0}, gather_ms={1: 70.0, 8: 7.0}, compute_ms={1: 10.0, 8: 1.0})
    assert "no fixed cost of a copy" in measured[3]["differs"]
    assert verdicts_of(measured)["window_ratios_above_paper"][-1] == "flickr GIN 8x"


def test_a_file_that_is_too_large_is_named() -> None:
    found = verdicts_of(rows(size_bytes={2: 400_000}))
    assert (found["sizes_within_limits"], found["sizes_off"]) == (False, ["flickr GIN 2x"])


def test_a_window_that_does_not_fall_is_noticed() -> None:
    assert not verdicts_of(rows(window_p50_ms={1: 20.0, 2: 21.0}))["window_falls_with_every_factor"]


def test_the_table_has_a_line_for_each_row() -> None:
    assert table_of(rows()).row_count == len(FACTORS)
