"""The rows with the highest scores for a query, exactly or by lists of faiss.

What rows and queries are made of is `comparison.py`'s. An index never decides what may be recommended: callers say
which positions are excluded, and which are allowed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from gnnserve_api.files.embeddings import IndexKind
from gnnserve_worker.models.pair_queries import PairQueries

MOST_EXACT_BYTES = 16 * 1024 * 1024
"""Vectors up to here are compared one by one: within 2 ms on one core, which a batch may take too. Beyond it an
approximate index is built."""
_MOST_GATHERED_SHARE = 0.1
"""Share of the nodes up to which those that may be found are gathered, rather than all compared."""
_MARGIN = 4
"""How many times as many nodes are compared where some may not be found: these are others than lists were tuned by, and
may lie together. Below 4, less than 99 % of the best ten are found of those that one column lets pass."""
_GATHERED_COST = 16
"""Nodes of lists that are passed over in the time that a node takes whose row is gathered by itself."""
_NO_PRODUCT = -np.inf


@dataclass(frozen=True, slots=True)
class SearchHits:
    """Positions and products, the nearest first."""

    positions: np.ndarray
    """int64 [found]"""
    products: np.ndarray
    """Scores, float32 [found]."""


class NearestIndex(Protocol):
    kind: IndexKind
    nodes: int
    columns: int

    def search(self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> SearchHits:
        """The best `count` for `query`, which is one; fewer only where not as many may be found. `excluded`: positions
        that are not found, int64. `allowed`: bool [nodes]; None: all of them."""


def unit(vectors: np.ndarray) -> np.ndarray:
    """The rows, float32, at length 1. A row of zeros, which points nowhere, stays."""
    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    made: np.ndarray = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return made


class ExactIndex:
    kind = IndexKind.EXACT

    def __init__(self, vectors: np.ndarray) -> None:
        """`vectors`: float32 [nodes, columns]; may be mapped."""
        self._vectors = vectors
        self.nodes, self.columns = vectors.shape

    def search(self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> SearchHits:
        if allowed is not None and np.count_nonzero(allowed) < self.nodes * _MOST_GATHERED_SHARE:
            few = _left_of(allowed, excluded)
            return best_of(few, query.score(self._vectors[few])[0], count)
        products = query.score(self._vectors)[0]
        if allowed is not None:
            products[~allowed] = _NO_PRODUCT
        products[excluded] = _NO_PRODUCT
        return best_of(np.arange(self.nodes), products, count)


class ListedIndex(ABC):
    """Vectors in lists by their nearest centre (faiss's IVFFlat): of the lists that are compared, all scores are
    exact."""

    kind = IndexKind.APPROXIMATE

    def __init__(self, index: Any, probed: int) -> None:
        """`index`: a `faiss.IndexIVFFlat`. `probed`: lists that a query is compared with."""
        self.index = index
        self.probed = probed
        self.lists = int(index.nlist)
        self.nodes, self.columns = int(index.ntotal), int(index.d)

    def search(self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None) -> SearchHits:
        probed = self.probed
        if allowed is not None:
            passing = max(int(np.count_nonzero(allowed)), 1)
            if 2 * passing < self.nodes:
                return self._among(query, count, excluded, allowed, passing)
            # What passes may lie together: where all but few do, hardly more lists are compared.
            probed = min(self.lists, int(np.ceil(probed * (self.nodes / passing) ** 4)))
        return self._search_whole(query, count, excluded, allowed, probed)

    def _among(
        self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray, passing: int
    ) -> SearchHits:
        """As `search`, where less than half of the nodes may be found, `passing` of them: among as many lists, the
        nearest first, as have several times as many of them as are compared without a filter; or one by one where that
        is less work."""
        wanted = count + _MARGIN * self.probed * self.nodes // self.lists
        # Where what passes is spread evenly, that many nodes lie in the lists that have as many as are wanted of it.
        if passing * _GATHERED_COST <= self.nodes * wanted / passing:
            return self._one_by_one(query, count, excluded, allowed)
        probed, compared = self._lists_with(wanted, np.argsort(-query.score(self._centres)[0]), allowed, passing)
        if passing * _GATHERED_COST <= compared:
            return self._one_by_one(query, count, excluded, allowed)
        return self._search_whole(query, count, excluded, allowed, probed)

    def _lists_with(self, wanted: int, order: np.ndarray, allowed: np.ndarray, passing: int) -> tuple[int, int]:
        """How many of the lists, in that order, have `wanted` nodes that may be found, of `passing` in all lists; and
        how many nodes these have. Hardly more lists are looked at than twice as many."""
        sizes, looked_at, reached, compared = self._sizes[order], 0, 0, 0
        # As many as have them where what passes is spread evenly.
        ahead = int(np.ceil(wanted * self.lists / passing))
        while looked_at < self.lists:
            block = order[looked_at : looked_at + ahead]
            flags = allowed[np.concatenate([self._positions[place] for place in block.tolist()])]
            within = int(np.count_nonzero(flags))
            ends = np.cumsum(sizes[looked_at : looked_at + ahead])
            if reached + within >= wanted:
                last = int(np.searchsorted(np.cumsum(flags), wanted - reached))
                lists = int(np.searchsorted(ends, last, side="right")) + 1
                return looked_at + lists, compared + int(ends[lists - 1])
            looked_at, reached, compared = looked_at + len(block), reached + within, compared + int(ends[-1])
            ahead = looked_at
        return self.lists, self.nodes

    def _one_by_one(self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray) -> SearchHits:
        few = _left_of(allowed, excluded)
        return best_of(few, query.score(self._rows_of(few))[0], count)

    def _rows_of(self, positions: np.ndarray) -> np.ndarray:
        """float32 [positions, columns]"""
        self.index.make_direct_map()  # which is there from the first filter on
        rows: np.ndarray = self.index.reconstruct_batch(positions)
        return rows

    def _search_whole(
        self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None, probed: int
    ) -> SearchHits:
        """As `search`, among that many lists, or all of them where these have too few nodes."""
        found = self._search(query, count, excluded, allowed, probed)
        if len(found.positions) < count and probed < self.lists:
            found = self._search(query, count, excluded, allowed, self.lists)
        return found

    @cached_property
    def _sizes(self) -> np.ndarray:
        """Nodes of each list, int64 [lists]."""
        return np.array([len(of_list) for of_list in self._positions], np.int64)

    @cached_property
    def _centres(self) -> np.ndarray:
        """float32 [lists, columns]"""
        return np.asarray(self.index.quantizer.reconstruct_n(0, self.lists))

    @cached_property
    def _positions(self) -> list[np.ndarray]:
        """Positions of the nodes of each list, int64, in the index's own memory. Of an empty one there is none to point
        at."""
        import faiss  # noqa: PLC0415

        lists, nothing = self.index.invlists, np.empty(0, np.int64)
        sizes = [int(lists.list_size(place)) for place in range(self.lists)]
        return [faiss.rev_swig_ptr(lists.get_ids(place), size) if size else nothing for place, size in enumerate(sizes)]

    @abstractmethod
    def _search(
        self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None, probed: int
    ) -> SearchHits:
        """As `search`, among that many lists."""

    @abstractmethod
    def best_scores(self, queries: PairQueries, count: int) -> np.ndarray:
        """Scores of what each query finds, float32 [queries, count]; -inf where it finds fewer."""


class ProductLists(ListedIndex):
    """Scores are inner products, and lists are chosen by that with their centres."""

    def _search(
        self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None, probed: int
    ) -> SearchHits:
        # Imported here: a service without recommendations does without it.
        import faiss  # noqa: PLC0415

        selector = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        parameters = faiss.SearchParametersIVF(nprobe=probed, sel=selector)
        wanted = min(self.nodes, count + len(excluded))
        products, positions = self.index.search(query.vectors, wanted, params=parameters)
        kept = (positions[0] >= 0) & ~np.isin(positions[0], excluded)
        return SearchHits(positions[0][kept][:count], products[0][kept][:count])

    def best_scores(self, queries: PairQueries, count: int) -> np.ndarray:
        self.index.nprobe = self.probed
        scores: np.ndarray = self.index.search(queries.vectors, count)[0]
        return scores


class ScoredLists(ListedIndex):
    """Scores are no products: lists are chosen by the scores that their centres would have."""

    def __init__(self, index: Any, probed: int) -> None:
        import faiss  # noqa: PLC0415

        super().__init__(index, probed)
        lists = index.invlists
        self._rows = [
            faiss.rev_swig_ptr(lists.get_codes(place), len(of_list) * lists.code_size)
            .view(np.float32)
            .reshape(-1, self.columns)
            if len(of_list)
            else np.empty((0, self.columns), np.float32)
            for place, of_list in enumerate(self._positions)
        ]

    def _search(
        self, query: PairQueries, count: int, excluded: np.ndarray, allowed: np.ndarray | None, probed: int
    ) -> SearchHits:
        near = np.argpartition(-query.score(self._centres)[0], probed - 1)[:probed].tolist()
        positions, scores = [], []
        for place in near:
            of_list, rows = self._positions[place], self._rows[place]
            if allowed is not None:
                kept = np.flatnonzero(allowed[of_list])
                of_list, rows = of_list[kept], rows[kept]
            positions.append(of_list)
            scores.append(query.score(rows)[0])
        found, products = np.concatenate(positions), np.concatenate(scores)
        products[np.isin(found, excluded)] = _NO_PRODUCT
        return best_of(found, products, count)

    def best_scores(self, queries: PairQueries, count: int) -> np.ndarray:
        scores = np.full((len(queries.vectors), count), _NO_PRODUCT, np.float32)
        nothing = np.empty(0, np.int64)
        for place in range(len(scores)):
            found = self._search(queries.some(np.array([place])), count, nothing, None, self.probed)
            scores[place, : len(found.products)] = found.products
        return scores


def open_lists(index: Any, probed: int) -> ListedIndex:
    """`index`: a `faiss.IndexIVFFlat`, of inner products where scores are, else of distances."""
    import faiss  # noqa: PLC0415

    kinds = {faiss.METRIC_INNER_PRODUCT: ProductLists, faiss.METRIC_L2: ScoredLists}
    return kinds[index.metric_type](index, probed)


def exact_best(blocks: Iterable[np.ndarray], queries: PairQueries, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (int64) and scores (float32) of the best `count` of each query, both [queries, count], the best first.
    `blocks` add up to all rows."""
    asked = len(queries.vectors)
    best = np.full((asked, count), -1, np.int64)
    products = np.full((asked, count), _NO_PRODUCT, np.float32)
    start = 0
    for block in blocks:
        joined = np.concatenate([products, queries.score(block)], axis=1)
        new = np.broadcast_to(np.arange(start, start + len(block)), (asked, len(block)))
        places = np.concatenate([best, new], axis=1)
        top = np.argpartition(-joined, count - 1, axis=1)[:, :count]
        products, best = np.take_along_axis(joined, top, 1), np.take_along_axis(places, top, 1)
        start += len(block)
    order = np.argsort(-products, axis=1, kind="stable")
    return np.take_along_axis(best, order, 1), np.take_along_axis(products, order, 1)


def _left_of(allowed: np.ndarray, excluded: np.ndarray) -> np.ndarray:
    """Positions that are allowed (bool [nodes]) and not excluded (int64), int64."""
    few = np.flatnonzero(allowed)
    left: np.ndarray = few[~np.isin(few, excluded)]
    return left


def best_of(positions: np.ndarray, products: np.ndarray, count: int) -> SearchHits:
    """The nearest `count` of these (int64 and float32, [nodes] both); level ones by position."""
    if count < len(products):
        top = np.argpartition(-products, count - 1)[:count]
        positions, products = positions[top], products[top]
    order = np.lexsort((positions, -products))
    positions, products = positions[order], products[order]
    kept = products > _NO_PRODUCT
    return SearchHits(positions[kept], products[kept])
