"""Tables in which a node has a row, and one for itself, of a graph whose nodes have one list each: networks over them,
and what makes their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.families import point_of
from gnnserve_api.files.repository import FollowedManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.rows import MakesRows, RowMaker, first_products, row_maker
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.models.tail import tail_tensors
from gnnserve_worker.opening.changes import FollowedRows, layers_by_number
from gnnserve_worker.opening.loaded import CORRECTION, OpenedGraph, TypeRowRecipe
from gnnserve_worker.opening.networks import (
    VariantNetworks,
    correction_of,
    followed_layers,
    followed_listed,
    followed_of,
    has_listed_rows,
    has_propagated_rows,
    made_of_features,
    overlaid_listed,
    projected_listed,
    stored_products,
)
from gnnserve_worker.opening.overlay_reach import OverlayReach
from gnnserve_worker.opening.overlay_rows import OverlayRows, StoredSeenRows
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, RowRecipe, open_table, read_tensors
from gnnserve_worker.sampling.neighbours import Sampler, sample_neighbours
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has listed layers imports what makes their rows
    from gnnserve_worker.opening.listed_rows import ListedRows


class RowsByNode:
    """The `RevisionRows` of tables with a row for each node."""

    def __init__(
        self, revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks, roots: Callable[[], np.ndarray]
    ) -> None:
        """`roots`: makes `inverse_roots` of the graph."""
        _check_lists(revision, graph.stored)
        self._revision, self._graph, self._networks, self._roots = revision, graph, networks, roots
        self.sample: Sampler = sample_neighbours
        self.mapped_nodes = revision.graph.nodes
        self.tables = {name: self.open_table(name) for name in revision.tables}
        self.type_rows = _type_rows(revision)
        self._makers = _open_row_makers(revision, self.tables)
        """Makers of rows from features, by table."""
        if self._listed is not None:
            self._makers |= self._listed.of_nodes_alone(projected_listed(revision.variants))
        self._corrected: list[StoredLayerMaker] = []
        """Makers of stored first layers that are corrected for a request, too."""

    def open_table(self, name: str) -> Table:
        return open_table(self._revision, self._revision.tables[name])

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        revision, table, columns = self._revision, self.tables[variant.table], variant.columns
        if not 1 <= columns <= table.columns or (table.projected and columns != table.columns):
            raise DamagedError(
                revision.folder / paths.rows_of(variant.table),
                f"holds {table.columns} columns, and {variant.name} is to read {columns} of them",
                revision.remedy,
            )
        network = self._networks.open(variant, table)
        rows = self._stored_rows(variant, network) or self._deeper_rows(variant) or self._overlaid_rows(variant)
        return network, rows or self._makers.get(variant.table)

    def followed(self) -> FollowedRows:
        own = FollowedRows(tuple(self._makers.values()), layers_by_number((*self._corrected, *self._followed())))
        propagated = None
        if has_propagated_rows(self._revision.variants):
            # Only a server that has such rows imports what makes them.
            from gnnserve_worker.opening.propagated_rows import PropagatedSource  # noqa: PLC0415

            scaling = _scaling_of(_recipe_of(self._revision))
            features = [self._revision.graph.features]
            propagated = PropagatedSource(
                self.tables, self._graph.seen, self._roots, features, [scaling], lambda _: 1
            ).followed(self._revision.variants, self._networks.tensors)
        listed = None if self._listed is None else self._listed.followed(followed_listed(self._revision.variants))
        return FollowedRows.joined([part for part in (own, propagated, listed) if part is not None])

    def _stored_rows(self, variant: VariantManifest, rest: VariantNetwork) -> StoredRowMaker | None:
        """Maker of rows of a table that stores a layer; None: it stores none, or its rows cannot be made. `rest`: the
        variant's network, behind that layer."""
        correction = correction_of(variant)
        if correction is None or (products := self._makers.get(correction.products)) is None:
            return None
        tensors = self._networks.tensors(variant)
        own = {key.removeprefix(CORRECTION): tensor for key, tensor in tensors.items() if key.startswith(CORRECTION)}
        network = self._networks.build(
            correction.network, own, products.table.columns, projected=True, compute="float32"
        )
        layer, table = network.layers[0], self.tables[variant.table]
        projection = spec_of(correction.network.architecture).project(tail_tensors(own, 1))
        stored = StoredLayerMaker(
            table,
            self._graph.seen,
            layer,
            products.table,
            None if correction.aggregated is None else self.tables[correction.aggregated].rows,
            self._roots() if layer.weighs_neighbours else None,
            first_products(projection, table.rows.values.shape[1]),
        )
        self._corrected.append(stored)
        return StoredRowMaker(stored, products, averages=rest.layers[0].aggregation.plain)

    def _deeper_rows(self, variant: VariantManifest) -> OverlayRows | None:
        """Maker of rows of a table that stores a layer behind the first, or scores of the only one, where requests
        reach; None: it stores none, or its rows cannot be made for requests."""
        followed = followed_of(variant)
        if followed is None or not point_of(variant).capabilities.overlay:
            return None
        products = self._makers.get(followed.layers[0].products)
        if products is None:
            return None
        first, *others = self._layers_of(variant, followed)
        reach = OverlayReach(self._graph.seen, first.weighs_neighbours, names_leaves=True)
        if not others:
            return OverlayRows(StoredSeenRows(first), products, reach, first.number)
        rows: MakesRows = StoredRowMaker(first, products, averages=others[0].layer.aggregation.plain)
        for maker in others:
            rows = OverlayRows(StoredSeenRows(maker), rows, reach, maker.number)
        assert isinstance(rows, OverlayRows)  # noqa: S101 - there are others
        return rows

    def _followed(self) -> tuple[StoredLayerMaker, ...]:
        """Makers of stored layers that follow changes over several hops, one of each table."""
        found: dict[int, StoredLayerMaker] = {}
        for variant in self._revision.variants:
            if (followed := followed_of(variant)) is not None:
                found |= {id(maker.table): maker for maker in self._layers_of(variant, followed)}
        return tuple(found.values())

    def _layers_of(self, variant: VariantManifest, followed: FollowedManifest) -> list[StoredLayerMaker]:
        """Makers of the layers that the variant's table is made of, and of itself."""
        tensors = self._networks.tensors(variant)
        own = {key.removeprefix(CORRECTION): one for key, one in tensors.items() if key.startswith(CORRECTION)}
        return followed_layers(
            followed, variant.table, own, self.tables, self._graph.seen, self._networks.build, self._roots
        )

    @cached_property
    def _listed(self) -> ListedRows | None:
        """Makers of rows of listed layers; None: no variant has such rows, or nothing of how they are made is kept."""
        if not has_listed_rows(self._revision.variants) or not _has_recipe(self._revision):
            return None
        # Only a server that has such layers imports what makes their rows.
        from gnnserve_worker.opening.listed_rows import ListedRows  # noqa: PLC0415

        scaling = _scaling_of(_recipe_of(self._revision))
        return ListedRows(
            self._networks, self.tables, self._graph, self.sample, self._roots, [scaling], names_leaves=True
        )

    def _overlaid_rows(self, variant: VariantManifest) -> MakesRows | None:
        """Maker of rows of a first layer that a manifest lists; None: as of `_stored_rows`."""
        return self._listed.overlaid(variant) if self._listed is not None and overlaid_listed(variant) else None


