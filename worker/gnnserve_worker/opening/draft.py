"""What changes are applied to first, while predictions read the revision as it is: a draft of what applying reads.

Of the tables that store a layer it has those alone that a later stored layer is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.tables.growing import empty_growing
from gnnserve_worker.tables.table import Table


@dataclass(frozen=True, slots=True)
class Draft:
    graph: LivingGraph
    tables: Mapping[int, Table]
    """Tables that stored layers are made of, by the identity of the revision's own: products of features for the first
    layer, rows of the layer before for each later one."""
    neighbour_roots: np.ndarray | None
    """As `LoadedRevision.neighbour_roots`."""

    def maker(self, maker: StoredLayerMaker) -> StoredLayerMaker:
        """A maker of a stored layer that reads the draft and writes to the revision."""
        roots = None if maker.neighbour_roots is None else self.neighbour_roots
        table = self.tables[id(maker.source)]
        return replace(maker, graph=self.graph.graph, source=table, neighbour_roots=roots)


def draft_of(
    graph: LivingGraph,
    sources: Iterable[Table],
    roots: np.ndarray | None,
    open_again: Callable[[Table], Table],
) -> Draft:
    """`graph`: as `room.draft_graph` makes it. `sources`: of makers of stored layers. `roots`: the revision's, if it
    has any. `open_again`: opens the files of a table of the revision once more."""
    tables = {id(source): source for source in sources}
    drafted = {key: open_again(table) for key, table in tables.items()}
    own_roots = None
    if roots is not None:
        nodes = graph.ids.count
        own_roots = empty_growing(roots.shape, np.float32)
        own_roots[:nodes] = roots[:nodes]
    return Draft(graph, drafted, own_roots)
