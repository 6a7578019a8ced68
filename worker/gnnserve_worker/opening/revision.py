"""Opening a revision, published or staged: its graph, what variants read and compute by, and what applies changes."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import UNSET

from gnnserve_worker.graph.store import Splits
from gnnserve_worker.models.build import build_network
from gnnserve_worker.opening.graph import open_seen_graph
from gnnserve_worker.opening.loaded import LoadedRevision, NetworkBuilder
from gnnserve_worker.opening.variants import OpenedVariants
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RevisionFiles, open_graph_array
from gnnserve_worker.sampling.repeats import effective_nodes


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
    parts = OpenedVariants(revision, graph, build)
    variants = {variant.name: parts.open(variant) for variant in revision.variants}
    weighs_neighbours = any(variant.network.weighs_neighbours for variant in variants.values())
    changes = None
    if graph.living is not None and graph.draft is not None:
        changes = parts.changes(graph.living, graph.draft)
    labels, splits = _labels_of(revision, described.schema.target.nodes)
    return LoadedRevision(
        source=described.source,
        graph=graph.seen,
        sample=parts.sample,
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
        programs=parts.programs,
        payloads=graph.payloads if graph.living is None else graph.living.payloads,
        made_of=None if described.version is UNSET else described.version.made_of,
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
