"""Edges that a batch names both ways, where either way is an edge of its own.

Sources that list each edge both ways make this likely, and nothing refuses it: a graph may have an edge twice.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from gnnserve_api.files.edges import Direction, Duplicates
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.inference.served import ServedRevision

_ENDS = 2


def relations_of_both_ways(revision: ServedRevision) -> Set[str]:
    """Names of the relations whose edges go both ways, and are kept where they repeat."""
    of_one = revision.manifest.edge_rules
    rules = {"": of_one} if of_one is not None else {one.name: one.edge_rules for one in revision.graph.types.relations}
    kept = (Direction.UNDIRECTED, Duplicates.KEEP)
    return {name for name, one in rules.items() if (one.direction, one.duplicates) == kept}


def count_both_ways(batch: ChangeBatch, relations: Set[str]) -> int:
    """New edges of these relations that are in the batch the other way too, each such two once."""
    counts, width = batch.counts, batch.per_edge
    if not relations or counts.edges < _ENDS:
        return 0
    first = counts.new_nodes + counts.overrides + counts.labelled
    edges = batch.ids.codes()[first : first + width * counts.edges].reshape(-1, width)
    named = np.zeros(len(edges), np.int64)
    if width > _ENDS:
        names = batch.ids.listed()[first + 1 : first + width * counts.edges : width]
        edges = edges[np.array([name in relations for name in names], bool)]
        named = np.unique(edges[:, 1], return_inverse=True)[1]
    source, target = edges[:, 0], edges[:, -1]
    # By relation and both ends, whichever stands first, as one number: codes are below the number of ids.
    low, high, size = np.minimum(source, target), np.maximum(source, target), len(batch.ids)
    pairs, which = np.unique((named * size + low) * size + high, return_inverse=True)
    forth, back = (np.bincount(which[way], minlength=len(pairs)) for way in (source < target, source > target))
    return int(np.minimum(forth, back).sum())
