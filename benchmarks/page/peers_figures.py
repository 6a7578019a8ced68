"""Figures about other servers: the block of the comparison, and what other blocks quote of it.

A result holds each shape's servers in groups, which were up at different times: figures compare within a group. One
from before there were groups, and before x1 took part, is a single group without x1's ratios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.page.figure_blocks import SHAPE_WORDS, figures, number, table

HEAD = ("p50 / p99, ms", "one seed", "one seed, 32 connections", "requests/s at 32", "1024 seeds in a request")
_WORKLOADS = ("one_seed", "throughput_32", "seeds_1024")


@figures("peers")
def peers(found: Any) -> str:
    rows = list[list[str]]()
    for name, shape in found["shapes"].items():
        graph, groups = shape["graph"], shape.get("groups", [shape])
        size = f"{graph['nodes']:,} nodes, {graph['edges'] / 1e6:.1f} million edges, {graph['features']} features"
        for place, group in enumerate(groups, start=1):
            which = f"; group {place} of {len(groups)}" if len(groups) > 1 else ""
            rows.append([f"*{SHAPE_WORDS[name]}: {size}{which}*", "", "", "", ""])
            rows += (server_row(server) for server in group["servers"].values())
            rows += _ratio_rows(group, _answering(found))
    return f"{table(HEAD, rows)}\n\n{_who_answers(found)}"


def server_row(server: Mapping[str, Any]) -> list[str]:
    """Below `HEAD`."""
    medians = {load: run["median"] for load, run in server["workloads"].items() if run and run.get("median")}
    one, busy, many = (_percentiles(medians.get(load)) for load in _WORKLOADS)
    rate = f"{medians['throughput_32']['requests_per_s']:,.0f}" if "throughput_32" in medians else ""
    return [server["label"], one, busy, rate, many]


def _percentiles(median: Mapping[str, float] | None) -> str:
    return "" if median is None else f"{number(median['p50_ms'])} / {number(median['p99_ms'])}"


def _ratio_rows(group: Mapping[str, Any], variant: str) -> list[list[str]]:
    words = "best other server over gnnserve"
    if "x1Ratios" not in group:
        return [ratio_row(words, group["ratios"])]
    return [ratio_row(f"{words}, {variant}", group["ratios"]), ratio_row(f"{words}, x1", group["x1Ratios"])]


def ratio_row(words: str, ratios: Mapping[str, float]) -> list[str]:
    """Below `HEAD`."""
    one, busy, many = (f"{ratios[key]:.1f}" for key in ("one_seed_p50", "throughput_32", "seeds_1024"))
    return [f"**{words}**", one, "", busy, many]


def _who_answers(found: Mapping[str, Any]) -> str:
    answers = f"gnnserve answers by variant {_answering(found)}, {found['storage']}"
    if not has_x1(found):
        return f"{answers}; x1 was not measured."
    return (
        f"{answers}, whose first layer is multiplied ahead of time; pinned to x1, it computes the whole first layer in "
        "each request, as the other servers do."
    )


def _answering(found: Mapping[str, Any]) -> str:
    """The variants by which gnnserve answered, beside x1 where that was measured."""
    return " and ".join(
        sorted({variant for shape in found["shapes"].values() for variant in shape["answeredBy"].values()})
    )


def has_x1(found: Mapping[str, Any]) -> bool:
    return all("x1Ratios" in shape for shape in found["shapes"].values())


def ratios_by_shape(
    found: Mapping[str, Any], measure: str, shapes: Sequence[str], unit: str = "", *, named: bool = False
) -> str:
    """The ratio on each shape, of x1 as well where that was measured. `named`: with the shape in words."""

    def words(key: str) -> str:
        return " and ".join(
            f"{found['shapes'][shape][key][measure]:.1f}" + (f" ({SHAPE_WORDS[shape]})" if named else "")
            for shape in shapes
        )

    if not has_x1(found):
        return words("ratios") + unit
    return f"{words('ratios')}{unit} by {_answering(found)}, {words('x1Ratios')}{unit} by x1"
