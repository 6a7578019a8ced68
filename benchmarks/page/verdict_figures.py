"""Tables about variants, links, traces and services that share a server."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.page.figure_blocks import figures, paragraphs, table


@figures("channels")
def channels(found: Any) -> str:
    """The paper's two quantities beside ours; then every variant of channels on every graph."""
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
    return table(("", "variant", *(graph["graph"] for graph in graphs)), rows)


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@figures("cascade")
def cascade(found: Any) -> str:
    """Single variants and, of each pair, the point that is furthest to the left: what a cascade is held against."""
    return paragraphs(
        *(
            table(
                (f"{graph['graph']}, single variants", "validation", "test", "p50 ms, 1,024 nodes", "MB gathered"),
                (
                    (
                        one["name"],
                        f"{statistics.fmean(one['validation']):.4f}",
                        f"{statistics.fmean(one['test']):.4f}",
                        f"{one['p50_ms']:.3g}",
                        f"{one['gathered_bytes'] / 1e6:.2f}",
                    )
                    for one in graph["singles"]
                ),
            )
            for graph in found["graphs"]
        )
    )


@figures("links")
def links(found: Any) -> str:
    return paragraphs(_published_links(found), _pairs(found))


def _published_links(found: Any) -> str:
    gowalla, lastfm = found.get("gowalla"), found.get("lastfm")
    rows = []
    if gowalla is not None:
        rows += [("gowalla", name, gowalla[name], value, "LightGCN") for name, value in gowalla["published"].items()]
    if lastfm is not None:
        rows += [("lastfm", name, lastfm[name], value, "MAGNN") for name, value in lastfm["MAGNN"].items()]
    return table(
        ("graph", "measure", "here", "published", "by"),
        ((graph, name, f"{here:.4f}", f"{value:.4f}", by) for graph, name, here, value, by in rows),
    )


def _pairs(found: Any) -> str:
    timed = [found[name] for name in ("gowalla", "one type") if "pairs over nodes" in found.get(name, {})]
    return table(
        ("graph, variant", "1,024 pairs, p50 ms", "1,024 nodes, p50 ms", "ratio"),
        (
            (
                f"{one.get('graph', 'gowalla')}, {one['variant']}",
                f"{one['p50 ms of 1,024 pairs']:.3f}",
                f"{one['p50 ms of 1,024 nodes']:.3f}",
                f"{one['pairs over nodes']:.2f}",
            )
            for one in timed
        ),
    )


@figures("updates_faults")
def updates_faults(found: Any) -> str:
    """What was promised, and whether it was kept; then how long recoveries took."""
    return table(
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


@figures("live_accuracy")
def live_accuracy(found: Any) -> str:
    told, shadows = found["streams"]["labelsUntilTold"], found["shadows"]
    return table(
        ("", "measured"),
        (
            ("labels until a change is told: median, 95 of 100 streams, most",
             f"{told['median']:.0f}, {told['p95']:.0f}, {told['max']:.0f}"),
            (f"p99 of {shadows['requests']:,} requests, without shadows / with them, ms",
             f"{shadows['p99_without_ms']:.2f} / {shadows['p99_with_ms']:.2f}"),
        ),
    )  # fmt: skip


@figures("sweep")
def sweep(found: Any) -> str:
    """Whether the parts are all of the latency; then the sweep itself."""
    names = ("clientSendMs", "networkMs", "waitMs", "computeMs", "clientReceiveMs")
    points = table(
        ("connections", "answers/s", "p50 ms", "p99 ms", "client send", "network, server receive/send", "wait",
         "compute", "client receive", "mean ms"),
        (
            (
                str(point["connections"]),
                f"{point['answersPerSecond']:,.0f}",
                f"{point['latencyMs']['p50']:.3f}",
                f"{point['latencyMs']['p99']:.3f}",
                *(f"{point['parts'][name]:.3f}" for name in names),
                f"{point['mean_ms']:.3f}",
            )
            for point in found["points"]
        ),
    )  # fmt: skip
    picture = "![Answers per second, latency, and its five parts against connections](images/concurrency.png)"
    return paragraphs(picture, points)


@figures("shared_worker")
def shared_worker(found: Any) -> str:
    """The verdicts, and what each service was offered and got."""
    rows = (
        (
            label,
            f"{of['offered_per_s']:,.0f}",
            f"{of['seeds_per_s']:,}",
            f"{of['p50_ms']:.1f}",
            f"{of['p99_ms']:.1f}",
            f"{of['attained_percent']:g} %",
        )
        for label, of in (
            ("a service within its share, alone", found["fairness"]["alone"]),
            ("the same beside the other one", found["fairness"]["beside"]),
            ("the other one, offered three times its share", found["fairness"]["other"]),
        )
    )
    columns = ("", "requests/s offered", "seeds/s answered", "p50 ms", "p99 ms", "on time, worst round")
    return paragraphs(table(columns, rows), _shared_connections(found["connections"]) if "connections" in found else "")


def _shared_connections(found: dict[str, Any]) -> str:
    """Medians over the rounds of a service with few connections, and of one with many."""

    def median(name: str, figure: str) -> float:
        return float(statistics.median(one[figure] for one in found[name]))

    rows = (
        (
            label, str(found["connections"][kind]), f"{median(name, 'requests_per_s'):,.0f}",
            f"{median(name, 'p50_ms'):.2f}", f"{median(name, 'p99_ms'):.2f}",
            f"{median(name, 'generators_busy'):.0%}" if name != "other" else "",
        )
        for name, kind, label in (
            ("alone", "few", "a service with few connections, alone"),
            ("beside", "few", "the same beside the other one"),
            ("other", "many", "the other one"),
        )
    )  # fmt: skip
    columns = ("", "connections", "requests/s", "p50 ms", "p99 ms", "generators' processor time, of a core")
    return table(columns, rows)


@figures("tracing")
def tracing(found: Any) -> str:
    """Requests that are traced, over one connection and sixteen."""
    of_load = {(of["traced"], of["connections"]): of for of in found["figures"]}
    rows = []
    for traced in ("none", "1 in 100", "all"):
        alone, many = of_load[traced, 1], of_load[traced, 16]
        rows.append((
            traced, f"{alone['p50_ms']:.3f}", f"{alone['processor_us']:,.0f}", f"{many['requests_per_s']:,.0f}",
            f"{many['p50_ms']:.2f}", f"{many['processor_us']:,.0f}", *_dropped_spans(many),
        ))  # fmt: skip
    columns = (
        "requests that are traced", "p50, 1 connection, ms", "processor time, µs", "requests/s, 16 connections",
        "p50, ms", "processor time, µs", "dropped spans",
    )  # fmt: skip
    return table(columns[: len(rows[0])], rows)


def _dropped_spans(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Empty where the results are of before they were counted."""
    return (f"{figures['dropped_percent']:.1f} %",) if "dropped_percent" in figures else ()


@figures("conformance")
def conformance(found: Any) -> str:
    """Each call beside what each server made of it; empty: as the protocol says."""
    servers = tuple(found["passed"])
    rows = [(call["name"], *(call[server] or "✓" for server in servers)) for call in found["calls"]]
    totals = (f"**of {len(rows)}**", *(f"**{found['passed'][server]}**" for server in servers))
    return table(("call", *servers), [*rows, totals])
