"""How well scores tell links from other pairs: ROC-AUC, average precision, and where links come in a ranking.

A ranking has all pairs of one first node, but for the known links that are not asked about (the all-ranking protocol of
LightGCN and NGCF). Equal scores count as in a random order. Of large graphs a sample of nodes is ranked, drawn by a
fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.files.profile import LinkScores, Metric
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_worker.graph.links import LinkSet, Pairs, pair_keys
from gnnserve_worker.models.decoder import LinkDecoder, score_all

MOST_SOURCES = 1_000
"""First nodes whose pairs are ranked, at most."""
MOST_CANDIDATES = 50_000
"""Second nodes that each of them is paired with, at most, beside those of its links."""
_RANKED_AT_ONCE = 128
_SAMPLING_SEED = 0

_CHOSEN: Mapping[MetricChoice, Metric] = {
    MetricChoice.AUTO: "rocAuc",
    MetricChoice.ROC_AUC: "rocAuc",
    MetricChoice.AVERAGE_PRECISION: "averagePrecision",
    MetricChoice.MRR: "mrr",
    MetricChoice.RECALL_AT_K: "recallAtK",
}
RowsOf = Callable[[np.ndarray], np.ndarray]
"""What a variant gives of nodes (int64): float32 [nodes, width], embeddings where it is no cascade."""


class PairScorer(Protocol):
    """Scorer of pairs of rows that variants give."""

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [pairs] of rows float32 [pairs, width]."""

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [n, m] of each of n rows with each of m."""


@dataclass(frozen=True, slots=True)
class DecodedPairs:
    """The `PairScorer` of rows that are embeddings."""

    decoder: LinkDecoder

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return self.decoder.score(first, second)

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return score_all(self.decoder, first, second)


def metric_of_links(choice: MetricChoice) -> Metric:
    return _CHOSEN[choice]


_BY_CHANCE: Mapping[Metric, float] = {"rocAuc": 0.5, "averagePrecision": 0.5}
"""Scores of pairs that are drawn, beside as many pairs without a link; those of a ranking are hardly above 0."""


def least_score(metric: Metric) -> float:
    """Score of what knows nothing of links."""
    return _BY_CHANCE.get(metric, 0.0)


def roc_auc(of_links: np.ndarray, of_others: np.ndarray) -> float:
    """How often a link has a higher score than another pair; of equal scores half count."""
    return float(_shares_below(of_links, of_others).mean())


def _shares_below(of_links: np.ndarray, of_others: np.ndarray) -> np.ndarray:
    """Share of the other pairs that score below each link, float64 [links]; of equal ones half count."""
    ordered = np.sort(of_others)
    below, up_to = (np.searchsorted(ordered, of_links, side) for side in ("left", "right"))
    shares: np.ndarray = (below + up_to) / 2 / len(ordered)
    return shares


def average_precision(of_links: np.ndarray, of_others: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 - takes a second

    truths = np.repeat([1, 0], [len(of_links), len(of_others)])
    return float(average_precision_score(truths, np.concatenate([of_links, of_others])))


@dataclass(frozen=True, slots=True)
class JudgedLinks:
    scores: LinkScores
    items: Mapping[Metric, np.ndarray]
    """Shares of 1, float64, in one order for all networks: those whose mean a metric is, where it is one over links or
    their first nodes."""


def judge_links(
    links: LinkSet, asked: Pairs, others: Pairs, scorer: PairScorer, rows_of: RowsOf, k: int
) -> JudgedLinks:
    """`asked`: held-out links; `others`: as many pairs without one."""
    of_links, of_others = (scores_of_pairs(scorer, rows_of, pairs) for pairs in (asked, others))
    ranked, below = rank_links(links, asked, scorer, rows_of, k), _shares_below(of_links, of_others)
    scores = LinkScores(
        links=len(asked),
        roc_auc=float(below.mean()),
        average_precision=average_precision(of_links, of_others),
        sources=ranked.sources,
        candidates=ranked.candidates,
        mrr=ranked.mrr,
        recall_at_k=ranked.recall,
        ndcg_at_k=ranked.ndcg,
        k=k,
    )
    return JudgedLinks(scores, {"rocAuc": below, "mrr": ranked.reciprocals, "recallAtK": ranked.recalls})


def accuracy_of(scores: LinkScores, metric: Metric) -> float:
    """The figure that stands for a variant's accuracy."""
    match metric:
        case "rocAuc":
            return scores.roc_auc
        case "averagePrecision":
            return scores.average_precision
        case "mrr":
            return scores.mrr
        case "recallAtK":
            return scores.recall_at_k
        case _:
            raise ValueError(f"{metric} is no metric of links")


