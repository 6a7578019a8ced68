"""Tables in which a node has one row, whichever relation reads it, of a graph of several types: features of nodes, for
programs. A row is as wide as the widest type; a narrower type has its columns first.
"""

from __future__ import annotations

from functools import partial

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import VariantManifest
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.rows import MakesRows
from gnnserve_worker.opening.changes import FollowedRows
from gnnserve_worker.opening.graph import OpenedGraph
from gnnserve_worker.opening.loaded import TypeRowRecipe
from gnnserve_worker.opening.networks import VariantNetworks
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, open_table
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.sampling.samplers import Sampler
from gnnserve_worker.tables.table import Table


class RowsByType:
    """A `variants.TableRows`. Rows of nodes that the graph does not have are not made."""

    mapped_nodes = 0

    def __init__(self, revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks) -> None:
        self._revision, self._networks = revision, networks
        self.sample: Sampler = partial(sample_relations, layout=graph.seen.layout)
        self.tables = {name: self.open_table(name) for name in revision.tables}
        self.type_rows: tuple[TypeRowRecipe, ...] = ()

    def open_table(self, name: str) -> Table:
        return open_table(self._revision, self._revision.tables[name])

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        table = self.tables[variant.table]
        wanted = max((kind.features or 0 for kind in self._networks.schema.types), default=0)
        if not variant.columns == table.columns == wanted:
            raise DamagedError(
                self._revision.folder / paths.rows_of(variant.table),
                f"holds {table.columns} columns, and {variant.name} is to read {variant.columns}, expected {wanted}: "
                "the features of the widest type",
                self._revision.remedy,
            )
        return self._networks.open(variant, table), None

    def followed(self) -> FollowedRows:
        return FollowedRows((), ())
