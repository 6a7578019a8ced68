"""Batches of changes of a graph of several types, applied to a draft of the revision: as `drafting.py`.

Rows of products are made of features, one for each relation that reads a node. What a node of a type without features
has in their place is the type's default, as for nodes that a request brings. Where the first layer is stored, its rows
are made anew for all nodes that a change reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from gnnserve_worker.graph.change_batch import Applied, ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.inference.delta_memory import TypedDeltaMemory
from gnnserve_worker.inference.drafting import DraftedLayer, Drafting, Group, MadeStored
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.rows import RenewedRows
from gnnserve_worker.models.stored_layers import StoredRelationMaker, parts_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import map_parallel

_PARTS = 16
"""Parts whose rows are made at a time on all threads, before they are written."""


class TypedDrafting(Drafting):
    def __init__(self, loaded: LoadedRevision, give_way: Callable[[], None] = lambda: None) -> None:
        """As of `Drafting`."""
        if loaded.draft is None or not isinstance(loaded.draft.graph, LivingTypedGraph):
            raise ValueError("the revision was not opened for changes of a graph of several types")
        self._give_way = give_way
        self.graph = self._typed = loaded.draft.graph
        self.keeper = None
        # Rows of stored layers are made of neighbours.
        self.sums: dict[int, LivingSums] = {}
        self.later_sums: dict[int, LivingSums] = {}
        self.layers: list[list[DraftedLayer]] = []
        self._typed_makers = loaded.typed_makers
        self._sources = loaded.draft.tables
        self._stored = [
            replace(maker, graph=self._typed.graph, source=self._sources[id(maker.source)])
            for maker in loaded.typed_stored
        ]
        self._columns = [0 if one.columns is None else one.columns.features for one in loaded.type_rows]
        self._defaults = [one.default for one in loaded.type_rows]
        widths = [len(one) for one in self._defaults if one is not None]
        self._width = max([*self._columns, *widths])
        made = [*loaded.typed_makers, *(maker.rows for maker in loaded.typed_stored)]
        self.memory = TypedDeltaMemory(self._typed, made, self._sources)

    def apply(self, batch: ChangeBatch, found: FoundNodes, group: Group) -> list[Applied]:
        """As of `Drafting`."""
        renewed = np.concatenate((found.new, found.overridden))
        if len(renewed):
            features = self._inputs(batch, renewed)
            for maker in self._typed_makers:
                self._give_way()
                made = maker.make_all(features, renewed)
                group.rows.append(made)
                if (table := self._sources.get(id(maker.table))) is not None:
                    replace(made, table=table).put()
        self._give_way()
        effect = self.graph.apply(batch, found)
        group.batches.append((batch, found))
        group.lists.append(effect.readers)
        if self._stored:
            readers = self.graph.nodes_of_lists(effect.readers)
            group.reached.append(np.concatenate((renewed, readers, self.graph.all_readers_of(renewed))))
        return [Applied(unchanged) for unchanged in effect.unchanged.tolist()]

    def make_stored(self, nodes: np.ndarray, group: Group, *, in_parallel: bool) -> Iterator[list[MadeStored]]:
        """As of `Drafting`."""
        parts = parts_of(nodes)
        step = _PARTS if in_parallel else 1
        for maker in self._stored:
            for start in range(0, len(parts), step):
                some = parts[start : start + step]
                if not in_parallel:
                    self._give_way()
                made = map_parallel(partial(_make_part, maker, some), len(some))
                yield [MadeStored(one.table, one.nodes, one.put) for one in made]

    def _inputs(self, batch: ChangeBatch, nodes: np.ndarray) -> np.ndarray:
        """What the first layer reads of the nodes that have a row of features in the batch, before it is scaled: these,
        or the default of a type without any. float32 [nodes, columns of the widest type]."""
        inputs = np.zeros((len(nodes), self._width), np.float32)
        kinds = self._typed.places.kinds_of(nodes)
        for kind, (columns, default) in enumerate(zip(self._columns, self._defaults, strict=True)):
            own = np.flatnonzero(kinds == kind)
            if default is not None:
                inputs[own, : len(default)] = default
            else:
                inputs[own, :columns] = batch.features[own, :columns]
        return inputs


def _make_part(maker: StoredRelationMaker, parts: Sequence[np.ndarray], place: int) -> RenewedRows:
    return maker.make(parts[place])
