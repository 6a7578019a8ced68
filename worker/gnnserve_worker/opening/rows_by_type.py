"""Tables in which a node has one row, whichever relation reads it, of a graph of several types: features of nodes, for
programs and for networks that read the first columns of each type, and what makes such rows. A row is as wide as the
widest type; a narrower type has its columns first. One-row variants, beside programs and beside networks over
relations, read products of nodes of the types that are asked about: each type has rows of its own in the matrix. Or
rows are embeddings that were learnt of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.families import FOLDED, point_of
from gnnserve_api.files.repository import NetworkKind, RevisionManifest, VariantManifest
from gnnserve_worker.columns.network import network_over_columns
from gnnserve_worker.columns.rows import column_row_maker
from gnnserve_worker.models.architecture import default_key
from gnnserve_worker.models.folded_rows import FoldedRowMaker
from gnnserve_worker.models.folding import Folding, build_folding
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.rows import MakesRows, RowMaker
from gnnserve_worker.models.type_rows import asked_row_maker, type_row_maker
from gnnserve_worker.opening.changes import FollowedLayer, FollowedRows
from gnnserve_worker.opening.folded_nodes import FoldedNodes, read_from_one_end
from gnnserve_worker.opening.loaded import OpenedGraph, TypeRowRecipe
from gnnserve_worker.opening.networks import (
    VariantNetworks,
    fanouts_misfit,
    followed_listed,
    has_listed_rows,
    has_propagated_rows,
    made_of_features,
    overlaid_listed,
    projected_listed,
    stored_products,
)
from gnnserve_worker.opening.spread_tables import spread_types
from gnnserve_worker.opening.type_recipe import TypeRecipe, type_recipe
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, open_table, read_tensors
from gnnserve_worker.sampling.neighbours import Sampler
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has listed layers imports what makes their rows
    from gnnserve_worker.opening.listed_rows import ListedRows

_NO_DEFAULT = np.zeros(0, np.float32)
"""What new nodes of a type without features begin with, beside a program: none of its inputs reads anything of it."""


class RowsByType:
    """The `RevisionRows` of tables with rows for each type."""

    mapped_nodes = 0

    def __init__(
        self, revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks, roots: Callable[[], np.ndarray]
    ) -> None:
        """`roots`: makes `inverse_roots` of the graph."""
        self._revision, self._graph, self._networks, self._roots = revision, graph, networks, roots
        self.sample: Sampler = partial(sample_relations, layout=graph.seen.layout)
        self.tables = {name: self.open_table(name) for name in revision.tables}
        self._recipe = _open_recipe(revision, graph)
        self.type_rows: tuple[TypeRowRecipe, ...] = () if self._recipe is None else self._recipe.types
        self._widths = [kind.features or 0 for kind in networks.schema.types]
        """Features of a node of each type, as programs read them."""
        self._makers: dict[str, RowMaker] = {}
        """Makers of rows, by table."""

    def open_table(self, name: str) -> Table:
        """With room for new nodes of each type, where the graph has it."""
        revision, stored, seen = self._revision, self._graph.stored, self._graph.seen
        if seen is stored:
            return open_table(revision, revision.tables[name])
        described = revision.tables[name]
        table = open_table(replace(revision, room=None), described)
        return spread_types(table, described.types_with_rows(stored.schema), stored.schema, seen.schema)

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        table, point = self.tables[variant.table], point_of(variant)
        if variant.network.kind is NetworkKind.LAYERS and point.reads_ranked_columns:
            return self._over_columns(variant, table)
        program, expected = variant.network.program, table.columns
        if program is not UNSET and not table.projected:
            expected = max(program.row_columns(self._networks.schema))
        if not variant.columns == table.columns == expected:
            raise DamagedError(
                self._revision.folder / paths.rows_of(variant.table),
                f"holds {table.columns} columns, and {variant.name} is to read {variant.columns}, expected {expected}",
                self._revision.remedy,
            )
        network = self._networks.open(variant, table)
        if point is FOLDED:
            return network, self._folded_nodes(table)
        if variant.propagated is not UNSET:
            self._open_features(variant.propagated.features)
        elif self._recipe is not None and made_of_features(variant) and variant.table not in self._makers:
            make = self._of_products if table.projected else self._of_features
            if projected_listed([variant]):
                make = self._of_nodes_alone
            self._makers[variant.table] = make(variant, table, self._recipe)
        return network, self._overlaid_rows(variant) or self._makers.get(variant.table)

    @cached_property
    def _listed(self) -> ListedRows | None:
        """Makers of rows of listed layers; None: no variant has such rows, or nothing of how they are made is kept."""
        if not has_listed_rows(self._revision.variants) or self._recipe is None:
            return None
        # Only a server that has such layers imports what makes their rows.
        from gnnserve_worker.opening.listed_rows import ListedRows  # noqa: PLC0415

        scalings = self._recipe.scalings
        return ListedRows(
            self._networks, self.tables, self._graph, self.sample, self._roots, scalings, names_leaves=False
        )

    def _overlaid_rows(self, variant: VariantManifest) -> MakesRows | None:
        """Maker of rows of a first layer that a manifest lists; None: it is none, or its rows cannot be made."""
        return self._listed.overlaid(variant) if self._listed is not None and overlaid_listed(variant) else None

    def _over_columns(self, variant: VariantManifest, table: Table) -> tuple[VariantNetwork, MakesRows | None]:
        """As `open`, of a network that reads the first columns of each type."""
        graph, recipe = self._graph.seen, self._recipe
        reads = RelationTable.of(graph, [None] * len(graph.schema.relations))
        network = network_over_columns(variant.network, self._networks.tensors(variant), variant.compute, reads)
        problem = fanouts_misfit(variant, graph)
        if not network.layers[0].inputs == variant.columns <= table.columns:
            found, wanted = f"has {table.columns} columns in {variant.table}", network.layers[0].inputs
            problem = f"{found}, and {variant.name} is to read {variant.columns}, expected {wanted}"
        if problem is not None:
            raise DamagedError(self._revision.folder / paths.REVISION_COMMIT, problem, self._revision.remedy)
        if recipe is not None and variant.table not in self._makers:
            widths = [one.width for one in recipe.types]
            self._makers[variant.table] = column_row_maker(table, graph.layout, recipe.scalings, widths, recipe.tensors)
        return network, self._makers.get(variant.table)

    def _of_features(self, variant: VariantManifest, table: Table, recipe: TypeRecipe) -> RowMaker:
        layout, prefix = self._graph.seen.layout, self._revision.tables[variant.table].made_by
        if not prefix:
            return type_row_maker(table, layout, recipe.scalings, self._widths)
        widths = [one.width for one in recipe.types]
        return column_row_maker(table, layout, recipe.scalings, widths, recipe.tensors, prefix)

    def _of_nodes_alone(self, variant: VariantManifest, table: Table, recipe: TypeRecipe) -> RowMaker:
        del table, recipe
        assert self._listed is not None  # noqa: S101 - it has such rows, and the recipe is there
        return self._listed.of_nodes_alone([variant])[variant.table]

    def _of_products(self, variant: VariantManifest, table: Table, recipe: TypeRecipe) -> RowMaker:
        described, schema = self._revision.tables[variant.table], self._graph.stored.schema
        (product,) = stored_products(variant, described.made_by, recipe.tensors)
        asked = slice(described.types_with_rows(schema))
        return asked_row_maker(
            table, self._graph.seen.layout, recipe.scalings[asked], [one.width for one in recipe.types[asked]], product
        )

    def followed(self) -> FollowedRows:
        tables = {one.table for one in self._revision.variants if point_of(one) is FOLDED}
        folded = tuple(self._folded(name) for name in sorted(tables))
        own = FollowedRows(tuple(self._makers.values()), (FollowedLayer(folded),) if folded else ())
        propagated = None
        if (recipe := self._recipe) is not None and has_propagated_rows(self._revision.variants):
            # Only a server that has such rows imports what makes them.
            from gnnserve_worker.opening.propagated_rows import PropagatedSource  # noqa: PLC0415

            source = PropagatedSource(
                self.tables, self._graph.seen, None, [one.width for one in recipe.types], recipe.scalings,
                self._types_with_rows,
            )  # fmt: skip
            propagated = source.followed(self._revision.variants, self._networks.tensors)
        listed = None if self._listed is None else self._listed.followed(followed_listed(self._revision.variants))
        return FollowedRows.joined([part for part in (own, propagated, listed) if part is not None])

    def _types_with_rows(self, table: str) -> int:
        return self._revision.tables[table].types_with_rows(self._graph.stored.schema)

    def _open_features(self, name: str) -> None:
        """Open what makes rows of a table of features of all types, or of embeddings in their place."""
        if (recipe := self._recipe) is not None and name not in self._makers:
            widths = [one.width for one in recipe.types]
            table, layout = self.tables[name], self._graph.seen.layout
            self._makers[name] = type_row_maker(table, layout, recipe.scalings, widths)

    def _folded(self, name: str) -> FoldedRowMaker:
        """What makes rows of a table of embeddings where the graph changes."""
        manifest, table = self._revision.manifest, self.tables[name]
        assert manifest is not None  # noqa: S101 - only what is published is opened for changes
        folding, has_length_1 = self._folding(manifest, table)
        maker = FoldedRowMaker(table, self.open_table(name), self._graph.seen, folding, has_length_1)
        maker.make(np.zeros(0, np.int64), None)  # compiled now, not while the first change waits
        return maker

    def _folded_nodes(self, table: Table) -> FoldedNodes | None:
        """What makes rows of it for nodes that requests bring. None: the revision is staged, or its lists do not tell
        what a node is joined to."""
        manifest, seen = self._revision.manifest, self._graph.seen
        if manifest is None or read_from_one_end(seen.schema):
            return None
        return FoldedNodes(table, seen, *self._folding(manifest, table))

    def _folding(self, manifest: RevisionManifest, table: Table) -> tuple[Folding | None, np.ndarray]:
        """Weights of the nodes, and whether the row of each is brought to length 1 (bool [nodes])."""
        revision, stored, seen = self._revision, self._graph.stored.schema, self._graph.seen.schema
        weights: dict[str, np.ndarray] = {}
        for file in manifest.task_files:
            weights |= read_tensors(revision, revision.folder / file)
        folding = build_folding(weights, table.columns)
        has_length_1 = np.ones(self._graph.seen.nodes, np.bool_)
        if folding is not None:
            folding = folding.over(stored, seen)
            has_length_1[:] = False
            for section in manifest.sections.values():
                has_length_1[section.asked_alone(seen)] = True
        return folding, has_length_1


def _open_recipe(revision: RevisionFiles, graph: OpenedGraph) -> TypeRecipe | None:
    """None: the revision is staged, and its new nodes are not measured."""
    source = None if revision.manifest is None else revision.manifest.row_source
    if source is None or not source.types:
        return None
    path = revision.folder / (source.tensors or paths.REVISION_COMMIT)
    try:
        tensors = {} if source.tensors is None else read_tensors(revision, path)
        return type_recipe(
            source, graph.stored.schema, tensors, lambda place: tensors.get(default_key(place), _NO_DEFAULT)
        )
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error
