"""The nearest vectors by inner product with a query, exactly or by an index of faiss.

Vectors of length 1 make it cosine similarity (*Optimizing GraphSAGE inference on NVIDIA Triton*, Recommendations);
of other lengths, the score of a pair by a product of embeddings. An index never decides what may be recommended:
callers say which positions are excluded, and which are allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gnnserve_api.embeddings import IndexKind, IndexMetric

MOST_EXACT_BYTES = 16 * 1024 * 1024
"""Vectors up to here are compared one by one: within 2 ms on one core, which a batch may take too. Beyond it an
approximate index is built."""
_NO_PRODUCT = -np.inf


@dataclass(frozen=True, slots=True)
class Found:
    """Positions and products, the nearest first."""

    positions: np.ndarray
    """int64 [found]"""
    products: np.ndarray
    """float32 [found], with the query at length 1: of vectors of length 1, cosines."""


class NearestIndex(Protocol):
    kind: IndexKind
    nodes: int
    columns: int

    def search(self, query: np.ndarray, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> Found:
        """The nearest `count` to `query`, fewer where there are not so many. `query`: float32 [columns], of any length
        but 0. `excluded`: positions that are not found, int64. `allowed`: bool [nodes]; None: all of them."""


def unit(vectors: np.ndarray) -> np.ndarray:
    """The rows, float32, at length 1. A row of zeros, which points nowhere, stays."""
    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    made: np.ndarray = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return made


def _as_they_are(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors, np.float32)


RowsOf = Callable[[np.ndarray], np.ndarray]
ROWS_OF: Mapping[IndexMetric, RowsOf] = {IndexMetric.COSINE: unit, IndexMetric.SCORE: _as_they_are}
"""What is compared with queries of embeddings (float32 [nodes, columns]), by what nodes are the nearest by."""


class ExactIndex:
    kind = IndexKind.EXACT

    def __init__(self, vectors: np.ndarray) -> None:
        """`vectors`: float32 [nodes, columns]; may be mapped."""
        self._vectors = vectors
        self.nodes, self.columns = vectors.shape

    def search(self, query: np.ndarray, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> Found:
        products = self._vectors @ unit(query)
        if allowed is not None:
            products[~allowed] = _NO_PRODUCT
        products[excluded] = _NO_PRODUCT
        return best_of(np.arange(self.nodes), products, count)


class ListedIndex:
    """Vectors in lists by their nearest centre (faiss's IVFFlat): of the lists that are compared, all
    products are exact."""

    kind = IndexKind.APPROXIMATE

    def __init__(self, index: Any, probed: int) -> None:
        """`index`: a `faiss.IndexIVFFlat` over inner products. `probed`: lists that a query is compared with."""
        self._index = index
        self._probed = probed
        self.nodes, self.columns = int(index.ntotal), int(index.d)

    def search(self, query: np.ndarray, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> Found:
        # Imported here: a service without recommendations does without it.
        import faiss  # noqa: PLC0415

        probed, selector = self._probed, None
        if allowed is not None:
            # The fewer may be found, the more lists have to be looked through for as many of them.
            share = max(int(np.count_nonzero(allowed)), 1) / self.nodes
            probed = min(int(self._index.nlist), int(np.ceil(probed / share)))
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersIVF(nprobe=probed, sel=selector)
        wanted = min(self.nodes, count + len(excluded))
        products, positions = self._index.search(unit(query)[None], wanted, params=parameters)
        kept = (positions[0] >= 0) & ~np.isin(positions[0], excluded)
        return Found(positions[0][kept][:count], products[0][kept][:count])


def exact_best(blocks: Iterable[np.ndarray], queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) and products (float32) of the nearest `count` of each query, both [queries, count], the nearest
    first, by blocked products. `blocks` add up to all vectors; the queries have length 1."""
    best = np.full((len(queries), count), -1, np.int64)
    products = np.full((len(queries), count), _NO_PRODUCT, np.float32)
    start = 0
    for block in blocks:
        joined = np.concatenate([products, queries @ block.T], axis=1)
        new = np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))
        places = np.concatenate([best, new], axis=1)
        top = np.argpartition(-joined, count - 1, axis=1)[:, :count]
        products, best = np.take_along_axis(joined, top, 1), np.take_along_axis(places, top, 1)
        start += len(block)
    order = np.argsort(-products, axis=1, kind="stable")
    return np.take_along_axis(best, order, 1), np.take_along_axis(products, order, 1)


def best_of(positions: np.ndarray, products: np.ndarray, count: int) -> Found:
    """The nearest `count` of these (int64 and float32, [nodes] both); level ones by position."""
    if count < len(products):
        top = np.argpartition(-products, count - 1)[:count]
        positions, products = positions[top], products[top]
    order = np.lexsort((positions, -products))
    positions, products = positions[order], products[order]
    kept = products > _NO_PRODUCT
    return Found(positions[kept], products[kept])
