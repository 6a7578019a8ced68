"""The embedding of a node that is not stored where embeddings are eigenvectors of the graph, from stored ones.

An eigenvector's entry at a node is, over the eigenvalue, the sum of its neighbours' entries, each multiplied by a
number of that neighbour (`generation/light_gcn.py` says which). They lie beside the decoder's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.models.network import take

EIGENVALUES, SHARES = "eigenvalues", "shares"
"""Keys of the weights."""


@dataclass(frozen=True, slots=True)
class Folding:
    shares: np.ndarray
    """float32 [nodes]: what the stored embedding of each is multiplied by in the sum of a node that is joined to it."""
    eigenvalues: np.ndarray
    """float32 [dimensions], of each column; 0: the column is empty."""

    def over(self, schema: GraphSchema, grown: GraphSchema) -> Folding:
        """The same where there is room for new nodes behind each type, which have no share yet."""
        shares = np.zeros(grown.first_nodes[-1], np.float32)
        for first, to, kind in zip(schema.first_nodes, grown.first_nodes, schema.types, strict=False):
            shares[to : to + kind.nodes] = self.shares[first : first + kind.nodes]
        return Folding(shares, self.eigenvalues)

    def own_of(self, summed: np.ndarray) -> np.ndarray:
        """Own embeddings, float32 [..., dimensions], of such sums."""
        made: np.ndarray = np.divide(summed, self.eigenvalues, out=np.zeros_like(summed), where=self.eigenvalues > 0)
        return made


def build_folding(weights: Mapping[str, np.ndarray], dimensions: int) -> Folding | None:
    """None: embeddings are no eigenvectors, and a node's is the sum of its neighbours'. ValueError: one of the weights
    is missing or misshapen."""
    if not {EIGENVALUES, SHARES} & weights.keys():
        return None
    nodes = weights[SHARES].size if SHARES in weights else 0
    return Folding(take(weights, SHARES, (nodes,)), take(weights, EIGENVALUES, (dimensions,)))
