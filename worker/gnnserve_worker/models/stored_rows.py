"""Rows of tables that store a layer, for nodes that a request brings or whose neighbours it changes.

Such a table has for each node a product of the first layer's output over all neighbours. An overlay changes this output
of the nodes that it brings, of those that gain neighbours, and of those that read a node with other features. Their
outputs are made anew: from the sum that was aggregated ahead of time and what is added to it, where the aggregator is a
plain mean or sum; otherwise from all of their neighbours. Both read products of the first layer in float32, so that
what is made is what would have been stored, but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.graph.view import BatchView
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.models.network import multiply
from gnnserve_worker.models.rows import RowMaker, multiplied
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.sampling.kernels import slot_of
from gnnserve_worker.sampling.lists import list_begin, list_count, list_end
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.sampling.view import HAS_OVERLAY, HAS_OVERRIDES, SampleView, seen_as, unpack
from gnnserve_worker.tables.table import RowsBehind

_space = LayerScratch()


@dataclass(frozen=True, slots=True)
class StoredRowMaker:
    """Makes rows of a table that stores the first layer."""

    stored: StoredLayerMaker
    products: RowMaker
    """Makes rows of the table of the first layer's products."""

    @property
    def names_leaves(self) -> bool:
        """A node that gains neighbours has another output, also where it is a leaf."""
        return True

    def behind(self, view: BatchView, sample: NeighbourSample, columns: int, *, apart: bool) -> RowsBehind | None:
        """As `MakesRows.behind`; rows of neighbours and of nodes themselves have the same numbers."""
        stored, table = self.stored, self.stored.table
        ids, views = _find_altered(view.sampling, sample, stored.graph, weighted=stored.layer.weighs_neighbours)
        if not len(ids):
            return None
        make = self._aggregate_anew if stored.aggregated is None else self._continue
        hidden = make(view, ids, views)
        made = [
            multiplied(hidden, product, rows)
            for product, rows in zip(stored.next_products, (table.rows, table.own), strict=False)
        ]
        (values, scales), (own_values, own_scales) = made[0], made[-1]
        return RowsBehind(values, scales, own_values, own_scales)

    def _aggregate_anew(self, view: BatchView, ids: np.ndarray, views: np.ndarray) -> np.ndarray:
        """The layer's output of these nodes, float32 [nodes, width], from all of their neighbours."""
        sample = _space.sample(self.stored.graph, ids, self.stored.neighbour_roots, view.sampling.of_others(views))
        table = self.products.table
        behind = self.products.behind(view, sample, table.columns, apart=True)
        aggregated = self.stored.layer.gather(table, sample, _space.activations, behind)
        hidden = np.empty((len(ids), self.stored.layer.classes), dtype=np.float32)
        self.stored.layer.infer(aggregated, sample, _space.activations, hidden)
        return hidden

    def _continue(self, view: BatchView, ids: np.ndarray, views: np.ndarray) -> np.ndarray:
        """The same from what was aggregated ahead of time."""
        if self.stored.aggregated is None or view.features is None:
            raise ValueError("nothing was aggregated ahead of time, or the view brings nothing")
        graph, table, packed = self.stored.graph, self.products.table, view.sampling.packed
        layer, count = self.stored.layer.layers[0], len(view.features)
        is_read, is_read_own = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        _mark_features(graph.indptr, graph.indices, packed, ids, views, is_read, is_read_own)
        has_own = self.products.has_own_rows
        read, own = np.nonzero(is_read)[0], np.nonzero(is_read_own)[0]
        if not has_own:
            read = own = np.nonzero(is_read | is_read_own)[0]
        made, _, own_made, _ = self.products.make(view.features, read, own, table.columns)
        places, own_places = np.zeros(count, np.int64), np.zeros(count, np.int64)
        places[read], own_places[own] = np.arange(len(read)), np.arange(len(own))
        aggregation = layer.aggregation
        flat = _space.activations.hidden(len(ids) * layer.inputs)
        _correct(
            graph.indptr, graph.indices, packed, ids, views, self.stored.aggregated.values,
            table.rows.values, table.own.values, _given(made), _given(own_made), places, own_places,
            layer.inputs, aggregation.mean, aggregation.own_factor, aggregation.bias, aggregation.relu, flat,
        )  # fmt: skip
        output = multiply(layer, flat, len(ids), _space.activations)
        return output[: len(ids) * layer.outputs].reshape(len(ids), layer.outputs)


def _given(rows: np.ndarray | None) -> np.ndarray:
    if rows is None:
        raise ValueError("a row maker that makes no rows")
    return rows


