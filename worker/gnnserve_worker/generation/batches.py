"""How training goes through a graph of several types: the whole of it in each step, or sampled batches. Pure.

Graphs of the literature have a few hundred labelled nodes whose neighbourhoods overlap, so that batches would compute
most nodes again and again: up to a size the whole graph is one batch, which is exact as well. Beyond it a step would
take gigabytes and many seconds. The size is that of the graph and the network alone, not of the machine, so that equal
manifests make equal networks everywhere.
"""

from __future__ import annotations

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, Batches, Model
from gnnserve_worker.progress import Progress, ProgressListener

MOST_NUMBERS = 1 << 31
"""Numbers of hidden states, a row for each node and each edge, up to which Auto trains over the whole graph: 8 GiB of
float32 where a layer keeps a row for each edge, as one that attends does, and an epoch of half a minute."""


def whole_graph_numbers(model: Model, nodes: int, edges: int) -> int:
    """Numbers that a step over the whole graph computes for nodes and edges, in all layers."""
    return model.hidden * len(model.fanouts) * (nodes + edges)


def batches_of(model: Model, nodes: int, edges: int) -> Batches:
    """WHOLE_GRAPH or SAMPLED: the manifest's choice, and with Auto that of the graph's size. Where all neighbours are
    read, a batch of a large graph may be nearly all of it: Auto leaves it whole."""
    chosen = model.training.batches
    if chosen is not Batches.AUTO:
        return chosen
    is_large = whole_graph_numbers(model, nodes, edges) > MOST_NUMBERS
    is_sampled = is_large and FULL_NEIGHBOURHOOD not in model.fanouts
    return Batches.SAMPLED if is_sampled else Batches.WHOLE_GRAPH


def steps_of_epoch(batches: Batches, model: Model, items: int) -> int:
    """Steps in which an epoch goes through so many training nodes, or links."""
    return 1 if batches is Batches.WHOLE_GRAPH else -(-items // model.training.batch_size)


def report_batches(model: Model, batches: Batches, name: str, progress: ProgressListener) -> None:
    """A line in the log about sampled batches that Auto chose: what the manifest says itself needs none."""
    if batches is Batches.SAMPLED and model.training.batches is Batches.AUTO:
        why = (
            f"steps of {model.training.batch_size:,} with sampled neighbours, since the graph is large; "
            "spec.model.training.batches: WholeGraph trains over all of it in each step"
        )
        progress(Progress(f"train {name} in batches", 1, 1, why))
