"""Parts `NETWORK on GRAPH` of `make bench-models`: accuracy of networks that learn as layers, beside the same ones in
torch_geometric (`trained_layers.py`), and what is told of it.

`../shared/modal/cdda_items` has columns of edges; over the topology of ogbn-arxiv, whose features are substitutes,
batches with sampled neighbours are trained and served. No published figure of ogbn-arxiv is comparable with these.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Part, Run
from benchmarks.verdicts import Verdict, above, at_most

ITEMS, ARXIV = "cdda_items", "ogbn_arxiv_topo"
PUBLISHED_SAGE = 0.916
"""Accuracy that the README of cdda_items has of a GraphSAGE, which reads no columns of edges."""
MOST_ERRORS = 2.0
"""Standard errors by which a mean may be below another one that it equals but for chance."""
LEAST_ERROR = 0.001
"""Least standard error of a difference that is counted in: one of 1,157 test nodes."""
MOST_POINTS_OF_GIVEN = 0.3
"""Points between accuracies of the same weights: over samples, which each draws on its own, chance has a share."""
_LEARNT_OF_EDGES = ("GATv2", "GINE", "PNA")
_BELOW_REASONS: Mapping[str, str] = {
    "GINE": "50 steps over the whole graph are too few: one seed in torch_geometric had 0.641 after 50, 0.887 after "
    "200 and after 400, and no more in training mode; `epochs: Auto` takes at least 200",
    "PNA": "50 steps over the whole graph are too few: one seed in torch_geometric had 0.838 after 50, 0.866 after 150",
}
"""Why a network with columns of edges is below GraphSAGE, by network."""


def run_network(graph: str, network: str, run: Run) -> dict[str, Any] | None:
    from benchmarks.models.learnt_graphs import PLANS, learnt_graph
    from benchmarks.models.trained_layers import NETWORKS, measure

    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    with tempfile.TemporaryDirectory(prefix="gnnserve-accuracy-") as folder:
        learnt = learnt_graph(graph, Path(folder))
        if learnt is None:
            return None
        planned = PLANS[graph]
        plan = replace(planned.training, epochs=1) if run.quick else planned.training
        seeds = range(1 if run.quick else planned.seeds)
        made = NETWORKS[network](learnt.edge_columns is not None)
        return {"accuracies": [measure(learnt, made, plan, planned.dropout, seeds, Path(folder))]}


# --- what is told


def accuracy_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Graph, network, and mean and deviation of each way."""
    for one in found:
        yield one["graph"], one["network"], *(_spread(one[way]) for way in _WAYS)


_WAYS = ("torch", "given", "here")
HEAD = ("graph", "network", "torch_geometric", "its weights as layers", "trained here as layers")


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def show_accuracy(found: Mapping[str, Any]) -> None:
    table = Table(*HEAD, title="accuracy of test nodes, mean ± deviation over seeds")
    for row in accuracy_rows(found["accuracies"]):
        table.add_row(*row)
    Console(width=140).print(table)


# --- verdicts


def _of(graph: str, network: str, found: Any) -> Mapping[str, Sequence[float]]:
    return {(one["graph"], one["network"]): one for one in found["accuracies"]}[graph, network]


def errors_below(graph: str, network: str, found: Any) -> float | None:
    """Standard errors by which the mean of what is trained here is below that of torch_geometric; less than 0: above
    it. None: of one seed each, as in a quick run, there is none."""
    one = _of(graph, network, found)
    if len(one["here"]) < 2:
        return None
    error = math.sqrt(sum(stdev(one[way]) ** 2 / len(one[way]) for way in ("torch", "here")))
    return round((mean(one["torch"]) - mean(one["here"])) / max(error, LEAST_ERROR), 2)


def _points_of_given(found: Any) -> float:
    """Largest difference between accuracies of the same weights, in points."""
    pairs = [pair for one in found["accuracies"] for pair in zip(one["torch"], one["given"], strict=True)]
    return round(100 * max(abs(a - b) for a, b in pairs), 2)


def _points_of_edges(network: str, found: Any) -> float:
    """Points of a network with columns of edges over GraphSAGE, which has none, both trained here."""
    of_edges, without = (_of(ITEMS, one, found)["here"] for one in (network, "GraphSAGE"))
    return round(100 * (mean(of_edges) - mean(without)), 2)


_NETWORKS = (
    *((ITEMS, one) for one in ("GraphSAGE", *_LEARNT_OF_EDGES)),
    *((ARXIV, one) for one in ("GATv2", "Transformer")),
)
ACCURACY_VERDICTS = (
    *(
        Verdict(
            f"{graph}, {network}: accuracy trained as layers below that of torch_geometric",
            at_most(MOST_ERRORS, "standard errors"), partial(errors_below, graph, network),
        ) for graph, network in _NETWORKS
    ),
    Verdict(
        "accuracy: largest difference of torch_geometric's weights served as layers",
        at_most(MOST_POINTS_OF_GIVEN, "points"), _points_of_given,
    ),
    *(
        Verdict(
            f"{ITEMS}, {network} with columns of edges over GraphSAGE without", above(0, "points"),
            partial(_points_of_edges, network), reason=_BELOW_REASONS.get(network, ""),
        ) for network in _LEARNT_OF_EDGES
    ),
)  # fmt: skip
ACCURACY_PARTS = tuple(
    Part(f"{network} on {graph}", partial(run_network, graph, network), ("benchmarks.models.learnt_graphs",))
    for graph, network in _NETWORKS
)
