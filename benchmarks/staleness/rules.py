"""Answers that differ from exact where the last stored layer is stale, by which of its changed rows are recomputed.

A graph that has got new edges, or new nodes with their edges: the rows of the layer before the last are stored as they
were before, all layers before it are exact, and the last layer is computed over the graph as it is now. Rows of new
nodes are always made, since there are none to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.staleness.networks import Edges, Network, Subject
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.staleness.choice import choose
from gnnserve_worker.staleness.movement import Movement

SHARES = (0.0, 0.05, 0.2, 1.0)
"""Shares of the changed rows that are recomputed."""
EDGE_SHARES = (0.01, 0.05, 0.2)
_NEW_NODES = 0.1
"""Share of the nodes of the first type that come as new ones, at most."""
NEW_NODES = "new nodes"
ESTIMATE, ORACLE = "estimate", "true error"
_DRAWS = 3
"""Random choices whose differences are averaged."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A graph before and after changes."""

    name: str
    is_old: np.ndarray
    """bool [edges of the graph after]: whether the graph before has the edge."""
    is_new_node: np.ndarray
    """bool [nodes]"""
    asked: np.ndarray
    """Nodes whose answers are compared, int64."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Answers that differ from exact in one scene, in percent of the nodes that are asked about, by the share of the
    changed rows that are recomputed first."""

    graph: str
    layers: int
    aggregation: str
    scene: str
    asked: int
    changed_rows: int
    """Rows of the stored layer that are others after the changes, without those of new nodes."""
    scores_stored: float | None
    """Differing answers where scores are stored and none are recomputed; None: the nodes are new."""
    none: float
    """Differing answers where no changed row is recomputed."""
    by_rule: Mapping[str, tuple[float, ...]]
    """For each of `SHARES` behind the first."""
    accuracy: tuple[float, ...]
    """Percent of right answers with rows chosen by the estimate, for each of `SHARES`."""
    rank_correlation: float
    """Spearman's, of the estimate with the true error, over the changed rows."""
    read_error: float | None = None
    """Mean estimate over the rows that the nodes asked about read; None: measured before it was."""

    @property
    def sensitivity(self) -> float | None:
        """Share of answers that differ, for each unit of that, where no changed row is recomputed."""
        return self.none / 100 / self.read_error if self.read_error else None


def scenes(edges: Edges, subject: Subject, test: np.ndarray) -> Iterator[Scene]:
    """`test`: nodes of the first type that nothing was learnt of, int64."""
    rng = np.random.default_rng(11)
    low, high = np.minimum(edges.sources, edges.targets), np.maximum(edges.sources, edges.targets)
    # An edge and its reverse come together, in whichever relation the reverse is.
    pairs, of_pair = np.unique(low * edges.nodes + high, return_inverse=True)
    order, no_nodes = rng.permutation(len(pairs)), np.zeros(edges.nodes, np.bool_)
    others = np.setdiff1d(np.flatnonzero(subject.labels.numpy() >= 0), subject.train)
    for share in EDGE_SHARES:
        is_old = (order >= share * len(pairs))[of_pair]
        yield Scene(f"{100 * share:g} % of the edges", is_old, no_nodes, others)
    new = rng.permutation(test)[: int(_NEW_NODES * len(subject.labels))]
    is_new = no_nodes.copy()
    is_new[new] = True
    yield Scene(NEW_NODES, ~(is_new[edges.sources] | is_new[edges.targets]), is_new, np.sort(new))


def common_edges(all_scenes: Sequence[Scene]) -> np.ndarray:
    """Edges that are there before the changes of every scene, bool [edges]: what a network is trained over."""
    return np.logical_and.reduce([scene.is_old for scene in all_scenes])


def states_over(network: Network, subject: Subject, edges: Edges) -> list[torch.Tensor]:
    """Output of every layer over all of these edges."""
    with torch.no_grad():
        return network.states(subject, edges)


