"""Blocks of figures that are verdicts: what an issue wanted, what was measured, and whether that meets it."""

from __future__ import annotations

import statistics
from collections import Counter
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


@figures("links")
def links(results: Results) -> str:
    return verdict_table(results["links"]) if results.has("links") else ""


@figures("recommend")
def recommend(results: Results) -> str:
    """Verdicts; then the index beside others, on fewer vectors, and what a database takes."""
    if not results.has("recommend"):
        return ""
    found = results["recommend"]
    index, alone, database = found["index"], found["recommend"], found["database"]
    ours = (
        "`POST /v1/recommend`, new users", found["sizes"]["nodes"], index["recall"], alone["p50_ms"], alone["p99_ms"],
        index["items_per_second"],
    )  # fmt: skip
    others = (
        (one["name"], one["vectors"], one["recall"], one["p50_ms"], one["p99_ms"], one["items_per_second"])
        for one in found["others"]
    )
    rows = (
        (name, f"{vectors:,}", f"{recall:.4f}", f"{p50:.2f}", f"{p99:.2f}", f"{speed:,}")
        for name, vectors, recall, p50, p99, speed in (ours, *others)
    )
    compared = table(("", "vectors", "recall@10", "p50 ms", "p99 ms", "built, vectors/s"), rows)
    filled = (
        f"Into PostgreSQL with pgvector: {database['rows_per_second']:,} rows/s by COPY, "
        f"{database['with_index_rows_per_second']:,} with the HNSW index."
    )
    spam = table(
        ("variant", "ROC-AUC of stored reviews", "of new ones", "one stored, ms", "one new, ms", "1,024 stored, ms"),
        (
            (row["variant"], *map(_shown, (row["stored"], row["new"], row["one_ms"], row["new_ms"], row["batch_ms"])))
            for row in found["spam"]["variants"]
        ),
    )
    title = f"Spam among {found['spam']['reviews']:,} test reviews:"
    return "\n\n".join((verdict_table(found), compared, filled, title, spam))


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


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


@figures("fleet")
def fleet(results: Results) -> str:
    """The verdicts; then what the operator asked for while services rested. Older results have none."""
    found = results["fleet"]
    if "verdicts" not in found:
        return ""
    rows = (
        (
            f"{part['services']:,}",
            f"{part['requests_per_minute']:.0f}",
            ", ".join(f"{verb}: {number}" for verb, number in _by_verb(part["requests_by_kind"]).items()),
            f"{part['processor_share']:.1%}",
            f"{part['memory_after_mb']}",
        )
        for part in found["idle"].values()
    )
    columns = ("services at rest", "calls a minute", "in two resyncs, by verb", "of a processor", "memory, MB")
    return f"{verdict_table(found)}\n\n{table(columns, rows)}"


def _by_verb(requests_by_kind: Mapping[str, int]) -> dict[str, int]:
    """Requests by verb, the most frequent first; those of leases apart, which are the operator's own."""
    counted: Counter[str] = Counter()
    for words, number in requests_by_kind.items():
        verb, _, resource = words.partition(" ")
        counted["renewals of the Lease" if resource == "leases" else verb] += number
    return dict(counted.most_common())


@figures("live_accuracy")
def live_accuracy(results: Results) -> str:
    return verdict_table(results["live_accuracy"])


@figures("sweep")
def sweep(results: Results) -> str:
    """Whether the parts are all of the latency; then the sweep itself."""
    if not results.has("sweep"):
        return ""
    found = results["sweep"]
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
    return f"{verdict_table(found)}\n\n{picture}\n\n{points}"


@figures("protocol")
def protocol(results: Results) -> str:
    """The verdicts, and every form of every server."""
    if not results.has("protocol"):
        return ""
    found = results["protocol"]
    figures_of = {(row["subject"], row["seeds"], row["connections"]): row for row in found["figures"]}
    rows = []
    for subject, seeds in dict.fromkeys((subject, seeds) for subject, seeds, _ in figures_of):
        alone, many = (figures_of[subject, seeds, connections] for connections in (1, 16))
        rows.append((
            subject, f"{seeds:,}", f"{alone['p50_ms']:.3f} / {alone['p99_ms']:.3f}", f"{many['requests_per_s']:,.0f}",
            f"{many['p50_ms']:.2f} / {many['p99_ms']:.2f}", f"{many['processor_us']:,.0f}",
        ))  # fmt: skip
    columns = (
        "", "seeds", "p50 / p99, 1 connection, ms", "requests/s, 16 connections", "p50 / p99, ms",
        "server's processor time, µs",
    )  # fmt: skip
    return f"{verdict_table(found)}\n\n{table(columns, rows)}"


@figures("shared_worker")
def shared_worker(results: Results) -> str:
    """The verdicts, and what each service was offered and got."""
    if not results.has("shared_worker"):
        return ""
    found = results["shared_worker"]
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
    parts = [verdict_table(found), table(columns, rows)]
    if "connections" in found:
        parts.append(_shared_connections(found["connections"]))
    return "\n\n".join(parts)


def _shared_connections(found: dict[str, Any]) -> str:
    """Medians over the rounds of a service with few connections, and of one with many."""

    def median(name: str, figure: str) -> float:
        return statistics.median(one[figure] for one in found[name])

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
def tracing(results: Results) -> str:
    """Requests that are traced, over one connection and sixteen."""
    if not results.has("tracing"):
        return ""
    found = {(of["traced"], of["connections"]): of for of in results["tracing"]["figures"]}
    rows = []
    for traced in ("none", "1 in 100", "all"):
        alone, many = found[traced, 1], found[traced, 16]
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
def conformance(results: Results) -> str:
    """Each call beside what each server made of it; empty: as the protocol says."""
    found = results["conformance"]
    servers = tuple(found["passed"])
    rows = [(call["name"], *(call[server] or "✓" for server in servers)) for call in found["calls"]]
    totals = (f"**of {len(rows)}**", *(f"**{found['passed'][server]}**" for server in servers))
    return table(("call", *servers), [*rows, totals])
