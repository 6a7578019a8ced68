"""Lists of a graph without the links that are held out, where it is served with all of them.

A given model learns nothing here, so that its graph needs to lack nothing; but a held-out link that is aggregated would
tell its own answer while variants are judged. Lists lose its entries then, and stay as they are otherwise, with what
edges have.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnserve_api.edges import Direction
from gnnserve_worker.graph.links import LinkSet, are_known, pair_keys
from gnnserve_worker.graph.store import Graph, GraphData, Relation


def relations_without_held_out(data: GraphData, links: LinkSet) -> tuple[Relation, ...]:
    """A graph's relations without entries of links that are held out, whichever lists name them. `data`: as it was
    imported; what other edges have stays theirs."""
    parts = (links.validation, links.test)
    keys = np.unique(np.concatenate([pair_keys(part.first, part.second, links.nodes) for part in parts]))
    firsts = dict(zip((kind.name for kind in data.types), data.schema.first_nodes, strict=False))
    scored = next(one for one in data.relations if one.key == links.relation or not one.name)

    def kept(one: Relation) -> Graph:
        straight, turned = _ways_of(one, scored)
        if not straight and not turned:
            return one.lists
        read = one.lists.indices.astype(np.int64) + firsts[one.source]
        readers = one.lists.targets() + firsts[one.target]
        is_hidden = np.zeros(len(read), bool)
        if straight:
            is_hidden |= are_known(pair_keys(read, readers, links.nodes), keys)
        if turned:
            is_hidden |= are_known(pair_keys(readers, read, links.nodes), keys)
        return one.lists.of_entries(~is_hidden)

    return tuple(replace(one, lists=kept(one)) for one in data.relations)


def _ways_of(one: Relation, scored: Relation) -> tuple[bool, bool]:
    """Whether second nodes of scored links read first ones by the relation, and first nodes second ones."""
    if one is scored:
        is_reversed = one.edge_rules.direction is Direction.REVERSED
        return not is_reversed, one.both_ways or is_reversed
    return False, (one.source, one.reverse_of, one.target) == (scored.target, scored.name, scored.source)
