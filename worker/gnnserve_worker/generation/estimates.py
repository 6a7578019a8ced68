"""Guesses of the seconds that parts of a generation take. Pure.

The guesses are those of a common processor, from sizes alone: how many rows a network reads, how wide they are, how
many epochs. They need not be good, since `progress.py` corrects them by what steps took; `gnnserve plan` measures
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import expm1, prod

import numpy as np

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, Batches, Model
from gnnserve_api.variants import columns_of
from gnnserve_worker.generation.batches import batches_of, whole_graph_numbers
from gnnserve_worker.generation.epochs import expected_epochs
from gnnserve_worker.generation.profile import BATCH_SEEDS
from gnnserve_worker.graph.store import Features, GraphData

_NUMBER_S, _BATCH_S = 4e-9, 4e-3
"""Seconds for each number that training reads, times what is made of it, and for each batch besides."""
_BYTE_S = 2e-9
"""Seconds to make and write a byte of a table."""
_PASSES = 3
"""Passes that a training step is counted as: one forward, and two for gradients and update."""
_SIZES = len(BATCH_SEEDS) + 1.6
"""Batch sizes that a profile measures: those of stored nodes, a test size, and new nodes with a part of the time."""
_STALE_SIZES = 5
"""Times of a batch size in which stored layers that may be stale are measured (`stale_layers.py`)."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    nodes: int
    neighbours: float
    """Mean number of a node."""
    columns: int
    """Features of a node, of several types of the one that has most."""
    numbers: float
    """Numbers of a node's features that are stored: all of dense ones, those that are not zero of sparse ones."""
    train: int
    """Items that training goes through in an epoch."""
    validation: int

    @property
    def edges(self) -> int:
        """Entries of neighbour lists."""
        return round(self.nodes * self.neighbours)

    @staticmethod
    def of(data: GraphData, items: int) -> GraphSizes:
        """`items`: those of the problem over the graph."""
        nodes, features = max(1, data.nodes), [kind.features for kind in data.types if kind.features is not None]
        columns = max((one.shape[1] for one in features), default=0)
        numbers = sum(map(_stored_numbers, features))
        return GraphSizes(nodes, data.edges / nodes, columns, numbers / nodes, items, len(data.splits.validation))


UNKNOWN = GraphSizes(10_000, 10.0, 200, 200.0, 5_000, 2_000)
"""Sizes that stand for those of a graph that is not imported yet."""


def _stored_numbers(features: Features) -> int:
    return features.size if isinstance(features, np.ndarray) else len(features.data)


def tables_s(nodes: int, columns: int, storages: int) -> float:
    """Seconds to write tables of so many columns together, in so many storages each."""
    return _BYTE_S * 4.0 * nodes * columns * storages


def profile_s(budget_s: float) -> float:
    """Seconds to measure variants. `budget_s`: for each batch size."""
    return 1.0 + _SIZES * budget_s


def stale_s(budget_s: float) -> float:
    """Seconds to measure stored layers that may be stale. `budget_s`: as of `profile_s`."""
    return 1.0 + _STALE_SIZES * budget_s


def network_s(model: Model, sizes: GraphSizes, factor: int = 1) -> float:
    """Seconds to train a network that reads rows of nodes, on a part of the columns."""
    training = model.training
    batches = -(-max(1, sizes.train) // training.batch_size)
    share = columns_of(sizes.columns, factor) / max(1, sizes.columns)
    seeds_at_once = min(training.batch_size, max(1, sizes.train))
    rows = [
        _distinct(_drawn(model.fanouts[:hops], sizes.neighbours), seeds_at_once, sizes.nodes)
        for hops in range(len(model.fanouts) + 1)
    ]
    # The widest draw reads features, the others hidden rows; each is multiplied by a matrix of the hidden width.
    numbers = rows[-1] * (sizes.numbers * share + model.hidden) + sum(rows[:-1]) * model.hidden * 2
    seeds = _PASSES * sizes.train + sizes.validation
    return expected_epochs(training.epochs, batches) * (batches * _BATCH_S + seeds * numbers * _NUMBER_S)


def network_over_relations_s(model: Model, sizes: GraphSizes) -> float:
    """Seconds to train the network that reads products of relations."""
    if batches_of(model, sizes.nodes, sizes.edges) is Batches.SAMPLED:
        return network_s(model, replace(sizes, columns=model.hidden, numbers=float(model.hidden), validation=0))
    epoch_s = _BATCH_S + _PASSES * _NUMBER_S * whole_graph_numbers(model, sizes.nodes, sizes.edges)
    return expected_epochs(model.training.epochs, 1) * epoch_s


def _drawn(fanouts: Iterable[int], neighbours: float) -> float:
    """Nodes at the end of the draw."""
    return prod(neighbours if fanout == FULL_NEIGHBOURHOOD else min(float(fanout), neighbours) for fanout in fanouts)


def _distinct(drawn: float, seeds: int, nodes: int) -> float:
    """Rows that a batch reads for each of its seeds: a node that several neighbourhoods share is read once. On a small
    graph that is nearly every one."""
    return -nodes * expm1(-drawn * seeds / nodes) / seeds