def scores_of_pairs(scorer: PairScorer, rows_of: RowsOf, pairs: Pairs) -> np.ndarray:
    nodes, places = np.unique(np.concatenate([pairs.first, pairs.second]), return_inverse=True)
    rows = rows_of(nodes)
    return scorer.score(rows[places[: len(pairs)]], rows[places[len(pairs) :]])


@dataclass(frozen=True, slots=True)
class RankedLinks:
    sources: int
    candidates: int
    reciprocals: np.ndarray
    """Reciprocal rank of each link, float64 [links], first node after first node."""
    recalls: np.ndarray
    """Recall of each first node, float64 [sources]."""
    ndcg: float

    @property
    def mrr(self) -> float:
        return float(self.reciprocals.mean())

    @property
    def recall(self) -> float:
        return float(self.recalls.mean())


def rank_links(links: LinkSet, asked: Pairs, scorer: PairScorer, rows_of: RowsOf, k: int) -> RankedLinks:
    random = np.random.default_rng(_SAMPLING_SEED)
    sources = _sample(np.unique(asked.first), MOST_SOURCES, random)
    kept = np.isin(asked.first, sources)
    wanted = asked.at(np.flatnonzero(kept))
    candidates = _sample(np.arange(links.second.start, links.second.end), MOST_CANDIDATES, random)
    candidates = np.union1d(candidates, wanted.second)
    # Equal scores stand in this order: ids may be in one of popularity.
    order = random.permutation(len(candidates))
    of_candidates, of_sources = rows_of(candidates), rows_of(sources)
    known, asked_keys = links.known_keys(), np.sort(pair_keys(wanted.first, wanted.second, links.nodes))
    gains = 1 / np.log2(np.arange(2, k + 2))
    reciprocals: list[np.ndarray] = []
    recalls: list[float] = []
    ndcg = 0.0
    for start in range(0, len(sources), _RANKED_AT_ONCE):
        block = slice(start, start + _RANKED_AT_ONCE)
        scores = scorer.score_all(of_sources[block], of_candidates)
        for source, row in zip(sources[block].tolist(), scores, strict=True):
            hits = np.searchsorted(candidates, _partners(source, asked_keys, links.nodes))
            left_out = _places_of(_partners(source, known, links.nodes), candidates)
            if links.first == links.second:
                left_out = np.concatenate([left_out, _places_of(np.array([source]), candidates)])
            of_hits = row[hits]
            row[left_out] = -np.inf
            reciprocals.append(1 / _mean_ranks(of_hits, row))
            row[hits] = of_hits
            best = np.isin(_top(row, min(k, len(row)), order), hits)
            recalls.append(float(best.sum()) / len(hits))
            ndcg += float((gains[: len(best)] * best).sum() / gains[: min(len(hits), k)].sum())
    each, of_sources_found = np.concatenate(reciprocals), np.array(recalls)
    return RankedLinks(len(sources), len(candidates), each, of_sources_found, ndcg / len(sources))


def _partners(source: int, keys: np.ndarray, nodes: int) -> np.ndarray:
    """Second nodes of the pairs of one first node, ascending. `keys`: of pairs, ascending."""
    begin, end = np.searchsorted(keys, (source * nodes, (source + 1) * nodes))
    partners: np.ndarray = keys[begin:end] - source * nodes
    return partners


def _places_of(nodes: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Where those of the nodes that are candidates stand among them. Both ascending."""
    places = np.minimum(np.searchsorted(candidates, nodes), len(candidates) - 1)
    found: np.ndarray = places[candidates[places] == nodes]
    return found


def _mean_ranks(of_links: np.ndarray, of_others: np.ndarray) -> np.ndarray:
    """Rank of each link among pairs that are none, from 1: other links of the node do not push it down. Among equal
    scores the mean of the ranks that they share, so that a node of which nothing is known gains nothing by it."""
    above = np.array([np.count_nonzero(of_others > score) for score in of_links])
    equal = np.array([np.count_nonzero(of_others == score) for score in of_links])
    ranks: np.ndarray = 1 + above + equal / 2
    return ranks


def _top(row: np.ndarray, k: int, order: np.ndarray) -> np.ndarray:
    """Places of the k largest, the largest first. `order`: by which places of equal values stand."""
    least = np.partition(row, -k)[-k]
    larger, equal = np.flatnonzero(row > least), np.flatnonzero(row == least)
    equal = equal[np.argsort(order[equal])][: k - len(larger)]
    places = np.concatenate([larger, equal])
    ordered: np.ndarray = places[np.lexsort((order[places], -row[places]))]
    return ordered


def _sample(nodes: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    return nodes if len(nodes) <= most else np.sort(random.choice(nodes, most, replace=False))
