"""Expected scores: nodes that no export saw, and the live module's scores of them over the whole graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from gnnserve_api.errors import InputError
from gnnserve_describe.blame import blame_of
from gnnserve_describe.decoder import FoundDecoder, draw_pairs
from gnnserve_describe.graph import GraphTensors, NeighbourLists
from gnnserve_describe.scoring import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedNodeScores:
    type: str
    nodes: np.ndarray
    """int64, ascending: positions among the nodes of the type."""
    scores: np.ndarray
    """float32 [nodes, columns]"""

    @property
    def scale(self) -> float:
        """Largest absolute score, or 1 where all are 0."""
        return float(np.abs(self.scores).max()) or 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedPairs:
    ends: np.ndarray
    """int64 [pairs, 2]: positions of first and of second nodes."""
    scores: np.ndarray
    """float32 [pairs]"""


def score_pairs(
    decoder: FoundDecoder, first: ExpectedNodeScores, second: ExpectedNodeScores, seed: int
) -> ExpectedPairs:
    """Scores of pairs of the nodes whose rows are expected."""
    ends = draw_pairs(first.nodes, second.nodes, seed)
    rows = (
        torch.from_numpy(end.scores[np.searchsorted(end.nodes, nodes)])
        for end, nodes in zip((first, second), ends.T, strict=True)
    )
    return ExpectedPairs(ends, decoder.score(*rows).float().numpy())


def draw_nodes(degrees: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A quarter of them read the most edges, up to a quarter read none, and the rest are drawn at random."""
    random = np.random.default_rng(seed)
    if count >= len(degrees):
        return np.arange(len(degrees))
    share = max(1, count // 4)
    hubs = np.argsort(-degrees, kind="stable")[:share]
    alone = np.flatnonzero(degrees == 0)
    alone = random.choice(alone, min(share, len(alone)), replace=False)
    chosen = np.union1d(hubs, alone)
    left = np.setdiff1d(np.arange(len(degrees)), chosen, assume_unique=True)
    return np.sort(np.concatenate([chosen, random.choice(left, count - len(chosen), replace=False)]))


def expected_scores(
    scorer: Scorer, graph: GraphTensors, lists: NeighbourLists, count: int, seed: int
) -> ExpectedNodeScores:
    nodes = draw_nodes(lists.degrees(scorer.target), count, seed)
    try:
        scores = replace(scorer, call=scorer.call.over_example()).scores(graph)
    except Exception as error:
        where = str(blame_of(error)) or "forward"
        raise InputError(
            where, f"the module fails over the whole graph: {error}",
            "give the graph that it was trained on, and what forward is given by --inputs",
        ) from error  # fmt: skip
    found = scores[torch.from_numpy(nodes)].float().numpy()
    is_finite = np.isfinite(found).all(axis=1)
    if not is_finite.all():
        raise InputError(
            "module", f"scores of {int((~is_finite).sum()):,} of {len(nodes):,} nodes are not finite, as of node "
            f"{nodes[~is_finite][0]}", "mend the module (a mean over no neighbours, a division by 0), or the features",
        )  # fmt: skip
    return ExpectedNodeScores(scorer.target, nodes, found)
