"""How nodes of an index are compared with the node that is asked for: by the cosine of their embeddings
(*Optimizing GraphSAGE inference on NVIDIA Triton*, Recommendations), or by the score of the pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_worker.models.decoder import LinkDecoder
from gnnserve_worker.models.pair_queries import PairQueries, Products
from gnnserve_worker.nearest.search import unit


class Comparison(Protocol):
    @property
    def are_products(self) -> bool:
        """Whether scores are inner products of queries and rows."""

    def rows(self, embeddings: np.ndarray) -> np.ndarray:
        """Rows of an index, float32 [nodes, width], of embeddings float32 [nodes, columns]."""

    def queries(self, embeddings: np.ndarray) -> PairQueries:
        """Embeddings that an index is searched with, float32 [nodes, columns]."""


@dataclass(frozen=True, slots=True)
class ByCosine:
    are_products: bool = True

    def rows(self, embeddings: np.ndarray) -> np.ndarray:
        return unit(embeddings)

    def queries(self, embeddings: np.ndarray) -> PairQueries:
        return Products(unit(embeddings))


@dataclass(frozen=True, slots=True)
class ByScore:
    decoder: LinkDecoder
    stand_first: bool
    """Whether nodes of the index are the first ones of pairs."""

    @property
    def are_products(self) -> bool:
        return self.decoder.gives_products

    def rows(self, embeddings: np.ndarray) -> np.ndarray:
        return self.decoder.rows(embeddings, stand_first=self.stand_first)

    def queries(self, embeddings: np.ndarray) -> PairQueries:
        return self.decoder.queries(embeddings, rows_stand_first=self.stand_first)
