"""Figures made of the measured times: percentiles, bounds, verdicts and tables. Pure, and tested without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.engine.paper_tables import CELLS

Row = dict[str, Any]

RATE_LIMIT_MS = 10.0
"""p99 of batches whose rate counts."""
_UNPRUNED = "x1"


@dataclass(frozen=True, slots=True)
class Times:
    """Times of runs of the same work, in ms."""

    runs: int
    p50_ms: float
    p99_ms: float
    mean_ms: float

    def describe(self) -> Row:
        return asdict(self)


def summarize(durations_ms: Sequence[float]) -> Times:
    """Summarises durations, rounded to 0.1 µs: no clock here is finer."""
    return Times(
        len(durations_ms),
        _rounded(np.percentile(durations_ms, 50)),
        _rounded(np.percentile(durations_ms, 99)),
        _rounded(np.mean(durations_ms)),
    )


def gigabytes_per_s(size_bytes: float, duration_ms: float) -> float:
    return round(size_bytes / duration_ms / 1e6, 2)


def bound_seeds_per_s(link_gigabytes_per_s: float, bytes_per_seed: float) -> float:
    """Seeds per second that the link brings rows for if it does nothing else."""
    return math.inf if not bytes_per_seed else link_gigabytes_per_s * 1e9 / bytes_per_seed


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Batches of one size, one after the other."""

    seeds: int
    seeds_per_s: float
    p99_ms: float
    """p99 of a batch, from its seeds to its scores in the host's memory."""


def best_rate(points: Sequence[RatePoint], limit_ms: float) -> RatePoint | None:
    """The highest rate whose batches are within the limit; None: not even the smallest are."""
    within = [point for point in points if point.p99_ms < limit_ms]
    return max(within, key=lambda point: point.seeds_per_s, default=None)


def stage_shares(sample_ms: float, gather_ms: float, compute_ms: float) -> Row:
    total = sample_ms + gather_ms + compute_ms
    stages = {"sample": sample_ms, "gather": gather_ms, "compute": compute_ms}
    return {name: round(part / total, 3) if total else 0.0 for name, part in stages.items()}


def relative_cost(with_it: float, without: float) -> float:
    """0.05: it takes 5 % more."""
    return round(with_it / without - 1, 4)


def beside_paper(row: Row, first: Row) -> Row:
    """The window (gathering over the link and computing) of a batch of 1024 seeds, its ratio 1x over kx, and the same
    of Dynamic GNN inference as-a-service, tables 2 and 3, whose window is the copy of the rows and computing. `first`
    is the row of 1x."""
    cells = CELLS[row["graph"], row["model"]]
    paper, paper_first = cells[row["factor"]], cells[1]
    return {
        "ratio": round(first["window_p50_ms"] / row["window_p50_ms"], 3),
        "paper_window_ms": paper.latency_ms,
        "paper_ratio": round(paper_first.latency_ms / paper.latency_ms, 3),
        "times_faster_than_paper": round(paper.latency_ms / row["window_p50_ms"], 2),
    }


def lowest_rate(throughput: Any) -> float:
    """Lowest rate over the graphs; 0 where even the smallest batch of one takes too long, or where none was tried."""

    def is_judged(row: Row) -> bool:
        return (row["variant"], row["placement"]) == (_UNPRUNED, "memory")

    rates = {row["graph"]: 0.0 for row in throughput["points"] if is_judged(row)}
    rates |= {
        row["graph"]: row["seeds_per_s"]
        for row in throughput["best"]
        if is_judged(row) and row["limit_ms"] == RATE_LIMIT_MS
    }
    return min(rates.values(), default=0.0)


@dataclass(slots=True)
class Budget:
    """Time that is left for everything: a lent machine ends what outruns its loan."""

    total_s: float
    clock_s: Callable[[], float]
    began_s: float = 0.0

    def __post_init__(self) -> None:
        self.began_s = self.clock_s()

    @property
    def left_s(self) -> float:
        return self.total_s - (self.clock_s() - self.began_s)

    def allows(self, needed_s: float) -> bool:
        return self.left_s >= needed_s


