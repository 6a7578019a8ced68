"""New nodes that a request brings, over a stored layer before the last: which of the rows that their overlay changes
are worth making anew.

Each hidden node is asked about alone, with its edges to nodes of the graph, and no other hidden node is there. Its own
row is always made. The rows that it reads of others are stored; some are others by the overlay, since the nodes gain
the new one, or read nodes that do. Of these a share is made anew, in the order of the estimate that workers go by, or
of the true error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.staleness.networks import Edges, Network, Subject
from benchmarks.staleness.rules import ESTIMATE, NEW_NODES, ORACLE, SHARES, Scene, estimated
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.staleness.choice import choose

_CHANGED = 1e-6
"""Share of a row's length from which on it is another one."""


@dataclass(frozen=True, slots=True)
class OverlayDifferences:
    """Answers about new nodes that requests bring, one by one."""

    graph: str
    layers: int
    aggregation: str
    asked: int
    rows: float
    """Rows of others that such a node reads and that its overlay changes, mean."""
    none: float
    """Percent of the answers that differ from exact ones where none of these is made anew."""
    by_rule: Mapping[str, tuple[float, ...]]
    """The same for each of `SHARES` behind the first."""
    entries: tuple[float, ...]
    """Entries of lists that making these rows reads, and the new node's own, for each of `SHARES` with rows chosen by
    the estimate: mean. `stored1` draws 15 + 150 rows for three layers of fan-outs 15, 10, 5."""
    accuracy: tuple[float, ...]
    """Percent of right answers with rows chosen by the estimate, for each of `SHARES`; the last is that over the whole
    neighbourhood."""


@torch.no_grad()
def overlay_differences(
    graph: str, aggregation: str, network: Network, subject: Subject, schema: GraphSchema, edges: Edges, scene: Scene,
    most: int,
) -> OverlayDifferences | None:  # fmt: skip
    """`scene`: of new nodes, of which `most` are asked about. None: none of them has edges."""
    stored, last = network.layers - 2, network.layers - 1
    before = network.states(subject, edges.where(scene.is_old))[stored]
    labels = subject.labels.numpy()
    differing = {rule: np.zeros(len(SHARES)) for rule in (ESTIMATE, ORACLE)}
    right, entries, rows, asked = np.zeros(len(SHARES)), np.zeros(len(SHARES)), 0, 0
    for node in scene.asked[:most].tolist():
        seen = _seen_by(edges, scene, node)
        if not (seen.targets == node).any():
            continue
        exact = network.states(subject, seen)
        wanted, states = int(exact[last][node].argmax()), exact[stored]
        read = np.unique(seen.sources[seen.targets == node])
        errors = (states[read] - before[read]).norm(dim=1).numpy()
        errors[errors <= _CHANGED * float(states.norm(dim=1).mean())] = 0
        changed, degrees = read[errors > 0], seen.degrees()
        worth = {ESTIMATE: estimated(schema, seen, _came_alone(seen, node), last)[changed], ORACLE: errors[errors > 0]}
        for rule, values in worth.items():
            for place, share in enumerate(SHARES):
                made = changed[choose(values.astype(np.float32) + np.float32(1e-9), round(share * len(changed)))]
                mixed = before.clone()
                mixed[[node, *made.tolist()]] = states[[node, *made.tolist()]]
                found = int(network.layer(last, mixed, seen)[node].argmax())
                differing[rule][place] += found != wanted
                if rule == ESTIMATE:
                    right[place] += found == labels[node]
                    entries[place] += degrees[made].sum() + degrees[node]
        rows += len(changed)
        asked += 1
    if not asked:
        return None
    percent = {rule: np.round(100 * counts / asked, 4).tolist() for rule, counts in differing.items()}
    return OverlayDifferences(
        graph, network.layers, aggregation, asked, round(rows / asked, 1), percent[ESTIMATE][0],
        {rule: tuple(values[1:]) for rule, values in percent.items()}, tuple(np.round(entries / asked, 1).tolist()),
        tuple(np.round(100 * right / asked, 3).tolist()),
    )  # fmt: skip


def _seen_by(edges: Edges, scene: Scene, node: int) -> Edges:
    """The edges before, and those between the node and nodes that were there."""
    is_other = scene.is_new_node.copy()
    is_other[node] = False
    is_own = (edges.sources == node) | (edges.targets == node)
    return edges.where(scene.is_old | (is_own & ~is_other[edges.sources] & ~is_other[edges.targets]))


def _came_alone(seen: Edges, node: int) -> Scene:
    """The scene in which this node came with its edges."""
    is_new = np.zeros(seen.nodes, np.bool_)
    is_new[node] = True
    return Scene(NEW_NODES, (seen.sources != node) & (seen.targets != node), is_new, np.array([node]))
