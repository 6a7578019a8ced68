"""Nodes and edges that each hop brought, of a sample over several types.

`trim_to_layer` wants these counts. pyg-lib's sampler gives them and torch-sparse's does not, but they follow from the
order of its output: nodes of a type come hop by hop, and edges of a relation hop by hop and by the node that reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

Key = tuple[str, str, str]
"""A relation: type of the nodes that are read, name, type of the nodes that read."""


def count_hops(
    nodes: Mapping[str, torch.Tensor], sources: Mapping[Key, torch.Tensor], targets: Mapping[Key, torch.Tensor],
    target: str, seeds: int,
) -> tuple[dict[str, list[int]], dict[Key, list[int]]]:  # fmt: skip
    """Counts of a sample of two hops: [seeds, first hop, second hop] for each type, [first hop, second hop] for each
    relation."""
    met = {name: seeds if name == target else 0 for name in nodes}
    known, edges = dict(met), {}
    for key, readers in targets.items():
        first = int(torch.searchsorted(readers, met[key[2]]))
        edges[key] = [first, len(readers) - first]
        if first:
            known[key[0]] = max(known[key[0]], int(sources[key][:first].max()) + 1)
    return {name: [met[name], known[name] - met[name], len(ids) - known[name]] for name, ids in nodes.items()}, edges