def _find_altered(
    view: SampleView, sample: NeighbourSample, graph: Graph, *, weighted: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The nodes that the sample reads and whose output of the first layer is another one in their view: their numbers
    (int64) and views (int32). In the sample N + i is put in place of the i-th of them. `weighted`: a node's output
    depends on the degrees of its neighbours, too."""
    if sample.views is None:
        raise ValueError("the sample has no views")
    most = len(sample.nodes) + len(sample.neighbours)
    ids, views = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int32)
    found = _find(
        graph.indptr, graph.indices, view.packed, sample.nodes, sample.starts, sample.neighbours, sample.views,
        HAS_OVERLAY if weighted else HAS_OVERRIDES, ids, views,
    )  # fmt: skip
    return ids[:found], views[:found]


@kernel
def _find(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, nodes: np.ndarray, starts: np.ndarray,
    neighbours: np.ndarray, row_views: np.ndarray, reaching: int, ids: np.ndarray, views: np.ndarray,
) -> int:  # fmt: skip
    """`reaching`: the flag of views in which a stored node may have another output through its neighbours."""
    _, _, flags, origins, _, rows, _, _, found_keys, found_nodes, bits = unpack(packed)
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
    for row in range(len(nodes)):
        view = row_views[row]
        looks = (flags[view] & reaching) != 0
        for edge in range(starts[row] - 1, starts[row + 1]):
            # The row itself first, then its neighbours.
            node = int(nodes[row]) if edge < starts[row] else int(neighbours[edge])
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
                        seen = seen_as(indices[entry], view, found_keys, found_nodes, bits)
                        if seen >= stored and (reaching == HAS_OVERLAY or rows[seen - stored] >= stored):
                            values[slot] = found
                            ids[found] = node
                            views[found] = view
                            found += 1
                            break
                place = values[slot]
            if place >= 0:
                if edge < starts[row]:
                    nodes[row] = stored + place
                else:
                    neighbours[edge] = stored + place
    return found


@kernel
def _mark_features(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, ids: np.ndarray, views: np.ndarray,
    is_read: np.ndarray, is_read_own: np.ndarray,
) -> None:  # fmt: skip
    """Mark the rows of features that correcting these nodes reads, of neighbours and of nodes themselves."""
    _, _, flags, origins, _, rows, extra_starts, extra, found_keys, found_nodes, bits = unpack(packed)
    stored = list_count(indptr)
    for i in range(len(ids)):
        node = ids[i]
        view = views[i]
        origin = node
        if node >= stored:
            origin = origins[node - stored]
            if rows[node - stored] >= stored:
                is_read_own[rows[node - stored] - stored] = True
            for entry in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
                seen = extra[entry]
                if seen < stored:
                    seen = seen_as(seen, view, found_keys, found_nodes, bits)
                if seen >= stored and rows[seen - stored] >= stored:
                    is_read[rows[seen - stored] - stored] = True
        if origin >= 0 and flags[view] & HAS_OVERRIDES:
            for entry in range(list_begin(indptr, origin), list_end(indptr, origin)):
                seen = seen_as(indices[entry], view, found_keys, found_nodes, bits)
                if seen >= stored and rows[seen - stored] >= stored:
                    is_read[rows[seen - stored] - stored] = True


@kernel
def _correct(
    indptr: np.ndarray, indices: np.ndarray, packed: np.ndarray, ids: np.ndarray, views: np.ndarray,
    aggregated: np.ndarray, products: np.ndarray, own_products: np.ndarray, made: np.ndarray, own_made: np.ndarray,
    places: np.ndarray, own_places: np.ndarray, columns: int, mean: bool, own_factor: float, bias: np.ndarray,
    relu: bool, out: np.ndarray,
) -> None:  # fmt: skip
    """What the layer's products read of each node: `aggregated` of it, without its own row and without the mean's
    division, with what its list gains and what others of its neighbours are; then divided, with its own row and bias
    again. `places`: where in `made` the product of each row of features is."""
    _, _, flags, origins, _, rows, extra_starts, extra, found_keys, found_nodes, bits = unpack(packed)
    stored = list_count(indptr)
    factor = np.float32(own_factor)
    for i in range(len(ids)):
        node = ids[i]
        view = views[i]
        row = out[i * columns : (i + 1) * columns]
        origin = node if node < stored else origins[node - stored]
        degree = 0
        row[:] = 0.0
        if origin >= 0:
            degree = list_end(indptr, origin) - list_begin(indptr, origin)
            times = np.float32(degree) if mean and degree > 0 else np.float32(1.0)
            for column in range(columns):
                row[column] = (aggregated[origin, column] - factor * own_products[origin, column]) * times
            if flags[view] & HAS_OVERRIDES:
                for entry in range(list_begin(indptr, origin), list_end(indptr, origin)):
                    seen = seen_as(indices[entry], view, found_keys, found_nodes, bits)
                    if seen >= stored and rows[seen - stored] >= stored:
                        other = made[places[rows[seen - stored] - stored]]
                        for column in range(columns):
                            row[column] += other[column] - products[indices[entry], column]
        has_other = False
        if node >= stored:
            for entry in range(extra_starts[node - stored], extra_starts[node - stored + 1]):
                seen = extra[entry]
                if seen < stored:
                    seen = seen_as(seen, view, found_keys, found_nodes, bits)
                place = seen if seen < stored else rows[seen - stored]
                if place >= stored:
                    added = made[places[place - stored]]
                    for column in range(columns):
                        row[column] += added[column]
                else:
                    for column in range(columns):
                        row[column] += products[place, column]
                degree += 1
            has_other = rows[node - stored] >= stored
        share = np.float32(1.0 / degree) if mean and degree > 0 else np.float32(1.0)
        for column in range(columns):
            if has_other:
                own = own_made[own_places[rows[node - stored] - stored], column]
            else:
                own = own_products[origin, column]
            value = row[column] * share + factor * own
            if len(bias) > 0:
                value += bias[column]
            row[column] = max(value, np.float32(0.0)) if relu else value
