"""What makes a score of the embeddings of two nodes, in numpy: the last step of a link's prediction.

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

_BLOCK_PAIRS = 1 << 18
"""Pairs that are scored at once where all pairs of many nodes are."""


class LinkDecoder(Protocol):
    @property
    def folding(self) -> Folding | None:
        """How embeddings of nodes that are not stored are made of stored ones; None: by their sum, if at all."""

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [pairs] of embeddings float32 [pairs, dimensions]."""

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Scores float32 [n, m] of each of n embeddings with each of m."""

    def as_query(self, embeddings: np.ndarray) -> np.ndarray:
        """Vectors float32 [n, dimensions] whose inner product with an embedding of the other end, whichever that is, is
        the score. ValueError: no product is."""


class _Dot:
    def __init__(self, folding: Folding | None) -> None:
        self.folding = folding

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.einsum("ij,ij->i", first, second)
        return scores

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = first @ second.T
        return scores

    def as_query(self, embeddings: np.ndarray) -> np.ndarray:
        return embeddings


class _DistMult:
    folding: ClassVar[Folding | None] = None

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = np.einsum("ij,ij->i", first * self._weights, second)
        return scores

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        scores: np.ndarray = (first * self._weights) @ second.T
        return scores

    def as_query(self, embeddings: np.ndarray) -> np.ndarray:
        weighed: np.ndarray = embeddings * self._weights
        return weighed


class _Perceptron:
    folding: ClassVar[Folding | None] = None

    def __init__(self, first: np.ndarray, second: np.ndarray, bias: np.ndarray, out: np.ndarray, end: float) -> None:
        """Matrices float32 [hidden, dimensions] of either embedding, the hidden layer's bias, and the last product."""
        self._first, self._second, self._bias, self._out, self._end = first.T, second.T, bias, out, end

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        hidden = first @ self._first
        hidden += second @ self._second
        hidden += self._bias
        np.maximum(hidden, 0, out=hidden)
        scores: np.ndarray = hidden @ self._out + self._end
        return scores

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        of_first, of_second = first @ self._first + self._bias, second @ self._second
        scores = np.empty((len(first), len(second)), np.float32)
        rows = max(1, _BLOCK_PAIRS // max(1, len(second)))
        for start in range(0, len(first), rows):
            hidden = np.maximum(of_first[start : start + rows, None, :] + of_second[None], 0)
            scores[start : start + rows] = hidden @ self._out + self._end
        return scores

    def as_query(self, embeddings: np.ndarray) -> np.ndarray:
        raise ValueError("a perceptron over both embeddings is no product of them")


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
