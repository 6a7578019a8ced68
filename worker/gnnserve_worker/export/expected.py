"""gnnserve's own scores beside a program: of an example, and those by which gnnserve serves the program again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_worker.export.check import spread_nodes
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.published import PairScoring

_NODES, _KEY = 32, 0


def expected_scores(revision: LoadedRevision, name: str, pairs: PairScoring | None) -> Mapping[str, np.ndarray]:
    """Arrays that `spec.model.expected` takes: scores of nodes over all of their neighbours, by the source's ids.
    `pairs`: how pairs of scores are scored; None: they are not."""
    whole, nodes, ids = revision.over_whole_lists(name), spread_nodes(revision, _NODES), revision.ids.asked
    # One by one: what all of them reach together may be the whole graph.
    scores = np.concatenate([infer_batch(whole, name, one, _KEY).scores for one in nodes[:, None]])
    called = nodes if ids is None else np.array([ids.shown(node, node + 1)[0] for node in nodes.tolist()])
    return {"nodes": called, "scores": scores, **pair_scores(pairs, called, scores)}


def pair_scores(pairs: PairScoring | None, nodes: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Scores of each node with the next one. `nodes`: what they are called, [nodes]; `rows`: float32 [nodes, columns].
    Empty: pairs are not scored."""
    if pairs is None:
        return {}
    return {"pairs": np.stack([nodes[:-1], nodes[1:]], axis=1), "pair_scores": pairs.decoder.score(rows[:-1], rows[1:])}