@torch.no_grad()
def differences(
    graph: str, aggregation: str, network: Network, subject: Subject, schema: GraphSchema, edges: Edges, scene: Scene,
    after: Sequence[torch.Tensor],
) -> Differences:  # fmt: skip
    """`after`: states of the network over all edges."""
    stored, last = network.layers - 2, network.layers - 1
    before = network.states(subject, edges.where(scene.is_old))
    exact = after[stored]
    errors = (exact - before[stored]).norm(dim=1).numpy()
    errors[scene.is_new_node] = 0
    changed = np.flatnonzero(errors > 1e-6 * float(exact.norm(dim=1).mean()))
    estimate = estimated(schema, edges, scene, network.layers - 1)
    wanted, labels = after[last].argmax(1).numpy(), subject.labels.numpy()

    def answers(recomputed: np.ndarray) -> np.ndarray:
        is_exact = torch.from_numpy(scene.is_new_node.copy())
        is_exact[torch.from_numpy(recomputed)] = True
        rows = torch.where(is_exact.unsqueeze(1), exact, before[stored])
        return network.layer(last, rows, edges).argmax(1).numpy()

    def differing(found: np.ndarray) -> float:
        return round(100 * float((found[scene.asked] != wanted[scene.asked]).mean()), 4)

    def first(worth: np.ndarray, share: float) -> np.ndarray:
        return changed[choose(worth[changed], round(share * len(changed)))]

    rng = np.random.default_rng(3)
    orders: Mapping[str, list[np.ndarray]] = {
        ESTIMATE: [estimate],
        "random": [1 + rng.permutation(edges.nodes) for _ in range(_DRAWS)],
        "degree": [edges.degrees() + rng.random(edges.nodes)],
        ORACLE: [errors],
    }
    by_rule, right = dict[str, tuple[float, ...]](), list[float]()
    for rule, orderings in orders.items():
        found = list[float]()
        for share in SHARES[1:-1]:
            given = [answers(first(worth.astype(np.float32), share)) for worth in orderings]
            found.append(round(float(np.mean([differing(one) for one in given])), 4))
        by_rule[rule] = (*found, differing(answers(changed)))
    for share in SHARES:
        given = answers(first(estimate, share) if share < 1 else changed)
        right.append(round(100 * float((given[scene.asked] == labels[scene.asked]).mean()), 3))
    is_new = bool(scene.is_new_node.any())
    return Differences(
        graph, network.layers, aggregation, scene.name, len(scene.asked), len(changed),
        None if is_new else differing(before[last].argmax(1).numpy()), differing(answers(changed[:0])), by_rule,
        tuple(right),
        round(_rank_correlation(estimate[changed], errors[changed]), 4), round(_read_error(estimate, edges, scene), 5),
    )  # fmt: skip


def _read_error(estimate: np.ndarray, edges: Edges, scene: Scene) -> float:
    """Mean estimate over own rows and those of neighbours; rows of new nodes are right."""
    left = np.where(scene.is_new_node, 0, estimate)
    is_asked = np.zeros(edges.nodes, np.bool_)
    is_asked[scene.asked] = True
    return float(np.concatenate((left[scene.asked], left[edges.sources[is_asked[edges.targets]]])).mean())


def estimated(schema: GraphSchema, edges: Edges, scene: Scene, stored: int) -> np.ndarray:
    """The product's estimate of how far each row of that layer, from 1, has moved: float32 [nodes]."""
    places = places_of(schema)
    lists = np.empty(len(edges.targets), np.int64)
    for relation in range(len(schema.relations)):
        of_relation = edges.relations == relation
        lists[of_relation] = places.list_by(relation, edges.targets[of_relation])
    entries = np.stack((lists, edges.sources), axis=1)
    count = int(places.first_lists[-1])
    movement = Movement(
        _lists_of(count, lists, edges.sources), _lists_of(edges.nodes, edges.sources, lists), places, None
    )
    new, no_nodes = entries[~scene.is_old], np.zeros(0, np.int64)
    moved = movement.of_first_layer(new, no_nodes, no_nodes)
    for _ in range(stored - 1):
        moved = movement.of_next_layer(moved, new)
    found = np.zeros(edges.nodes, np.float32)
    found[moved.nodes] = moved.amounts
    return found


def _lists_of(count: int, owners: np.ndarray, members: np.ndarray) -> LivingLists:
    """So many lists, of whose members each owner is given."""
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=count))
    bounds = np.stack((np.concatenate(([0], ends[:-1])), ends), axis=1)
    lengths = (bounds[:, 1] - bounds[:, 0]).astype(np.int32)
    state = np.full(2, len(members), np.int64)
    return LivingLists(bounds, members[order].astype(np.int32), lengths, state)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's; equal values share their mean rank. 0 where all of one are equal."""
    ranks = [_ranks(values) for values in (one, other)]
    deviations = [values - values.mean() for values in ranks]
    scale = np.sqrt(np.prod([(each**2).sum() for each in deviations]))
    return float((deviations[0] * deviations[1]).sum() / scale) if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])