# --- tables


class Sheet:
    """A table, for a terminal or a page. Columns that are given at once hold words, those that are added numbers."""

    def __init__(self, *words: str, title: str) -> None:
        self.title = title
        self.head = list(words)
        self.rows: list[tuple[str, ...]] = []
        self._words = len(words)

    def add_column(self, header: str) -> None:
        self.head.append(header)

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)

    def rich(self) -> Table:
        made = Table(title=self.title)
        for number, header in enumerate(self.head):
            made.add_column(header, justify="left" if number < self._words else "right")
        for row in self.rows:
            made.add_row(*row)
        return made


def link_sheet(part: Any) -> Sheet:
    link = part["limit_gigabytes_per_s"]
    sheet = Sheet("Graph", title=f"Rows read over the link, of {link:.1f} GB/s at most")
    for header in ("kx", "Columns", "Bytes of a row", "GB/s", "Of the limit"):
        sheet.add_column(header)
    for row in part["gather"]:
        sheet.add_row(
            row["graph"], f"{row['factor']}x", str(row["columns"]), f"{row['row_bytes']:,}",
            f"{row['gigabytes_per_s']:.1f}", f"{row['share_of_limit']:.0%}",
        )  # fmt: skip
    return sheet


def latency_sheet(part: Any) -> Sheet:
    sheet = Sheet("Graph", "Model", "Rows in", title="Engine alone, ms; the paper's window and ratio in brackets")
    for header in ("kx", "Seeds", "p50", "p99", "Sample", "Gather", "Compute", "Window", "1x over kx"):
        sheet.add_column(header)
    for row in part["rows"]:
        has_paper = "paper_window_ms" in row
        window = f"{row['window_p50_ms']:.3f}" + (f" ({row['paper_window_ms']:.2f})" if has_paper else "")
        ratio = f"{row['ratio']:.2f} ({row['paper_ratio']:.2f})" if has_paper else ""
        sheet.add_row(
            row["graph"], row["model"], row["placement"], f"{row['factor']}x", f"{row['seeds']:,}",
            f"{row['p50_ms']:.3f}", f"{row['p99_ms']:.3f}", f"{row['sample_ms']:.3f}", f"{row['gather_ms']:.3f}",
            f"{row['compute_ms']:.3f}", window, ratio,
        )  # fmt: skip
    return sheet


def throughput_sheet(part: Any) -> Sheet:
    sheet = Sheet(
        "Graph", "Variant", "Rows in",
        title=f"Seeds per second, batch after batch, every batch's p99 below {RATE_LIMIT_MS:g} ms",
    )  # fmt: skip
    for header in ("Batch", "p99 ms", "Seeds/s", "Bound of the link", "Of the bound"):
        sheet.add_column(header)
    for row in part["best"]:
        bound = row.get("bound_seeds_per_s")
        sheet.add_row(
            row["graph"], row["variant"], row["placement"], f"{row['seeds']:,}", f"{row['p99_ms']:.2f}",
            f"{row['seeds_per_s']:,.0f}", "" if bound is None else f"{bound:,.0f}",
            "" if bound is None else f"{row['share_of_bound']:.0%}",
        )  # fmt: skip
    return sheet


def stages_sheet(part: Any) -> Sheet:
    sheet = Sheet("Graph", "Variant", "Rows in", title="Where a batch of 1,024 seeds spends its time")
    for header in ("p50 ms", "Sample", "Gather", "Compute", "Cache hits", "Over the link, MB"):
        sheet.add_column(header)
    for row in part["rows"]:
        shares, hits = row["shares"], row.get("hit_rate")
        sheet.add_row(
            row["graph"], row["variant"], row["placement"], f"{row['p50_ms']:.2f}", f"{shares['sample']:.0%}",
            f"{shares['gather']:.0%}", f"{shares['compute']:.0%}", "" if hits is None else f"{hits:.0%}",
            f"{row['link_bytes_per_batch'] / 1e6:.1f}",
        )  # fmt: skip
    return sheet