def _check_lists(revision: RevisionFiles, graph: Graph) -> None:
    """Raise DamagedError where nodes have several lists, or none, so that kernels would read those of others."""
    if not places_of(graph.schema).has_one_list_each:
        problem = f"does not say where the rows of each of {len(graph.schema.relations)} relations are"
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)


def _type_rows(revision: RevisionFiles) -> tuple[TypeRowRecipe, ...]:
    manifest = revision.manifest
    if manifest is None or manifest.row_source is None or manifest.edge_rules is None:
        return ()
    return (TypeRowRecipe(FeatureColumns(revision.graph.features, manifest.row_source.columns), None),)


def _open_row_makers(revision: RevisionFiles, tables: Mapping[str, Table]) -> dict[str, RowMaker]:
    """For the tables of variants that can answer about nodes that the graph does not have."""
    if not _has_recipe(revision):
        return {}
    # Tables of one family alone: a table of propagated features is read by no other. Rows of stored layers are made of
    # products of the first one.
    apart = {variant.table for variant in projected_listed(revision.variants)}
    made = {name: one for one in revision.variants if (name := made_of_features(one)) is not None and name not in apart}
    path = _recipe_path(revision)
    try:
        recipe = _recipe_of(revision)
        tensors, scaling = recipe.tensors, _scaling_of(recipe)
        # One projection for all storages of a first layer.
        stored = {revision.tables[name].made_by: variant for name, variant in made.items() if tables[name].projected}
        products = {prefix: stored_products(variant, prefix, tensors) for prefix, variant in stored.items()}
        return {
            name: row_maker(
                tables[name],
                revision.graph.features,
                scaling,
                np.array(revision.tables[name].source_columns or recipe.columns, np.int64),
                products[revision.tables[name].made_by] if tables[name].projected else (),
            )
            for name in made
        }
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        problem = f"does not hold what rows of its tables are made by: {error}"
        raise DamagedError(path, problem, revision.remedy) from error


def _recipe_path(revision: RevisionFiles) -> Path:
    """Path of what rows are made by."""
    source = None if revision.manifest is None else revision.manifest.row_source
    return revision.folder / ((None if source is None else source.tensors) or paths.REVISION_COMMIT)


def _scaling_of(recipe: RowRecipe) -> Scaling:
    return Scaling(recipe.normalization, recipe.tensors.get("mean"), recipe.tensors.get("deviation"))


def _has_recipe(revision: RevisionFiles) -> bool:
    """Whether it is known what rows are made by."""
    return revision.rows is not None or (revision.manifest is not None and revision.manifest.row_source is not None)


def _recipe_of(revision: RevisionFiles) -> RowRecipe:
    """That of a staged revision, or of a published one."""
    if revision.rows is not None:
        return revision.rows
    manifest = revision.manifest
    assert manifest is not None and manifest.row_source is not None  # noqa: S101
    source = manifest.row_source
    return RowRecipe(
        Normalization(source.normalization),
        {} if source.tensors is None else read_tensors(revision, _recipe_path(revision)),
        np.array(manifest.ranking.columns, np.int64),
    )
