"""Tables about what runs in process: the engine, a GPU's cache in simulation, imports, starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.page.figure_blocks import SHAPE_WORDS, figures, number, paragraphs, table

_MIB, _GIB = 2.0**20, 2.0**30
_FACTORS = ("x1", "x2", "x4", "x8", "projected")


@figures("roofline")
def roofline(found: Any) -> str:
    rows, sampling = [], []
    for name, shape in found["shapes"].items():
        variants = shape["variants"]
        for storage in dict.fromkeys(variant["storage"] for variant in variants.values()):
            cells = []
            for factor in _FACTORS:
                label = factor if storage == "float32" else f"{factor}-{storage}"
                run = variants[label]["seeds"]["1024"] if label in variants else None
                cells.append("" if run is None else f"{number(run['p50_ms'])} ({run['over_bound']:.1f})")
            rows.append([f"{SHAPE_WORDS[name]}, {storage}", *cells])
        sampling.append((SHAPE_WORDS[name], shape["samplingUsPerSeed"]))
    batches = list(dict.fromkeys(seeds for _, costs in sampling for seeds in costs))
    return paragraphs(
        table(("1024 seeds, ms (over the bound)", *_FACTORS), rows),
        table(
            ("sampling alone on one core, µs a seed", *(f"batches of {seeds}" for seeds in batches)),
            (
                (name, *(f"{costs[seeds]:.1f}" if seeds in costs else "" for seeds in batches))
                for name, costs in sampling
            ),
        ),
    )


@figures("scaling")
def scaling(found: Any) -> str:
    return paragraphs(
        table(
            ("nodes of the graph", "1 seed, µs", "1024 seeds in a batch, µs a seed"),
            (
                (f"{size['nodes']:,}", *(f"{point['us_per_seed']:.1f}" for point in size["points"]))
                for size in found["graphSize"]
            ),
        ),
        table(
            ("seeds in a batch", "p50 ms", "µs a seed"),
            (
                (f"{point['seeds']:,}", number(point["p50_ms"]), f"{point['us_per_seed']:.1f}")
                for point in found["batchSize"]
            ),
        ),
        table(
            ("seeds", "p99 with a hub of a million neighbours, ms", "without", "ratio"),
            (
                (
                    str(point["seeds"]),
                    number(point["with_hub"]["p99_ms"]),
                    number(point["without"]["p99_ms"]),
                    f"{point['p99_ratio']:.2f}",
                )
                for point in found["degreeSkew"]["points"]
            ),
        ),
        table(
            ("variants of one table in turns", "x1, p50 ms of 1 seed", "of 1024"),
            (
                (str(one["variants"]), *(number(point["p50_ms"]) for point in one["x1"]))
                for one in found["variants"]
            ),
        ),
        *(_sharing(name, of_table) for name, of_table in found["sharing"]["tables"].items()),
        table(
            ("1024 seeds, of which are different", "computed once, ms", "each, ms", "ratio"),
            (
                (one["seeds"], number(one["once_ms"]), number(one["each_ms"]), f"{one['once_over_each']:.2f}")
                for one in found["repeated_seeds"]
            ),
        ),
    )  # fmt: skip


def _sharing(name: str, of_table: Mapping[str, Any]) -> str:
    head = f"{name} table ({of_table['features']} features): share of draws that are distinct"
    return table(
        (head, "with sharing, ms", "without", "ratio"),
        (
            (f"{one['share']:g}", number(one["with_ms"]), number(one["without_ms"]), f"{one['with_over_without']:.2f}")
            for one in of_table["points"]
        ),
    )


@figures("shapes")
def shapes(found: Any) -> str:
    by_graph: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in found["rows"]:
        by_graph.setdefault(row["graph"], {}).setdefault(row["model"], []).append(row)

    def cell(rows: list[Mapping[str, Any]]) -> str:
        first, *pruned = sorted(rows, key=lambda row: row["factor"])
        ratios = ", ".join(f"{row['ratio']:.2f} ({row['paper_ratio']:.2f})" for row in pruned)
        return f"{first['window_p50_ms']:.0f}; {ratios}"

    models = ("GraphSAGE", "GIN")
    return table(
        ("1x, ms; 1x over 2x, 4x, 8x (the paper's)", *models),
        ([graph, *(cell(by_model[model]) for model in models)] for graph, by_model in by_graph.items()),
    )


@figures("startup")
def startup(found: Any) -> str:
    stages = ("readyS", "importsS", "openS", "warmUpS")
    moments = ("whenReady", "afterRequests", "duringBurst", "afterBurst")
    words = {"shipped": "compiled ahead, as in images", "none": "none: compiled at the start"}
    return table(
        ("kernels", "ready, s", "imports, s", "opening, s", "warming up, s", "anonymous memory when ready, MiB",
         "after requests", "during a burst", "after it"),
        (
            (
                words[case["kernels"]],
                *(f"{case[stage]:.2f}" for stage in stages),
                *(f"{case[moment]['anonymousBytes'] / _MIB:.0f}" for moment in moments),
            )
            for case in found["cases"]
        ),
    )  # fmt: skip


@figures("import")
def imports(found: Any) -> str:
    return table(
        ("format", "ids", "importer", "seconds (least to most)", "million edges a second", "peak memory, GiB"),
        (
            (
                case["format"],
                case["ids"],
                case["importer"],
                f"{case['seconds']:.0f} ({case['lowestSeconds']:.0f} to {case['highestSeconds']:.0f})",
                f"{case['edgesPerSecond'] / 1e6:.1f}",
                f"{case['peakBytes'] / _GIB:.1f}",
            )
            for case in found["cases"]
        ),
    )


@figures("cache")
def cache(found: Any) -> str:
    """Hit rates by trace, at the middle capacity; the result has all capacities."""
    return paragraphs(
        _hit_rates("", found["traces"]),
        _hit_rates(", links within communities", found.get("communities", {})),
    )


_CAPACITY = "10"
"""Percent of the rows."""


def _hit_rates(which: str, traces: Mapping[str, Any]) -> str:
    shown = {name: trace for name, trace in traces.items() if name.endswith(f"/{_CAPACITY}")}
    policies = list(dict.fromkeys(policy for trace in shown.values() for policy in trace["hit_rate"]))
    return table(
        (f"hit rates, %; {_CAPACITY} % of the rows{which}", *policies),
        (
            (name.removesuffix(f"/{_CAPACITY}"), *(f"{trace['hit_rate'][policy]:.1f}" for policy in policies))
            for name, trace in shown.items()
        ),
    )


@figures("cache_stress")
def cache_stress(found: Any) -> str:
    return table(
        ("mistake that is made", "rows read from the cache", "torn", "misplaced", "old", "rows changed meanwhile"),
        (
            (
                mistake,
                *(f"{one[count]:,}" for count in ("hits", "torn", "misplaced", "stale", "rows_changed")),
            )
            for mistake, one in found["mistakes"].items()
        ),
    )
