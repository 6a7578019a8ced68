"""Embeddings of many nodes by one variant, in blocks. Which layer gives them is the task's (`tasks/embedded.py`).

Over all neighbours they are computed layer after layer, so that each edge is read once for each layer, whatever the
number of layers; over several types block after block, each with all that it reaches. Sampled, they are what the
variant answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.columns.type_attention import TypeAttention
from gnnserve_worker.columns.type_means import TypeMeans
from gnnserve_worker.generation.hidden import aggregated_blocks, hidden_blocks
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.network import Layer
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.models.relation_attention import RelationAttention
from gnnserve_worker.models.relation_means import RelationMeans
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.tables.formats import FLOAT32
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table, map_array, write_rows
from gnnserve_worker.tasks.embedded import EmbeddedTask
from gnnserve_worker.tasks.embedding import embedded_task

_BLOCK_NODES = 4096


def check_embeddings(manifest: RevisionManifest, name: str, where: str = "VARIANT") -> VariantManifest:
    """Find the variant. `where`: the option or field that names it. Raises InputError where the revision has none of
    this name, or one without embeddings."""
    gives = embedded_task(manifest).gives
    giving = [variant.name for variant in manifest.variants if gives(variant)]
    others = f"name one of {', '.join(giving)}" if giving else "none of its variants has any"
    known = {variant.name for variant in manifest.variants} | {cascade.name for cascade in manifest.cascades}
    for variant in manifest.variants:
        if variant.name in giving and variant.name == name:
            return variant
    if name not in known:
        raise InputError(where, f"revision {manifest.revision} has no {name!r}", others)
    raise InputError(where, f"{name} has no hidden layer that could be an embedding", others)


def columns_of_embeddings(manifest: RevisionManifest, variant: VariantManifest) -> int:
    return embedded_task(manifest).columns(variant)


def embedding_blocks(
    revision: LoadedRevision, name: str, nodes: np.ndarray | None, neighbours: Neighbours, seed: int, scratch: Path
) -> Iterator[np.ndarray]:
    """Yield float32 blocks [nodes, hidden] that add up to one row for each of `nodes` (int64, positions in range, over
    several types numbers; None: all that the service answers about, in order).

    Over all neighbours, the revision must have been loaded with `build_exact`. `scratch`: an empty folder, where layers
    between the first and the last hidden one are kept meanwhile; the caller removes it.
    """
    variant = revision.variants[name]
    if neighbours is Neighbours.SAMPLED or not any(variant.fanouts):
        return _served_blocks(revision, name, nodes, seed)
    return _way_of(variant).over_all(revision, variant, nodes, seed, scratch)


def published_blocks(revision: LoadedRevision, name: str, scratch: Path) -> Iterator[np.ndarray]:
    """`embedding_blocks` of all nodes that the service answers about, as an index and sinks have them: over all
    neighbours where that reads each edge once for each layer, and else sampled, by one key."""
    return embedding_blocks(revision, name, None, _way_of(revision.variants[name]).published, 0, scratch)


class _Way(Protocol):
    """How embeddings over all neighbours are computed."""

    @property
    def published(self) -> Neighbours:
        """The neighbours that embeddings of all nodes are computed over."""

    def over_all(
        self, revision: LoadedRevision, variant: LoadedVariant, nodes: np.ndarray | None, seed: int, scratch: Path
    ) -> Iterator[np.ndarray]: ...


@dataclass(frozen=True, slots=True)
class _ByLayer:
    """All nodes go through a layer before the next one begins."""

    published: Neighbours = Neighbours.ALL

    def over_all(
        self, revision: LoadedRevision, variant: LoadedVariant, nodes: np.ndarray | None, seed: int, scratch: Path
    ) -> Iterator[np.ndarray]:
        return _whole_blocks(revision, variant, nodes, scratch)


@dataclass(frozen=True, slots=True)
class _ByBlock:
    """A block of nodes goes through all layers, with all that it reaches, as layers over relations compute batches."""

    published: Neighbours = Neighbours.SAMPLED

    def over_all(
        self, revision: LoadedRevision, variant: LoadedVariant, nodes: np.ndarray | None, seed: int, scratch: Path
    ) -> Iterator[np.ndarray]:
        return _served_blocks(revision.over_whole_lists(variant.name), variant.name, nodes, seed)


_WAYS: Mapping[type, _Way] = {
    Layer: _ByLayer(),
    RelationMeans: _ByBlock(),
    RelationAttention: _ByBlock(),
    TypeMeans: _ByBlock(),
    TypeAttention: _ByBlock(),
    ProgramNetwork: _ByBlock(),
}
"""By the kind of a network's first layer, or of the network where it has none."""


def _way_of(variant: LoadedVariant) -> _Way:
    network = variant.network
    return _WAYS[type(network.layers[0]) if network.layers else type(network)]


def _served_blocks(revision: LoadedRevision, name: str, nodes: np.ndarray | None, seed: int) -> Iterator[np.ndarray]:
    task, count = _task_of(revision), revision.answered_nodes if nodes is None else len(nodes)
    for start in range(0, count, _BLOCK_NODES):
        end = min(start + _BLOCK_NODES, count)
        block = np.arange(start, end, dtype=np.int64) if nodes is None else nodes[start:end]
        found = infer_batch(revision, name, block, seed)
        embeddings = task.taken(found)
        if embeddings is None:
            raise ValueError(f"variant {name} has no embeddings")
        yield embeddings


def _task_of(revision: LoadedRevision) -> EmbeddedTask:
    if revision.manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    return embedded_task(revision.manifest)


def _whole_blocks(
    revision: LoadedRevision, variant: LoadedVariant, nodes: np.ndarray | None, scratch: Path
) -> Iterator[np.ndarray]:
    *before, last = _task_of(revision).layers(variant.network.layers)
    table = variant.table
    for number, layer in enumerate(before, start=1):
        path = scratch / f"layer{number}.npy"
        blocks = _layer_blocks(revision, layer, table, None)
        write_rows(path, blocks, revision.graph.nodes, layer.outputs, FLOAT32)
        rows = Rows(FLOAT32, map_array(path), NO_SCALES)
        table = Table("features", layer.outputs, rows, rows)
        # The layer before it stays mapped as long as it is read.
        (scratch / f"layer{number - 1}.npy").unlink(missing_ok=True)
    yield from _layer_blocks(revision, last, table, nodes)


def _layer_blocks(
    revision: LoadedRevision, layer: Layer, table: Table, nodes: np.ndarray | None
) -> Iterator[np.ndarray]:
    for block in aggregated_blocks(revision.graph, layer, table, nodes):
        yield from hidden_blocks(Rows(FLOAT32, block, NO_SCALES), layer)
