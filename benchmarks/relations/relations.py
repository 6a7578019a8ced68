"""Graphs of several types: how accurate, what a gathered row costs, and what an answer takes over HTTP.

Accuracy: GraphSAGE and RGCN on ACM and IMDB, three seeds, beside published figures; a figure that is more than a point
below is missed. Training in mini-batches beside the whole graph, on both, five seeds: a mean that is more than a
standard error below is missed. A row: a batch over a graph of three types beside one of one type with as many nodes,
neighbours and hidden columns. Over HTTP: `gnnserve run` beside torch_geometric with its own sampler, over a graph that
no processor's cache holds, in turns. gnnserve has no variant over several types that computes the whole first layer in
a request, as torch_geometric does: so it is compared with torch_geometric as it is, and with one whose first layer is
multiplied ahead of time as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.relations.batch_training import errors_below, run_batches
from benchmarks.relations.relations_accuracy import ARCHITECTURES, PUBLISHED, TOLERANCE, run_accuracy
from benchmarks.relations.relations_peers import run_peers
from benchmarks.relations.relations_rows import run_rows
from benchmarks.results import Benchmark, Part, main
from benchmarks.verdicts import Verdict, above, at_least, at_most

WANTED_ROW, WANTED_ONE, WANTED_32 = 1.5, 5.0, 10.0
WANTED_ERROR = 1e-4
"""Largest difference of scores around 1, computed in float32 from sums of some hundred products."""
WANTED_BELOW = 1.0
"""Most standard errors by which mini-batches may be below the whole graph: what five seeds cannot tell from as good."""


def show(found: Mapping[str, Any]) -> None:
    console = Console(width=120)
    if "accuracies" in found:
        table = Table("graph", "architecture", "macro F1", "published", title="test nodes")
        for one in found["accuracies"]:
            shown = f"{one['macroF1']:.3f} ± {one['deviation']:.3f}"
            table.add_row(one["graph"], one["architecture"], shown, f"{one['published']:.3f} ({one['publishedBy']})")
        console.print(table)
    if "batchTraining" in found:
        table = Table("graph", "architecture", "batches", "macro F1", title="training, test nodes")
        for header in ("steps", "seconds", "memory, MiB"):
            table.add_column(header, justify="right")
        for one in found["batchTraining"]:
            shown = f"{one['macroF1']:.3f} ± {one['deviation']:.3f}"
            measured = f"{one['steps']:,}", f"{one['seconds']:.1f}", f"{one['memoryMiB']:.0f}"
            table.add_row(one["graph"], one["architecture"], one["batches"], shown, *measured)
        console.print(table)
    if "rows" in found:
        console.print("ns a row:", found["rows"]["nanosecondsPerRow"], "ratio", found["rows"]["ratio"])
    if "peers" in found:
        table = Table("server", title="p50 ms, and requests/s at 32 connections")
        for header in ("one seed", "32 connections", "requests/s", "1024 seeds", "largest error"):
            table.add_column(header, justify="right")
        for server in found["peers"]["servers"].values():
            one, busy, many = (load["median"] for load in server["workloads"].values())
            table.add_row(
                server["label"], f"{one['p50_ms']:.3f}", f"{busy['p50_ms']:.2f}", f"{busy['requests_per_s']:,.0f}",
                f"{many['p50_ms']:.1f}", f"{server['largestError']:.1e}",
            )  # fmt: skip
        console.print(table)


def _macro_f1_of(graph: str, architecture: str, found: Any) -> float:
    by_both = {(one["graph"], one["architecture"]): one["macroF1"] for one in found["accuracies"]}
    return float(by_both[graph, architecture])


def _ratio_of(peers: str, measure: str, found: Any) -> float:
    return float(found["peers"]["ratios"][peers]["ratios"][measure])


_REASONS = {
    "imdb": "MAGNN gives directors and actors the mean of their movies' words, where ours learn embeddings; and "
    "its figure is of a support vector machine that saw the labels of a fifth of the test nodes"
}
_BELOW_REASON = (
    "a standard error is little: among four pairs of means that differ by chance alone, one falls so far below in "
    "about every second run"
)
PEERS = {"wholeFirstLayer": "torch_geometric", "products": "torch_geometric over products"}
"""What `ratios` has, in words."""
VERDICTS = (
    *(
        Verdict(
            f"{graph}, {architecture}: macro F1 ({published} published: {who})",
            at_least(round(published - TOLERANCE, 4)),
            partial(_macro_f1_of, graph, architecture),
            reason=_REASONS.get(graph, ""),
        )
        for graph, (who, published) in PUBLISHED.items()
        for architecture in ARCHITECTURES
    ),
    *(
        Verdict(
            f"{graph}, {architecture}: macro F1 of training in mini-batches below that over the whole graph",
            at_most(WANTED_BELOW, "standard errors"),
            partial(errors_below, graph, architecture),
            reason=_BELOW_REASON,
        )
        for graph in PUBLISHED
        for architecture in ARCHITECTURES
    ),
    Verdict(
        "time per gathered row over that of one type", at_most(WANTED_ROW, "times"),
        lambda found: found["rows"]["ratio"],
    ),
    *(
        Verdict(f"{words} over gnnserve: p50 of one seed", at_least(WANTED_ONE, "times"),
                partial(_ratio_of, peers, "one_seed_p50"))
        for peers, words in PEERS.items()
    ),
    *(
        Verdict(f"gnnserve over {words}: requests/s at 32 connections", at_least(WANTED_32, "times"),
                partial(_ratio_of, peers, "throughput_32"))
        for peers, words in PEERS.items()
    ),
    Verdict(
        "largest difference of any server's scores from exact ones, full neighbourhoods", at_most(WANTED_ERROR),
        lambda found: max(server["largestError"] for server in found["peers"]["servers"].values()),
    ),
    Verdict(
        "features of that graph over the processor's last cache", above(1, "times"),
        lambda found: round(found["peers"]["graph"]["featureBytes"] / found["peers"]["graph"]["lastCacheBytes"], 1),
    ),
)  # fmt: skip
BENCHMARK = Benchmark(
    "relations",
    (
        Part("rows", run_rows),
        Part("peers", run_peers, ("gnnserve_cli.commands.run",), ("benchmarks/peers/programs",)),
        *(Part(graph, partial(run_accuracy, graph)) for graph in PUBLISHED),
        *(Part(f"batches-{graph}", partial(run_batches, graph)) for graph in PUBLISHED),
    ),
    VERDICTS,
    about=__doc__,
    quick=("rows", "peers", "acm"),
    show=show,
)


if __name__ == "__main__":
    main(BENCHMARK)
