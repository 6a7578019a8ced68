"""Rows of tables that store a layer, for nodes that a request brings or whose neighbours it changes.

Such a table has for each node a product of the first layer's output over all neighbours. An overlay changes this output
of the nodes that it brings, of those that gain neighbours, and of those that read a node with other features. Their
outputs are made anew: from the sum that was aggregated ahead of time and what is added to it, where the aggregator is a
plain mean or sum; otherwise from all of their neighbours. Both read products of the first layer in float32, so that
what is made is what would have been stored, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import list_begin, list_count, list_end, prefetch_row, slot_of
from gnnserve_worker.kernels.view import HAS_OVERLAY, HAS_OVERRIDES, SampleView, row_of_overlay, seen_as, unpack
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.rows import FeaturesOf, RowMaker, multiplied
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import NO_SCALES, RowsBehind
from gnnserve_worker.tables.vectors import sum_weighted_rows

_space = LayerScratch()
_AHEAD = 2
"""Nodes by which prefetching is ahead."""
_ROOM = 256
"""Rows that are summed for a node, for which there is memory from the beginning."""


@dataclass(frozen=True, slots=True)
class StoredRowMaker:
    """Makes rows of a table that stores the first layer."""

    stored: StoredLayerMaker
    products: RowMaker
    """Makes rows of the table of the first layer's products."""
    averages: bool
    """Whether the layer that reads the table sums rows of neighbours without weights: then one product is made of all
    altered neighbours that a row of a sample reads, in place of one of each."""

    @property
    def made_of(self) -> Sequence[RowsOfFeatures]:
        """As `MakesRows.made_of`: nothing, since a layer reads neighbours."""
        return ()

    @property
    def reaching(self) -> None:
        """As `MakesRows.reaching`."""
        return None

    @property
    def names_leaves(self) -> bool:
        """A node that gains neighbours has another output, also where it is a leaf."""
        return True

    def kept_features(self, features: Sequence[int]) -> FeaturesOf | None:
        """As `MakesRows.kept_features`: rows of layers do not tell them."""
        return None

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`; rows of neighbours and of nodes themselves have the same numbers, and the latter are
        the first ones."""
        stored, table = self.stored, self.stored.table
        altered = _find_altered(view.sampling, sample, stored.graph, weighted=stored.layer.weighs_neighbours)
        if not len(altered.ids):
            return None
        make = self._aggregate_anew if stored.aggregated is None else self._continue
        hidden = make(view, altered.ids, altered.views)
        if self.averages and len(altered.ids) > altered.own:
            hidden = _average(sample, hidden, stored.graph.nodes, altered.own)
        values, scales = multiplied(hidden, stored.next_products[0], table.rows)
        if len(stored.next_products) == 1:
            return RowsBehind(values, scales, values, scales)
        return RowsBehind(values, scales, *multiplied(hidden[: altered.own], stored.next_products[1], table.own))

    def _aggregate_anew(self, view: BatchView, ids: np.ndarray, views: np.ndarray) -> np.ndarray:
        """The layer's output of these nodes, float32 [nodes, width], from all of their neighbours."""
        sample = _space.sample(self.stored.graph, ids, self.stored.neighbour_roots, view.sampling.of_others(views))
        table = self.products.table
        behind = self.products.behind(view, sample, table.columns, apart=True)
        layer, count = self.stored.layer, len(ids)
        aggregated = layer.gather(table, sample, _space.activations, behind)
        output = layer.multiply(aggregated, count, _space.activations)
        return output[: count * layer.outputs].reshape(count, layer.outputs)

    def _continue(self, view: BatchView, ids: np.ndarray, views: np.ndarray) -> np.ndarray:
        """The same from what was aggregated ahead of time."""
        if self.stored.aggregated is None or view.features is None:
            raise ValueError("nothing was aggregated ahead of time, or the view brings nothing")
        graph, table, packed = self.stored.graph, self.products.table, view.sampling.packed
        layer, count = self.stored.layer, len(view.features)
        is_read, is_read_own = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        _mark_features(graph.indptr, graph.indices, packed, ids, views, is_read, is_read_own)
        read, own = np.nonzero(is_read)[0], np.nonzero(is_read_own)[0]
        if not self.products.has_own_rows:
            read = own = np.nonzero(is_read | is_read_own)[0]
        made, _, own_made, _ = self.products.make_of(view, (read, own), table.columns)
        places, own_places = np.zeros(count, np.int64), np.zeros(count, np.int64)
        places[read], own_places[own] = np.arange(len(read)), np.arange(len(own))
        aggregation = layer.aggregation
        flat = _space.activations.hidden(len(ids) * layer.inputs)
        _correct(
            graph.indptr, graph.indices, packed, ids, views, self.stored.aggregated.values,
            table.rows.values, table.own.values, _given(made), _given(own_made), places, own_places,
            layer.inputs, aggregation.mean, aggregation.own_factor, aggregation.bias, aggregation.relu, NO_SCALES,
            flat,
        )  # fmt: skip
        output = layer.multiply(flat, len(ids), _space.activations)
        return output[: len(ids) * layer.outputs].reshape(len(ids), layer.outputs)


def _average(sample: NeighbourSample, hidden: np.ndarray, stored: int, own: int) -> np.ndarray:
    """The first `own` rows of `hidden`, float32 [altered nodes, width], then for each row of the sample that reads
    altered neighbours their mean, which is put in place of each of them: a sum of their products is the product of
    their sum."""
    averaged = np.empty((own + len(sample.nodes), hidden.shape[1]), np.float32)
    found = _average_each(sample.starts, sample.neighbours, hidden, stored, own, averaged)
    return averaged[:found]


@kernel
def _average_each(
    starts: np.ndarray, neighbours: np.ndarray, hidden: np.ndarray, stored: int, own: int, averaged: np.ndarray
) -> int:
    """Returns how many rows there are."""
    averaged[:own] = hidden[:own]
    width = hidden.shape[1]
    found = own
    for row in range(len(starts) - 1):
        count = 0
        mean = averaged[min(found, len(averaged) - 1)]
        for edge in range(starts[row], starts[row + 1]):
            if neighbours[edge] < stored:
                continue
            altered = hidden[neighbours[edge] - stored]
            neighbours[edge] = stored + found
            count += 1
            for column in range(width):
                mean[column] = altered[column] if count == 1 else mean[column] + altered[column]
        if count > 0:
            share = np.float32(1.0 / count)
            for column in range(width):
                mean[column] *= share
            found += 1
    return found


def _given(rows: np.ndarray | None) -> np.ndarray:
    if rows is None:
        raise ValueError("a row maker that makes no rows")
    return rows


class _AlteredNodes(NamedTuple):
    """Nodes whose output of the layer is another one in their view."""

    ids: np.ndarray
    """int64"""
    views: np.ndarray
    """int32"""
    own: int
    """So many of the first are rows of the sample; all others are neighbours alone."""


def _find_altered(view: SampleView, sample: NeighbourSample, graph: Graph, *, weighted: bool) -> _AlteredNodes:
    """The altered nodes that the sample reads. In the sample N + i is put in place of the i-th of them. `weighted`: a
    node's output depends on the degrees of its neighbours, too."""
    if sample.views is None:
        raise ValueError("the sample has no views")
    most = len(sample.nodes) + len(sample.neighbours)
    ids, views = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int32)
    found, own = _find(
        graph.indptr, graph.indices, view.packed, sample.nodes, sample.starts, sample.neighbours, sample.views,
        HAS_OVERLAY if weighted else HAS_OVERRIDES, ids, views,
    )  # fmt: skip
    return _AlteredNodes(ids[:found], views[:found], own)


@kernel
def _find(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, nodes: np.ndarray, starts: np.ndarray,
    neighbours: np.ndarray, row_views: np.ndarray, reaching: int, ids: np.ndarray, views: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """`reaching`: the flag of views in which a stored node may have another output through its neighbours. Returns how
    many were found, and how many of them are rows."""
    _, _, flags, first_slots, origins, streams, _, _, slots = unpack(packed)
    stored = list_count(indptr)
    places = np.full(len(origins), -1, dtype=np.int64)
    reaches = False
    for view in range(len(flags)):
        reaches = reaches or (flags[view] & reaching) != 0
    size = 2
    while reaches and size < 2 * len(ids):
        size *= 2
    # Stored nodes that were looked at already: the place of those that have another output, -1 of the others.
    keys = np.full(size, -1, dtype=np.int64)
    values = np.empty(size, dtype=np.int64)
    found = 0
    own = 0
    for reads_neighbours in (False, True):
        for row in range(len(nodes)):
            view = row_views[row]
            looks = (flags[view] & reaching) != 0
            begin = starts[row] if reads_neighbours else 0
            end = starts[row + 1] if reads_neighbours else 1
            for edge in range(begin, end):
                node = int(neighbours[edge]) if reads_neighbours else int(nodes[row])
                place = -1
                if node >= stored:
                    place = places[node - stored]
                    if place < 0:
                        place = found
                        places[node - stored] = found
                        ids[found] = node
                        views[found] = view
                        found += 1
                elif looks:
                    key = int((np.int64(view) << np.int64(32)) | np.int64(node))
                    slot = slot_of(key, keys)
                    if keys[slot] != key:
                        keys[slot] = key
                        values[slot] = -1
                        for entry in range(list_begin(indptr, node), list_end(indptr, node)):
                            seen = seen_as(indices[entry], view, stored, first_slots, slots, origins)
                            if seen >= stored and (reaching == HAS_OVERLAY or seen - stored < len(streams)):
                                values[slot] = found
                                ids[found] = node
                                views[found] = view
                                found += 1
                                break
                    place = values[slot]
                if place >= 0:
                    if reads_neighbours:
                        neighbours[edge] = stored + place
                    else:
                        nodes[row] = stored + place
        if not reads_neighbours:
            own = found
    return found, own


@kernel
def _mark_features(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, ids: np.ndarray, views: np.ndarray,
    is_read: np.ndarray, is_read_own: np.ndarray,
) -> None:  # fmt: skip
    """Mark the rows of features that correcting these nodes reads, of neighbours and of nodes themselves."""
    _, _, flags, first_slots, origins, streams, extra_starts, extra, slots = unpack(packed)
    stored = list_count(indptr)
    for i in range(len(ids)):
        node = ids[i]
        view = views[i]
        origin = node
        if node >= stored:
            origin = origins[node - stored]
            if node - stored < len(streams):
                is_read_own[node - stored] = True
            for entry in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
                seen = extra[entry]
                if seen < stored:
                    seen = seen_as(seen, view, stored, first_slots, slots, origins)
                if stored <= seen < stored + len(streams):
                    is_read[seen - stored] = True
        if origin >= 0 and flags[view] & HAS_OVERRIDES:
            for entry in range(list_begin(indptr, origin), list_end(indptr, origin)):
                seen = seen_as(indices[entry], view, stored, first_slots, slots, origins)
                if stored <= seen < stored + len(streams):
                    is_read[seen - stored] = True


@kernel
def _correct(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, ids: np.ndarray, views: np.ndarray,
    aggregated: np.ndarray, products: np.ndarray, own_products: np.ndarray, made: np.ndarray, own_made: np.ndarray,
    places: np.ndarray, own_places: np.ndarray, columns: int, mean: bool, own_factor: float, bias: np.ndarray,
    relu: bool, no_scales: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """What the layer's products read of each node: `aggregated` of it, without its own row and without the mean's
    division, with what its list gains and what others of its neighbours are; then divided, with its own row and bias
    again. It is one weighted sum of rows, which is made in registers. `places`: where in `made` the product of each row
    of features is."""
    _, _, flags, first_slots, origins, streams, extra_starts, extra, slots = unpack(packed)
    stored = list_count(indptr)
    read = (products, made, own_products, own_made)
    first_own = len(products) + len(made)
    first_own_made = first_own + len(own_products)
    rows = np.empty(_ROOM, np.int64)
    weights = np.empty(_ROOM, np.float32)
    for i in range(len(ids)):
        # Their rows are in no cache: what the node after next reads is fetched meanwhile.
        ahead = ids[min(i + _AHEAD, len(ids) - 1)]
        ahead = ahead if ahead < stored else origins[ahead - stored]
        if ahead >= 0:
            prefetch_row(aggregated, ahead, 0, columns)
            prefetch_row(own_products, ahead, 0, columns)
        node = ids[i]
        view = views[i]
        origin = node if node < stored else origins[node - stored]
        listed = 0
        if origin >= 0:
            listed = list_end(indptr, origin) - list_begin(indptr, origin)
        degree = listed
        if node >= stored:
            degree += extra_starts[node - stored + 1] - extra_starts[node - stored]
        most = listed + degree + 2
        if most > len(rows):
            rows = np.empty(2 * most, np.int64)
            weights = np.empty(2 * most, np.float32)
        share = np.float32(1.0 / degree) if mean and degree > 0 else np.float32(1.0)
        count = 0
        if origin >= 0 and flags[view] & HAS_OVERRIDES:
            for entry in range(list_begin(indptr, origin), list_end(indptr, origin)):
                seen = seen_as(indices[entry], view, stored, first_slots, slots, origins)
                if stored <= seen < stored + len(streams):
                    rows[count] = len(products) + places[seen - stored]
                    weights[count] = share
                    rows[count + 1] = indices[entry]
                    weights[count + 1] = -share
                    count += 2
        has_other = False
        if node >= stored:
            for entry in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
                seen = extra[entry]
                if seen < stored:
                    seen = seen_as(seen, view, stored, first_slots, slots, origins)
                place = seen if seen < stored else row_of_overlay(seen, stored, origins, streams)
                rows[count] = len(products) + places[place - stored] if place >= stored else place
                weights[count] = share
                count += 1
            has_other = node - stored < len(streams)
        own = np.float32(own_factor)
        of_sum = np.float32(0.0)
        if origin >= 0:
            of_sum = share * np.float32(listed) if mean and listed > 0 else share
            rows[count] = first_own + origin
            weights[count] = (np.float32(0.0) if has_other else own) - own * of_sum
            count += 1
        if has_other:
            rows[count] = first_own_made + own_places[node - stored]
            weights[count] = own
            count += 1
        sum_weighted_rows(
            out, i * columns, columns, read, no_scales, rows, 0, count, 1.0,
            aggregated, no_scales, max(origin, 0), of_sum, bias, relu, weights,
        )  # fmt: skip
