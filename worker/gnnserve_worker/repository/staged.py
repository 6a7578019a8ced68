"""A revision while it is written: nobody sees it before `commit`, and nothing of it stays if that never comes.

The last file, `revision.json`, is the commit; it names every other file with size and digest, and each of those is
on the disk before it is written. Who may write, and what becomes of unfinished work, is `repository.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy

from gnnserve_api.profile import Profile
from gnnserve_api.repository import (
    SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    sealed,
)
from gnnserve_worker.graph.store import Features
from gnnserve_worker.graph.table import table_bytes, write_table
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.loaded import LoadedRevision, NetworkBuilder, RevisionFiles, open_revision


class StagedRevision:
    """Given out by `Repository.stage`, under the lock."""

    def __init__(
        self,
        folder: Path,
        recipe: str,
        graph_folder: Path,
        graph: GraphManifest,
        build: NetworkBuilder,
    ) -> None:
        self._folder = folder
        self._recipe = recipe
        self._graph_folder = graph_folder
        self._graph = graph
        self._build = build
        self._files: dict[str, FileEntry] = {}

    @property
    def revision(self) -> str:
        return self._folder.name

    def write_table(self, features: Features, columns: Sequence[int]) -> None:
        """The rank-ordered feature table; `columns` as in `RankingManifest`, most important first."""
        path = self._folder / paths.TABLE
        wanted_bytes = table_bytes(features.shape[0], len(columns))
        files.require_free(path, wanted_bytes)
        files.make_folder(path.parent)
        with files.storing(path, wanted_bytes):
            write_table(path, features, columns)
            files.sync(path)
            files.sync(path.parent)
            self._files[paths.TABLE] = files.entry_of(path)

    def write_variant(self, name: str, tensors: Mapping[str, np.ndarray]) -> FileEntry:
        if not paths.is_name(name):
            raise ValueError(f"variant {name!r} is not safe as a folder name")
        weights = paths.weights_of(name)
        path = self._folder / weights
        files.make_folder(path.parent)
        data = safetensors.numpy.save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})
        self._files[weights] = files.write_file(path, data)
        return self._files[weights]

    def open(self, network: NetworkManifest, columns_by_variant: Mapping[str, int]) -> LoadedRevision:
        """As it will be served, for measuring the profile."""
        return open_revision(
            RevisionFiles(
                graph_folder=self._graph_folder,
                graph=self._graph,
                folder=self._folder,
                table=paths.TABLE,
                network=network,
                columns_by_variant=columns_by_variant,
                manifest=None,
            ),
            self._build,
        )

    def commit(
        self,
        *,
        scope: str,
        network: NetworkManifest,
        ranking: RankingManifest,
        profile: Profile,
        generator: str,
        created_at: str,
    ) -> RevisionManifest:
        """Publish. `created_at` is UTC in RFC 3339; revisions are ordered by it."""
        expected = {paths.TABLE, *(paths.weights_of(variant.name) for variant in profile.variants)}
        if not profile.variants or expected != set(self._files):
            raise RuntimeError(f"the profile is of {sorted(expected)}, but {sorted(self._files)} were written")
        manifest = sealed(
            RevisionManifest(
                schema_version=SCHEMA_VERSION,
                revision=self.revision,
                recipe=self._recipe,
                graph=self._graph.digest,
                created_at=created_at,
                generator=generator,
                scope=scope,
                network=network,
                ranking=ranking,
                table=paths.TABLE,
                profile=profile,
                files=dict(sorted(self._files.items())),
            )
        )
        files.commit(self._folder / paths.REVISION_COMMIT, to_json(manifest))
        return manifest


def to_json(manifest: GraphManifest | RevisionManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
