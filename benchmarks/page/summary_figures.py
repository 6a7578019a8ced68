"""The block of README.md: figures that are quoted there, each with the commits and days at which it was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from benchmarks.dependencies import History
from benchmarks.page.ages import OLD, commit_in_words, commits_since, day_of, is_old, most
from benchmarks.page.figure_blocks import PartRead, Results, table
from benchmarks.page.peers_figures import ratios_by_shape

_SHAPES = ("arxiv", "reddit")
_NAMED_RUNS = 2
"""Most runs that are named one by one; where there are more, the first and the last."""
_BLOCK = re.compile(r"(<!-- figures: summary -->\n).*?(<!-- end of figures -->)", re.DOTALL)

Quote = Callable[[Results], tuple[str, str]]
"""What was measured, and what came out. Reads no more of the results than that."""


def fill_summary(page: str, results: Results, history: History) -> str:
    """The page with its block rendered anew. Raises ValueError where it has none."""
    filled, found = _BLOCK.subn(lambda found: f"{found[1]}{render_summary(results, history)}\n{found[2]}", page)
    if found != 1:
        raise ValueError(f"README.md has {found} blocks `<!-- figures: summary -->`, and one is filled")
    return filled


def render_summary(results: Results, history: History, quotes: Sequence[Quote] | None = None) -> str:
    """quotes: rows of the table; None: those of README.md."""
    rows, parts = [], []
    for quote in QUOTES if quotes is None else quotes:
        # What one row reads is told from what others do.
        own = Results(results.folder)
        rows.append((*quote(own), _measured(own.parts_read(), history)))
        parts += own.parts_read()
    return table((f"{_machines(parts)}, load generator included", "", "measured at"), rows)


def _measured(parts: list[PartRead], history: History) -> str:
    """Commit and day of each run; of many the first and the last."""
    runs = sorted({(day_of(part) or "an unknown day", commit_in_words(part)) for part in parts})
    words = [f"{commit}, {day}" for day, commit in runs]
    told = "; ".join(words) if len(words) <= _NAMED_RUNS else f"{len(words)} runs, of {words[0]} to {words[-1]}"
    return told + (OLD if is_old(most(commits_since(part, history) for part in parts)) else "")


def _machines(parts: list[PartRead]) -> str:
    by_cores: dict[int, set[str]] = {}
    for machine in (part.record["machine"] for part in parts):
        if machine is not None:
            processor = re.sub(r"[(]R[)]| Processor", "", machine["cpu"])
            by_cores.setdefault(machine["cores"], set()).add(f"an {processor}")
    return "; ".join(f"{cores} cores of {' or '.join(sorted(names))}" for cores, names in sorted(by_cores.items()))


def one_seed(results: Results) -> tuple[str, str]:
    return "Latency of one node, best other server over gnnserve, on two graphs", _ratios(results, "one_seed_p50")


def requests_per_s(results: Results) -> tuple[str, str]:
    words = "Requests per second at 32 connections, gnnserve over the best other server"
    return words, _ratios(results, "throughput_32")


def _ratios(results: Results, measure: str) -> str:
    return ratios_by_shape(results["peers"], measure, _SHAPES, " times")


def bursts(results: Results) -> tuple[str, str]:
    scenario = results["routing"]["scenarios"]["bursts"]
    ours, alone = scenario["ours"], scenario["static"]["x1"]
    return (
        "Bursts of load: answered in time / accuracy of these answers",
        f"{ours['attained']:.2f} % / {ours['accuracy']:.1f} %; `x1` alone "
        f"{alone['attained']:.1f} % / {alone['accuracy']:.1f} %",
    )


def accuracy(results: Results) -> tuple[str, str]:
    masters = [master for master in results["generation"]["masters"] if master["baseline"] is not None]
    behind = max(master["baseline"] - master["accuracy_mean"] for master in masters)
    return (
        f"Test accuracy below full-batch torch_geometric, worst of {len(masters)} graphs",
        f"{behind * 100:.1f} points",
    )


def switches(results: Results) -> tuple[str, str]:
    runs = [results["cluster"][kind] for kind in ("switch", "rollout")]
    lost, asked = (sum(run[count] for run in runs) for count in ("failed", "requests"))
    return "Requests lost in live switches and rolling updates", f"{lost} of {asked:,}"


QUOTES: tuple[Quote, ...] = (one_seed, requests_per_s, bursts, accuracy, switches)
"""Rows of README.md."""
