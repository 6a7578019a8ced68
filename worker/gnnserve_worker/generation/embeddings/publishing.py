"""The embeddings of a published revision, computed once: as the index of recommendations, and in the user's sinks.

The revision is not changed by it, and answers meanwhile. What is there already is not made again, so that an attempt
that was interrupted, or a sink that failed, costs the next attempt no more than what is missing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import CHANGED_GRAPH, point_of
from gnnserve_api.files.embeddings import IndexManifest
from gnnserve_api.files.repository import NodeIdKind, RevisionManifest, VariantManifest
from gnnserve_worker.generation.embeddings.columns import TypesOf, keep_columns
from gnnserve_worker.generation.embeddings.compute import check_embeddings, columns_of_embeddings, published_blocks
from gnnserve_worker.generation.embeddings.index import EmbeddingsOrigin, build_index
from gnnserve_worker.generation.embeddings.sink import (
    Block,
    EmbeddingsSink,
    Ids,
    OnRows,
    RevisionEmbeddings,
    SinkError,
    SinkResult,
)
from gnnserve_worker.nearest.files import index_folder, read_manifest
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.embedded import missing_embeddings
from gnnserve_worker.tasks.embedding import embedded_task
from gnnserve_worker.tasks.serving import published_task

_BLOCK_ROWS = 4096
_SCRATCH = ".embeddings-"


@dataclass(frozen=True, slots=True)
class PublishedEmbeddings:
    variant: str
    indexes: tuple[IndexManifest, ...]
    """Empty: none was wanted."""
    written: Mapping[str, SinkResult]
    """By the name of the sink."""
    problems: Mapping[str, str]
    """Sinks that did not take them, and why."""


def choose_variant(manifest: RevisionManifest, named: str | None) -> VariantManifest:
    """The variant that embeddings are of: the named one, or the most accurate that has any. Raises InputError.

    Those that the task prefers come before the others, and then those that follow changes of the graph, whether
    `spec.updates` is given or not: nothing is made anew where it is given later. Without it an index may so be of a
    variant that is less accurate than another one, which can be named."""
    if named is not None:
        return check_embeddings(manifest, named, "spec.embeddings.variant")
    task = embedded_task(manifest)
    giving = {each.name: each for each in manifest.variants if task.gives(each)}
    if not giving and (missing := missing_embeddings(task, manifest)) is not None:
        raise InputError(
            "spec.embeddings",
            f"revision {manifest.revision} has no variant with embeddings: {missing.problem}",
            f"{missing.remedy}, or leave spec.embeddings out",
        )
    profiled = [variant for variant in manifest.profile.variants if variant.name in giving]
    best = max(
        profiled,
        key=lambda one: (
            task.is_preferred(giving[one.name]),
            point_of(one).capabilities.cover(CHANGED_GRAPH),
            one.validation_accuracy,
        ),
    )
    return giving[best.name]


def publish_embeddings(
    repository: Repository,
    service: str,
    revision: str,
    named: str | None,
    sinks: Mapping[str, EmbeddingsSink],
    written_by: str,
    on_progress: ProgressListener,
    *,
    wants_index: bool = True,
    types_of: TypesOf | None = None,
) -> PublishedEmbeddings:
    """Make the index and fill the sinks, by their names. `service`: namespace and name. `named`: the variant; None: the
    most accurate one with embeddings. `types_of`: as `types_with_columns` of the service; None: no columns are kept for
    filters. A sink that fails keeps no other from being filled."""
    layout = paths.ServicePaths(repository.folder)
    loaded = load_revision(repository, revision, build=build_exact)
    manifest = loaded.manifest
    assert manifest is not None  # noqa: S101  (a published one has it)
    variant = choose_variant(manifest, named)
    made, ids = _AllEmbeddings(loaded, variant, layout.revision(revision), on_progress), loaded.ids.asked
    embedded = RevisionEmbeddings(
        service, revision, variant.name, made.offset, loaded.answered_nodes, columns_of_embeddings(manifest, variant),
        ids is not None and ids.kind is NodeIdKind.STRINGS,
    )  # fmt: skip
    written: dict[str, SinkResult] = {}
    problems: dict[str, str] = {}
    with made.folder() as scratch:
        if wants_index and types_of is not None:
            made.keep_columns(types_of, written_by)
        indexes = made.indexes(scratch, written_by) if wants_index else ()
        for name, sink in sinks.items():
            try:
                written[name] = sink.write(embedded, lambda: made.blocks(scratch), made.count_rows(name))
            except SinkError as error:
                problems[name] = str(error)
    return PublishedEmbeddings(variant.name, indexes, written, problems)


class _AllEmbeddings:
    """The embeddings of all nodes, computed when something first needs them, and kept in a file meanwhile."""

    def __init__(
        self, revision: LoadedRevision, variant: VariantManifest, folder: Path, on_progress: ProgressListener
    ) -> None:
        made_of = revision.origin.made_of
        self.offset = None if made_of is None else made_of.offset
        self._revision = revision
        self._variant = variant
        self._folder = folder
        self._on_progress = on_progress
        self._vectors: np.ndarray | None = None

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder that is removed in the end. Those of attempts that were killed are removed first."""
        for left in self._folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        with files.storing(self._folder):
            scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._folder))
        try:
            yield scratch
        finally:
            self._vectors = None
            shutil.rmtree(scratch, ignore_errors=True)

    def keep_columns(self, types_of: TypesOf, written_by: str) -> None:
        """Keep the columns of the nodes of each index, before the indexes are there."""
        manifest = self._revision.manifest
        assert manifest is not None  # noqa: S101
        keep_columns(self._folder, manifest, self._parts(manifest), types_of, written_by)

    def _parts(self, manifest: RevisionManifest) -> tuple[IndexPart, ...]:
        revision = self._revision
        return published_task(manifest).index_parts(revision.graph.schema.target.name, revision.answered_nodes)

    def indexes(self, scratch: Path, written_by: str) -> tuple[IndexManifest, ...]:
        """One of each part."""
        manifest = self._revision.manifest
        assert manifest is not None  # noqa: S101
        parts = self._parts(manifest)
        return tuple(self._index(part, parts, scratch, written_by) for part in parts)

    def _index(self, part: IndexPart, parts: Sequence[IndexPart], scratch: Path, written_by: str) -> IndexManifest:
        manifest = self._revision.manifest
        assert manifest is not None  # noqa: S101
        folder = index_folder(self._folder, part.folder)
        found = read_manifest(folder)
        wanted = (manifest.revision, self._variant.name, part.metric)
        if found is not None and (found.revision, found.variant, found.metric) == wanted:
            return found
        weights = manifest.files[self._variant.weights].sha256
        origin = EmbeddingsOrigin(
            manifest.revision, manifest.graph, self._variant.name, weights, self.offset, written_by, part.metric,
            part.type, part.first,
        )  # fmt: skip
        vectors = self._computed(scratch)
        # Nodes of one end are searched with embeddings of the other.
        other = next((one for one in parts if one is not part), part)
        return build_index(
            vectors[part.first : part.end], origin, folder, self._on_progress, vectors[other.first : other.end],
            embedded_task(manifest).comparison(part, self._folder),
        )  # fmt: skip

    def blocks(self, scratch: Path) -> Iterator[Block]:
        vectors = self._computed(scratch)
        for start in range(0, len(vectors), _BLOCK_ROWS):
            end = min(start + _BLOCK_ROWS, len(vectors))
            yield self._shown(start, end), vectors[start:end]

    def count_rows(self, sink: str) -> OnRows:
        total = self._revision.answered_nodes
        return lambda rows: self._on_progress(Progress(f"rows into {sink}", rows, total))

    def _shown(self, start: int, end: int) -> Ids:
        ids = self._revision.ids.asked
        return range(start, end) if ids is None else ids.shown(start, end)

    def _computed(self, scratch: Path) -> np.ndarray:
        """float32 [nodes, columns], mapped."""
        if self._vectors is None:
            manifest = self._revision.manifest
            assert manifest is not None  # noqa: S101
            nodes, columns = self._revision.answered_nodes, columns_of_embeddings(manifest, self._variant)
            path = scratch / "embeddings.npy"
            files.require_free(path, nodes * columns * 4)
            with files.storing(path, nodes * columns * 4):
                self._vectors = np.lib.format.open_memmap(path, "w+", np.float32, (nodes, columns))
                done, stage = 0, f"embeddings of {self._variant.name}"
                name = self._variant.name
                for block in published_blocks(self._revision, name, scratch):
                    self._vectors[done : done + len(block)] = block
                    done += len(block)
                    self._on_progress(Progress(stage, done, nodes))
        return self._vectors
