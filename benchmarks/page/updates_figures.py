"""Tables about changes of a graph that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.changes.updates_measured import TOGETHER
from benchmarks.page.figure_blocks import figures, paragraphs, table

_STAGES = ("finding", "lists", "rows", "sums", "deriving", "rest")
_LEAST_S = 0.05
"""Stages that take less are not listed."""


@figures("updates")
def updates(found: Any) -> str:
    """Changes in process and through HTTP, what readers pay, memory, compaction, starts, accuracy."""
    tables = (
        _applied, _durable, _beside_changes, _recommended, _gathered, _memory, _compacted, _started, _replayed,
    )  # fmt: skip
    return paragraphs(*(render(found) for render in tables))


def _applied(found: Mapping[str, Any]) -> str:
    return table(
        ("one thread, in process", "batch", "changes/s at first", "then", *(f"{stage}, %" for stage in _STAGES)),
        (
            (
                f"{shape['shape']}, {_kept(rate)}",
                f"{rate['batch']:,}",
                "" if rate["at_first_per_s"] is None else f"{rate['at_first_per_s']:,}",
                f"{rate['changes_per_s']:,}",
                *(f"{100 * rate['shares'][stage]:.0f}" for stage in _STAGES),
            )
            for shape in found["shapes"]
            for rate in shape["rates"]
        ),
    )


def _kept(rate: Mapping[str, Any]) -> str:
    stored = [f"stored{layer}" for layer in range(1, rate.get("layers", 1) + 1)]
    exact, stale = (stored[:1], stored[1:]) if rate.get("stale") else (stored, [])
    kept = f"{' and '.join(exact)} exact" if rate["stored"] else "without stored1"
    kept += f", {' and '.join(stale)} marked as stale" if stale else ""
    kept += f", {rate['together']:,} at a time" if rate.get("together", TOGETHER) != TOGETHER else ""
    return f"{kept}, nodes by degree" if rate["by_degree"] else kept


@figures("staleness")
def staleness(found: Any) -> str:
    """Differing answers by rule, times of requests, a stream of answers with tolerances, changes per second."""
    parts = [_differing(found)]
    parts += [_brought(found)] if found.get("overlays") else []
    parts.append(_times(found))
    parts += [_requests(each) for each in found.get("requests", ())]
    parts += [_tolerated(stream) for stream in found.get("streams", ())]
    parts += [render(found) for key, render in (("shapes", _applied), ("turns", _turns)) if key in found]
    return paragraphs(*parts)


def _requests(costs: Mapping[str, Any]) -> str:
    return table(
        (
            f"{costs['graph']}: requests that bring one of {costs['hidden']:,} nodes, mean of {costs['edges']:g} edges",
            "requests", "changed rows made anew, %", "rows", "p50, µs", "differing answers, %", "right, %",
        ),
        (
            (
                one["variant"], f"{one['seeds']:,}", "all" if one["share"] is None else f"{100 * one['share']:g}",
                f"{one['rows_made']:,.0f}", f"{one['p50_us']:,.0f}", f"{one['differing']:.2f}", f"{one['right']:.1f}",
            )
            for one in costs["costs"]
        ),
    )  # fmt: skip


def _turns(found: Mapping[str, Any]) -> str:
    return table(
        ("predictions beside changes", "changes/s", "applied/s", "p99 without, ms", "with", "times", "19 times in 20"),
        (
            (
                one["way"], f"{one['changes_per_s']:,}", f"{one['applied_per_s']:,}", f"{one['p99_without_ms']:.1f}",
                f"{one['p99_with_ms']:.1f}", f"{one['ratio']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}",
            )
            for one in found["turns"]
        ),
    )  # fmt: skip


def _tolerated(stream: Mapping[str, Any]) -> str:
    return table(
        (
            f"answers while {stream['changes']:,} changes come, tolerance in ‰", "answers", "from stored rows",
            "rows made anew by requests", "differing", "fewer right", "windows", "beyond the tolerance",
        ),
        (
            (
                f"{stream['graph']}, {one['tolerance_permille']:g}",
                *(
                    f"{one[name]:,}"
                    for name in ("answers", "stored", "rows_made", "differing", "lost", "windows", "exceeded")
                ),
            )
            for one in stream["kept"]
        ),
    )  # fmt: skip


def _differing(found: Mapping[str, Any]) -> str:
    measured = found.get("differences", [])
    rules = [*dict.fromkeys(rule for one in measured for rule in one["by_rule"])]
    return table(
        (
            "differing answers, %", "changes", "scores stored", "none made anew",
            *(f"{rule}, 5 / 20 %" for rule in rules), "rank correlation",
        ),
        (
            (
                f"{one['graph']}, {one['layers']} layers, {one['aggregation']}",
                one["scene"],
                "" if one["scores_stored"] is None else f"{one['scores_stored']:.2f}",
                f"{one['none']:.2f}",
                *(f"{one['by_rule'][rule][0]:.2f} / {one['by_rule'][rule][1]:.2f}" for rule in rules),
                f"{one['rank_correlation']:.2f}",
            )
            for one in measured
        ),
    )  # fmt: skip


def _brought(found: Mapping[str, Any]) -> str:
    rules = [*dict.fromkeys(rule for one in found["overlays"] for rule in one["by_rule"])]
    return table(
        (
            "new nodes of requests, three layers: differing answers, %", "nodes", "rows changed", "none made anew",
            *(f"{rule}, 5 / 20 %" for rule in rules), "right answers, %: 0 / 5 / 20 / 100 % made anew",
            "entries read for that",
        ),
        (
            (
                f"{one['graph']}, {one['aggregation']}", f"{one['asked']:,}", f"{one['rows']:.1f}",
                f"{one['none']:.2f}",
                *(f"{one['by_rule'][rule][0]:.2f} / {one['by_rule'][rule][1]:.2f}" for rule in rules),
                " / ".join(f"{share:.1f}" for share in one["accuracy"]),
                " / ".join(f"{count:,.0f}" for count in one["entries"]),
            )
            for one in found["overlays"]
        ),
    )  # fmt: skip


def _times(found: Mapping[str, Any]) -> str:
    return table(
        ("requests, three layers", "nodes", "stale rows made anew, %", "rows", "p50, µs", "differing answers, %"),
        (
            (
                f"{costs['graph']}, {one['variant']}",
                f"{one['seeds']:,}",
                "none is stale" if one["share"] is None else f"{100 * one['share']:g}",
                f"{one['rows_made']:,.0f}",
                f"{one['p50_us']:,.0f}",
                f"{one['differing']:.2f}",
            )
            for costs in found.get("costs", [])
            for one in costs["costs"]
        ),
    )


def _durable(found: Mapping[str, Any]) -> str:
    return table(
        ("8 clients, through HTTP", "batch", "durable changes/s at first", "then", "acknowledged, p50 / p99 ms"),
        (
            (
                service["service"],
                f"{rate['batch']:,}",
                f"{rate['at_first_per_s']:,}",
                f"{rate['changes_per_s']:,}",
                f"{rate['p50_ms']:.2f} / {rate['p99_ms']:.2f}",
            )
            for service in (*found["services"], *found.get("recommending", ()))
            for rate in service["rates"]
        ),
    )


def _beside_changes(found: Mapping[str, Any]) -> str:
    costs = [(service, cost) for service in found["services"] for cost in service["predictions"]]
    return _costs("predictions at 70 % of the capacity", costs)


def _recommended(found: Mapping[str, Any]) -> str:
    services = found.get("recommending", ())
    costs = [(service, cost) for service in services for cost in service["recommendations"]]
    return _costs("recommendations by links at 70 % of the capacity", costs) if costs else ""


def _costs(title: str, costs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    return table(
        (title, "changes/s offered", "acknowledged meanwhile", "p99 without, ms", "with", "with over without"),
        (
            (
                f"{service['service']}, {service['variant']}",
                f"{cost['changes_per_s']:,}",
                "" if cost.get("acknowledged_per_s") is None else f"{cost['acknowledged_per_s']:,}",
                f"{cost['p99_without_ms']:.2f}",
                f"{cost['p99_with_ms']:.2f}",
                _ratio(cost),
            )
            for service, cost in costs
        ),
    )


def _ratio(measured: Mapping[str, Any]) -> str:
    return f"{measured['ratio']:.2f} ({measured['low']:.2f} to {measured['high']:.2f})"


def _gathered(found: Mapping[str, Any]) -> str:
    return table(
        ("1,024 seeds, in process", "nodes with other features, %", "mapped, ms", "living over mapped"),
        (
            (
                f"{shape['shape']}, {one['variant']}",
                f"{100 * one['changed_rows']:g}",
                f"{one['mapped_ms']:.3g}",
                _ratio(one),
            )
            for shape in found["shapes"]
            for one in shape["gathering"]
        ),
    )


def _memory(found: Mapping[str, Any]) -> str:
    return table(
        ("memory of changes", "changes", "counted against maxDelta, bytes a change", "of the process, bytes a change"),
        (
            (
                shape["shape"],
                f"{point['changes']:,}",
                f"{point['delta_bytes'] / point['changes']:,.0f}",
                f"{point['anonymous_bytes'] / point['changes']:,.0f}",
            )
            for shape in found["shapes"]
            for point in shape["memory"]
        ),
    )


def _compacted(found: Mapping[str, Any]) -> str:
    return table(
        ("compaction", "seconds", "by stage", "start before / after, s", "peak memory, GB", "log, GB"),
        (
            (
                f"{one['shape']}, {one['changes']:,} edges",
                f"{one['took_s']:.0f}",
                ", ".join(
                    f"{stage} {seconds:.1f}" for stage, seconds in one["stages_s"].items() if seconds >= _LEAST_S
                ),
                f"{one['start_with_log_s']:.1f} / {one['start_after_s']:.1f}",
                f"{one['peak_bytes'] / 1e9:.1f}",
                f"{one['log_bytes'] / 1e9:.2f}",
            )
            for one in found.get("compactions", ())
        ),
    )


def _started(found: Mapping[str, Any]) -> str:
    if not found.get("starts"):
        return ""
    return table(
        (
            "start over small batches",
            "records",
            "changes",
            "applying them, s, median of three",
            "the first of the three",
            "loading the revision, s",
        ),
        (
            (
                one["shape"],
                f"{one['records']:,}",
                f"{one['changes']:,}",
                f"{one['replay_s']:.2f}",
                f"{one['replays_s'][0]:.2f}",
                f"{one['load_s']:.2f}",
            )
            for one in found.get("starts", ())
        ),
    )


def _replayed(found: Mapping[str, Any]) -> str:
    return table(
        ("graph", "variant", "accuracy on what arrived", "over the graph built anew"),
        (
            (graph["graph"], one["variant"], f"{one['changed']:.4f}", f"{one['rebuilt']:.4f}")
            for graph in found["graphs"]
            for one in graph["variants"]
        ),
    )
