"""Blocks of figures that are verdicts: what an issue wanted, what was measured, and whether that meets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figure_blocks import Results, figures, table


def verdict_table(found: Mapping[str, Any]) -> str:
    """The verdicts of a result file."""
    return table(
        ("", "wanted", "measured", ""),
        (
            (name, str(one["wanted"]), str(one["measured"]), "met" if one["passed"] else "**missed**")
            for name, one in found["verdicts"].items()
        ),
    )


@figures("channels")
def channels(results: Results) -> str:
    """The paper's two quantities beside ours; then every variant of channels on every graph."""
    found = results["channels"]
    graphs = found["graphs"]
    rows = []
    for kind, title in (("full", "all nodes"), ("batched", "1,024 nodes")):
        names = dict.fromkeys(
            one["name"] for graph in graphs for one in graph[kind] if one["times_of_table"] is not None
        )
        for name in names:
            cells = []
            for graph in graphs:
                one = next(one for one in graph[kind] if one["name"] == name)
                cells.append(f"{_times(one['times'])} ({one['times_of_table']:.2f}), {-one['lost_points']:+.2f}")
            rows.append((title, name, *cells))
    variants = table(("", "variant", *(graph["graph"] for graph in graphs)), rows)
    return f"{verdict_table(found)}\n\n{variants}"


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@figures("cascade")
def cascade(results: Results) -> str:
    return verdict_table(results["cascade"])


@figures("updates_faults")
def updates_faults(results: Results) -> str:
    """What was promised, and whether it was kept; then how long recoveries took."""
    if not results.has("updates_faults"):
        return ""
    found = results["updates_faults"]
    recoveries = table(
        ("fault", "times", "measured alone", "acknowledged again, p50 / p99 / longest, s", "all workers follow"),
        (
            (
                row["fault"],
                f"{found['faults'][row['fault']]:,}",
                f"{row['times']:,}",
                *(
                    " / ".join(f"{value:.2f}" for value in row[key].values())
                    for key in ("acknowledged_s", "followed_s")
                ),
            )
            for row in found["recoveries"]
        ),
    )
    return f"{verdict_table(found)}\n\n{recoveries}"


@figures("live_accuracy")
def live_accuracy(results: Results) -> str:
    return verdict_table(results["live_accuracy"])
