"""Nodes of a published revision's graph with their features as in its source, which the revision keeps in the form of
tables alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NodeIdKind, RevisionManifest
from gnnserve_api.spec.heterogeneous_rules import keeps_types_of_rows
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.sources.load import source_digest
from gnnserve_worker.graph.store import Features, NodeType
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generation import task_of


def source_types(
    service: GNNService, repository: Repository, base: RevisionManifest, progress: ProgressListener
) -> Sequence[NodeType]:
    """Types of the revision's nodes: of a graph that a log of changes is part of as it is kept, else with all that the
    source has, whether the model reads it or not. Raises InputError where the source holds another graph."""
    if repository.made_of(base) is not None:
        return repository.read_graph(base.graph).types
    return _read_source(service, repository, base, base.graph, progress)


def types_with_columns(
    service: GNNService, repository: Repository, base: RevisionManifest, progress: ProgressListener
) -> Sequence[NodeType]:
    """`source_types`; where a graph that a log of changes is part of keeps none, since the model reads none, with
    those that the source has of its nodes. Raises InputError as it does."""
    types, made_of = source_types(service, repository, base, progress), repository.made_of(base)
    if made_of is None or not keeps_types_of_rows(service.spec):
        return types
    sources = {one.name: one for one in _read_source(service, repository, base, made_of.source, progress)}
    return [_with_columns(kind, sources[kind.name]) for kind in types]


def _with_columns(kept: NodeType, source: NodeType) -> NodeType:
    """The nodes of a type with the features that they have in the source; a new one has numbers that are none (zeros
    where features are sparse)."""
    if source.features is None:
        return kept
    features = _rows_at(source.features, _places_in(source.ids, source.nodes, kept))
    return replace(kept, features=features, feature_columns=source.feature_columns)


def _places_in(ids: NodeIds | None, nodes: int, kept: NodeType) -> np.ndarray:
    """Positions of the kept nodes among those of the source, which have these ids, int64; -1: it has no such node."""
    if ids is not None:
        named = kept.ids
        assert named is not None  # noqa: S101  (nodes that the source names stay named)
        if ids.kind is NodeIdKind.STRINGS:
            return ids.find_strings(named.values, named.offsets)
        return ids.find_integers(named.values)
    numbers = np.arange(kept.nodes) if kept.ids is None else kept.ids.values
    return np.where((numbers >= 0) & (numbers < nodes), numbers, -1)


def _rows_at(features: Features, places: np.ndarray) -> Features:
    """Rows of features at these positions (int64); -1: a row without numbers."""
    is_new = places < 0
    if isinstance(features, np.ndarray):
        rows = features[places].astype(np.float32)
        rows[is_new] = np.nan
        return rows
    # Few graphs have sparse features, and scipy takes a moment.
    import scipy.sparse as sp  # noqa: PLC0415

    return sp.csr_array(sp.diags_array((~is_new).astype(np.float32)) @ sp.csr_array(features)[places])


def _read_source(
    service: GNNService, repository: Repository, base: RevisionManifest, digest: str, progress: ProgressListener
) -> Sequence[NodeType]:
    """Types of the source, whose graph has that digest. Raises InputError."""
    # The task is asked, since the order of types depends on which one it asks about.
    task = task_of(service.spec)
    if task.graph_digest(source_digest(service.spec.graph.source)) != digest:
        raise InputError(
            "spec.graph.source",
            f"holds another graph than the one that revision {base.revision} was made of",
            "put back the files that were there: what changes do not touch is read from them",
        )
    progress(Progress("import graph", 0, 1))
    types = task.load(repository.downloads, progress).types
    progress(Progress("import graph", 1, 1))
    return types
