"""The default graph: scikit-learn's 1,797 handwritten digits, each linked to its 10 nearest neighbours.

It is real data that needs no network: 8×8 grey levels as features, the digit as label. Links go both ways. The split is
60/20/20 by a fixed permutation, since the data set has none of its own.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_worker.graph.sources.splits import random_splits
from gnnserve_worker.graph.store import Graph, GraphData

IDENTITY = "digits: 10 nearest neighbours, both ways, split 60/20/20 by permutation 0"
NEIGHBOURS = 10


def load(digest: str) -> GraphData:
    # Imported here: scikit-learn takes seconds to load, scipy.sparse a tenth of one, and once the graph is stored no
    # start needs them.
    import scipy.sparse as sp  # noqa: PLC0415
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.neighbors import kneighbors_graph  # noqa: PLC0415

    features, labels = load_digits(return_X_y=True)
    nearest = kneighbors_graph(features, NEIGHBOURS)
    links = sp.csr_array(nearest.maximum(nearest.T))
    links.sort_indices()
    return GraphData.of_one_type(
        source="builtin Digits",
        digest=digest,
        graph=Graph(links.indptr.astype(np.int64), links.indices.astype(np.int32)),
        features=features.astype(np.float32),
        labels=labels.astype(np.int64),
        classes=tuple(range(10)),
        splits=random_splits(np.ones(len(labels), dtype=bool)),
        edge_rules=EdgeRules(Direction.UNDIRECTED),
    )