def updates_sheet(part: Any) -> Sheet:
    sheet = Sheet("Graph", "Policy", title="What updates of the cache cost the batches beside them")
    for header in ("p99 with", "p99 without", "Cost", "p50 cost", "Changes/s", "Hits with", "Hits without"):
        sheet.add_column(header)
    for row in part["rows"]:
        sheet.add_row(
            row["graph"], row["policy"], f"{row['with']['p99_ms']:.3f}", f"{row['without']['p99_ms']:.3f}",
            f"{row['p99_cost']:+.1%}", f"{row['p50_cost']:+.1%}", f"{row['changes_per_s']:,.0f}",
            f"{row['hit_rate_with']:.0%}", f"{row['hit_rate_without']:.0%}",
        )  # fmt: skip
    return sheet


def baseline_sheet(part: Any) -> Sheet:
    sheet = Sheet(
        "Graph", "Model", title="torch gather + copy + PyG on the same GPU, 1,024 seeds, ms; ours over the link"
    )
    for header in ("kx", "Gather", "Copy", "Compute", "Window", "Ours", "Times faster"):
        sheet.add_column(header)
    for row in part["rows"]:
        ours = row.get("ours_window_ms")
        sheet.add_row(
            row["graph"], row["model"], f"{row['factor']}x", f"{row['gather_ms']:.2f}", f"{row['copy_ms']:.2f}",
            f"{row['compute_ms']:.2f}", f"{row['window_p50_ms']:.2f}", "" if ours is None else f"{ours:.2f}",
            "" if ours is None else f"{row['window_p50_ms'] / ours:.1f}",
        )  # fmt: skip
    return sheet


def unseen_sheet(part: Any) -> Sheet:
    sheet = Sheet(
        "Graph", title=f"Batches with new nodes of {part['degree']} edges each, beside those of stored nodes alone, ms"
    )
    for header in ("New nodes", "Seeds", "p50", "p99", "Stored p50", "Stored p99", "Ratio"):
        sheet.add_column(header)
    for row in part["rows"]:
        sheet.add_row(
            row["graph"], f"{row['new_nodes']:,}", f"{row['seeds']:,}", f"{row['p50_ms']:.3f}", f"{row['p99_ms']:.3f}",
            f"{row['stored_p50_ms']:.3f}", f"{row['stored_p99_ms']:.3f}", f"{row['ratio']:.2f}",
        )  # fmt: skip
    return sheet


def distinct_sheet(part: Any) -> Sheet:
    sheet = Sheet(
        "Graph", "Seeds drawn", title="Rows that a chunk reads several times: gathered once, beside directly, ms"
    )
    for header in ("kx", "Seeds", "Once p50", "Once p99", "Direct p50", "Direct p99", "Ratio", "Bytes of the link"):
        sheet.add_column(header)
    for row in part["rows"]:
        sheet.add_row(
            row["graph"], row["drawn"], f"{row['factor']}x", f"{row['seeds']:,}", f"{row['shared_p50_ms']:.3f}",
            f"{row['shared_p99_ms']:.3f}", f"{row['direct_p50_ms']:.3f}", f"{row['direct_p99_ms']:.3f}",
            f"{row['ratio']:.2f}", f"{row['link_share']:.0%}",
        )  # fmt: skip
    return sheet


SHEETS: Mapping[str, Callable[[Any], Sheet]] = {
    "one_seed": latency_sheet,
    "link": link_sheet,
    "throughput": throughput_sheet,
    "latency": latency_sheet,
    "stages": stages_sheet,
    "updates": updates_sheet,
    "distinct": distinct_sheet,
    "unseen": unseen_sheet,
    "baseline": baseline_sheet,
}
"""Tables by part, in the order in which they are run."""


def _rounded(duration_ms: float | np.floating[Any]) -> float:
    return round(float(duration_ms), 4)
