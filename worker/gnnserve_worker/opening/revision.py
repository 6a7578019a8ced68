"""Opening a revision, published or staged: its graph, what variants read and compute by, and what applies changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import numpy as np
from msgspec import UNSET

from gnnserve_api.repository import VariantManifest
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.models.build import build_network
from gnnserve_worker.opening.changes import OpenedChanges
from gnnserve_worker.opening.decoder import open_decoder
from gnnserve_worker.opening.graph import open_seen_graph
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant, NetworkBuilder, TypeRowRecipe
from gnnserve_worker.opening.plain_variants import PlainVariants
from gnnserve_worker.opening.relation_variants import RelationVariants
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RevisionFiles, open_graph_array
from gnnserve_worker.sampling.repeats import effective_nodes
from gnnserve_worker.sampling.samplers import sampler_of
from gnnserve_worker.tables.table import Table


class OpenedVariants(Protocol):
    """What variants of a revision are put together from, with tables as its graph has them."""

    @property
    def tables(self) -> Mapping[str, Table]: ...  # pragma: no cover

    @property
    def type_rows(self) -> tuple[TypeRowRecipe, ...]:
        """As `LoadedRevision.type_rows`."""
        ...  # pragma: no cover

    def open(self, variant: VariantManifest) -> LoadedVariant: ...  # pragma: no cover

    def roots(self) -> np.ndarray:
        """`inverse_roots` of the graph, where variants weigh neighbours."""
        ...  # pragma: no cover

    def changes(self, living: LivingGraph, draft: LivingGraph) -> OpenedChanges:
        """What applies changes, once all variants are open."""
        ...  # pragma: no cover


def load_revision(
    repository: Repository, revision: str, max_delta_bytes: int | None = None, build: NetworkBuilder = build_network
) -> LoadedRevision:
    """Open a published revision: verified by checksum, arrays memory-mapped, files watched from before the first byte
    was read. `max_delta_bytes`: it is opened for changes, which take so much memory at most. `build`: as of
    `open_revision`."""
    with repository.reading(revision, max_delta_bytes) as files:
        return open_revision(files, build)


def open_revision(revision: RevisionFiles, build: NetworkBuilder = build_network) -> LoadedRevision:
    """Open a revision. `build`: makes the networks of graphs of one type."""
    described, graph = revision.graph, open_seen_graph(revision)
    # Over types with names tables have rows by relation.
    parts: OpenedVariants = (RelationVariants if described.schema.has_names else PlainVariants)(revision, graph, build)
    variants = {variant.name: parts.open(variant) for variant in revision.variants}
    weighs_neighbours = any(variant.network.weighs_neighbours for variant in variants.values())
    changes = None
    if graph.living is not None and graph.draft is not None:
        changes = parts.changes(graph.living, graph.draft)
    labels, splits = _labels_of(revision, described.schema.target.nodes)
    return LoadedRevision(
        source=described.source,
        graph=graph.seen,
        sample=sampler_of(graph.seen),
        effective_nodes=effective_nodes(graph.stored.indptr),
        variants=variants,
        tables=parts.tables,
        ids=graph.ids,
        type_ids=graph.type_ids,
        type_rows=parts.type_rows,
        classes=described.classes,
        multi_label=described.multi_label,
        labels=labels,
        splits=splits,
        manifest=revision.manifest,
        neighbour_roots=parts.roots() if weighs_neighbours else None,
        features=described.features,
        folder=revision.folder,
        files=revision.watched,
        changes=changes,
        made_of=None if described.version is UNSET else described.version.made_of,
        decoder=open_decoder(revision.folder, revision.manifest),
    )


def _labels_of(revision: RevisionFiles, nodes: int) -> tuple[np.ndarray, Splits]:
    """Labels of so many nodes, as the graph has them, and which nodes were learnt from."""
    described, mapped = revision.graph, partial(open_graph_array, revision)
    labels = (
        mapped(paths.LABELS, np.uint8, nodes, len(described.classes))
        if described.multi_label
        else mapped(paths.LABELS, np.int64, nodes)
    )
    return labels, Splits(
        train=mapped(paths.TRAIN, np.int64, described.train_nodes),
        validation=mapped(paths.VALIDATION, np.int64, described.validation_nodes),
        test=mapped(paths.TEST, np.int64, described.test_nodes),
    )
