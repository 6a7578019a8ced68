"""Decoder that makes a score of the embeddings of two nodes, in numpy: the last step of a link's prediction.

Weights are those of one file of the revision, which all of its variants share. The torch side, which learns them, is
`tasks/score_links/decoders.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from gnnserve_api.spec.task import Decoder
from gnnserve_worker.models.folding import Folding, build_folding
from gnnserve_worker.models.network import take
from gnnserve_worker.models.pair_queries import HiddenSums, PairQueries, Products, warm_up_sums


class LinkDecoder(Protocol):
    """Pairs of a node with many others are scored by what is kept of each of the others (`rows`) and made of the node
    once (`queries`)."""

    gives_products: bool
    """Whether scores are inner products of queries and rows."""

    @property
    def folding(self) -> Folding | None:
        """How embeddings of nodes that are not stored are made of stored ones; None: by their sum, if at all."""

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [pairs] of embeddings float32 [pairs, dimensions]."""

    def rows(self, embeddings: np.ndarray, *, stand_first: bool) -> np.ndarray:
        """Rows float32 [n, width] of embeddings float32 [n, dimensions]. `stand_first`: whether these nodes are the
        first ones of pairs."""

    def queries(self, embeddings: np.ndarray, *, rows_stand_first: bool) -> PairQueries:
        """Embeddings float32 [n, dimensions] as queries of rows. `rows_stand_first`: as of `rows`."""


class _Dot:
    gives_products = True

    def __init__(self, folding: Folding | None) -> None:
        self.folding = folding

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.einsum("ij,ij->i", first, second)
        return scores

    def rows(self, embeddings: np.ndarray, *, stand_first: bool) -> np.ndarray:
        return np.asarray(embeddings, np.float32)

    def queries(self, embeddings: np.ndarray, *, rows_stand_first: bool) -> PairQueries:
        return Products(embeddings)


class _DistMult:
    gives_products = True
    folding: ClassVar[Folding | None] = None

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.einsum("ij,ij->i", first * self._weights, second)
        return scores

    def rows(self, embeddings: np.ndarray, *, stand_first: bool) -> np.ndarray:
        return np.asarray(embeddings, np.float32)

    def queries(self, embeddings: np.ndarray, *, rows_stand_first: bool) -> PairQueries:
        return Products(embeddings * self._weights)


class _Perceptron:
    """Its hidden layer is a sum of one product of either embedding, so that the products of nodes are kept."""

    gives_products = False
    folding: ClassVar[Folding | None] = None

    def __init__(self, first: np.ndarray, second: np.ndarray, bias: np.ndarray, out: np.ndarray, end: float) -> None:
        """Matrices float32 [hidden, dimensions] of either embedding, the hidden layer's bias, and the last product."""
        self._first, self._second, self._bias, self._out, self._end = first.T, second.T, bias, out, end
        warm_up_sums()  # compiled now, not while the first request waits

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        hidden = first @ self._first
        hidden += second @ self._second
        hidden += self._bias
        np.maximum(hidden, 0, out=hidden)
        scores: np.ndarray = hidden @ self._out + self._end
        return scores

    def rows(self, embeddings: np.ndarray, *, stand_first: bool) -> np.ndarray:
        made: np.ndarray = embeddings @ (self._first if stand_first else self._second)
        return made

    def queries(self, embeddings: np.ndarray, *, rows_stand_first: bool) -> PairQueries:
        halves = embeddings @ (self._second if rows_stand_first else self._first) + self._bias
        return HiddenSums(halves, self._out, self._end)


def score_all(decoder: LinkDecoder, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Scores float32 [n, m] of each of n embeddings with each of m, float32 [n, dimensions] and [m, dimensions]."""
    return decoder.queries(first, rows_stand_first=False).score(decoder.rows(second, stand_first=False))


def build_decoder(name: str, weights: Mapping[str, np.ndarray], dimensions: int) -> LinkDecoder:
    """`weights`: under the keys of `tasks/score_links/decoders.py` and `folding.py`. ValueError: one is missing
    or misshapen, or this version does not know the decoder."""
    match Decoder(name):
        case Decoder.DOT:
            return _Dot(build_folding(weights, dimensions))
        case Decoder.DIST_MULT:
            return _DistMult(take(weights, "relation", (dimensions,)))
        case Decoder.MLP:
            # As wide as an embedding where it is learnt here.
            hidden = len(weights["bias"])
            return _Perceptron(
                take(weights, "first", (hidden, dimensions)),
                take(weights, "second", (hidden, dimensions)),
                take(weights, "bias", (hidden,)),
                take(weights, "out", (hidden,)),
                float(take(weights, "end", (1,))[0]),
            )


def probabilities(scores: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """Calibrated probabilities, float32, of scores float32 (Platt, *Probabilistic outputs for support vector
    machines*)."""
    logits = slope * scores.astype(np.float64) + intercept
    found: np.ndarray = (0.5 * (1 + np.tanh(0.5 * logits))).astype(np.float32)
    return found
