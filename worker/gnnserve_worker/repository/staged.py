"""A revision that is being written: readers do not see it before `commit`, and without a commit it is removed.

The last file, `revision.json`, is the commit; it names every other file with size and digest, and each of those is on
the disk before it is written. `repository.py` decides which process may write, and removes unfinished work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import UNSET, UnsetType

from gnnserve_api.cascades import CascadeManifest
from gnnserve_api.edges import EdgeRules
from gnnserve_api.given_weights import ComparedScores, LabelMisfit
from gnnserve_api.graph_schema import RowsByRelation
from gnnserve_api.profile import Profile
from gnnserve_api.programs import ProgramManifest
from gnnserve_api.repository import (
    PROGRAM_SCHEMA_VERSION,
    SCHEMA_VERSION,
    TYPED_SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    NetworkKind,
    RankingManifest,
    RevisionManifest,
    RowsManifest,
    RowSource,
    TableKind,
    TableManifest,
    TaskSection,
    VariantManifest,
    model_digest,
    sealed,
    types_with_rows,
)
from gnnserve_api.training import TrainingManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.repository import checks, files, paths
from gnnserve_worker.repository.revision_files import RevisionFiles, RowRecipe, open_table
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import Rows, Table, copy_rows, write_rows


class StagedRevision:
    """Writes one revision. Made by `Repository.stage`, under the lock."""

    def __init__(
        self,
        folder: Path,
        recipe: str,
        graph_folder: Path,
        graph: GraphManifest,
        checkpoint: str | None,
        given: dict[str, str],
    ) -> None:
        self._folder = folder
        self._recipe = recipe
        self._graph_folder = graph_folder
        self._graph = graph
        self._checkpoint = checkpoint
        self._given = given
        self._tables: dict[str, TableManifest] = {}
        self._files: dict[str, FileEntry] = {}
        self._made_by: dict[str, np.ndarray] = {}
        """What rows of its projected tables were made by, as the manifest's `RowSource` keeps it."""

    @property
    def revision(self) -> str:
        return self._folder.name

    def write_table(
        self,
        name: str,
        kind: TableKind,
        storage: Storage,
        columns: int,
        rows: Iterable[np.ndarray],
        own: Iterable[np.ndarray] | None = None,
        source_columns: tuple[int, ...] | None = None,
        made_by: str = "",
        by_relation: RowsByRelation | UnsetType = UNSET,
    ) -> TableManifest:
        """`rows` and `own` are float32 blocks that add up to [nodes, columns], as `tables/table.py` makes them, or to
        as many rows as `by_relation` says. `source_columns`, `made_by` and `by_relation`: as in the manifest.

        Raises ValueError for a number that the storage cannot hold; then no file of the table is left.
        """
        written: list[str] = []
        schema = self._graph.schema
        counts = (
            (schema.first_nodes[types_with_rows(kind, schema)],) * 2
            if by_relation is UNSET
            else (by_relation.rows, by_relation.own_rows)
        )
        try:
            table = TableManifest(
                kind=kind,
                storage=storage,
                columns=columns,
                rows=self._write_rows(paths.rows_of(name), rows, counts[0], columns, storage, written),
                own=None
                if own is None
                else self._write_rows(paths.own_rows_of(name), own, counts[1], columns, storage, written),
                source_columns=source_columns,
                made_by=made_by,
                by_relation=by_relation,
            )
        except ValueError:
            self._remove(written)
            raise
        self._tables[name] = table
        return table

    def carry_table(
        self, name: str, table: TableManifest, rows: Table, places: np.ndarray, own_places: np.ndarray
    ) -> None:
        """Write a table of another revision over again, in its format: these of its rows, and of those of nodes
        themselves (int64), in their order. `rows`: as it is open."""
        carried = self._carry_rows(paths.rows_of(name), rows.rows, places)
        own = None if table.own is None else self._carry_rows(paths.own_rows_of(name), rows.own, own_places)
        self._tables[name] = msgspec.structs.replace(table, rows=carried, own=own)

    def _carry_rows(self, name: str, rows: Rows, nodes: np.ndarray) -> RowsManifest:
        path = self._folder / name
        wanted_bytes = len(nodes) * rows.values.shape[1] * rows.values.itemsize
        files.require_free(path, wanted_bytes)
        files.make_folder(path.parent)
        with files.storing(path, wanted_bytes):
            copy_rows(path, rows, nodes)
            files.sync(path)
            files.sync(path.parent)
            self._files[name] = files.entry_of(path)
        if not len(rows.scales):
            return RowsManifest(values=name, scales=None)
        scales_name = paths.scales_of(name)
        self._files[scales_name] = files.write_array(self._folder / scales_name, rows.scales[nodes])
        return RowsManifest(values=name, scales=scales_name)

    def carry_file(self, name: str, content: bytes) -> None:
        """Write a file of another revision over again."""
        path = self._folder / name
        files.make_folder(path.parent)
        self._files[name] = files.write_file(path, content)

    def _write_rows(
        self, name: str, blocks: Iterable[np.ndarray], nodes: int, columns: int, storage: Storage, written: list[str]
    ) -> RowsManifest:
        path = self._folder / name
        wanted_bytes = stored_bytes(nodes, columns, storage)
        files.require_free(path, wanted_bytes)
        files.make_folder(path.parent)
        written.append(name)
        with files.storing(path, wanted_bytes):
            scales = write_rows(path, blocks, nodes, columns, FORMATS[storage])
            files.sync(path)
            files.sync(path.parent)
            self._files[name] = files.entry_of(path)
        if scales is None:
            return RowsManifest(values=name, scales=None)
        scales_name = paths.scales_of(name)
        written.append(scales_name)
        self._files[scales_name] = files.write_array(self._folder / scales_name, scales)
        return RowsManifest(values=name, scales=scales_name)

    def write_variant(self, name: str, tensors: Mapping[str, np.ndarray]) -> FileEntry:
        if not paths.is_name(name):
            raise ValueError(f"variant {name!r} is not safe as a folder name")
        weights = paths.weights_of(name)
        path = self._folder / weights
        files.make_folder(path.parent)
        data = safetensors.numpy.save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})
        self._files[weights] = files.write_file(path, data)
        return self._files[weights]

    def write_program(self, name: str, folder: Path, program: ProgramManifest) -> ProgramManifest:
        """Copy a program, and the files that have its weights, out of `folder`. `program`: with their paths in there.
        Returns it with their paths in the revision, and its digest."""
        kept = {given: paths.program_file_of(name, given) for given in (program.file, *program.data_files)}
        for given, path in kept.items():
            if not (paths.is_name(name) and paths.is_name(given)):
                raise ValueError(f"file {given!r} of variant {name!r} is not safe as a path")
            files.make_folder((self._folder / path).parent)
            self._files[path] = files.write_file(self._folder / path, (folder / given).read_bytes())
        return msgspec.structs.replace(
            program,
            file=kept[program.file],
            sha256=self._files[kept[program.file]].sha256,
            data_files=tuple(kept[given] for given in program.data_files),
        )

    def write_row_source(self, tensors: Mapping[str, np.ndarray]) -> str | None:
        """The tensors of the manifest's `RowSource`; their path, or None where there are none."""
        if not tensors:
            return None
        data = safetensors.numpy.save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})
        self._files[paths.ROW_SOURCE] = files.write_file(self._folder / paths.ROW_SOURCE, data)
        return paths.ROW_SOURCE

    def write_decoder(self, tensors: Mapping[str, np.ndarray]) -> str | None:
        """The weights of the decoder of links; their path, or None where there are none."""
        if not tensors:
            return None
        data = safetensors.numpy.save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})
        self._files[paths.DECODER] = files.write_file(self._folder / paths.DECODER, data)
        return paths.DECODER

    @property
    def tables(self) -> frozenset[str]:
        """Names of the tables that were written and are not discarded."""
        return frozenset(self._tables)

    def open_table(self, name: str) -> Table:
        """A table that was written, mapped."""
        return open_table(self.files_of([]), self._tables[name])

    def discard_table(self, name: str) -> None:
        """Remove a table that turned out not to be worth its space."""
        self._remove(checks.files_of(self._tables.pop(name)))

    def written(self, name: str) -> FileEntry:
        """Size and digest of a file that was written."""
        return self._files[name]

    def discard_weights(self, weights: str) -> None:
        """`weights`: their path, as `write_variant` made it."""
        self._remove([weights])
        folder = (self._folder / weights).parent
        with files.storing(folder):
            files.remove_tree(folder)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._files.pop(name, None)
            with files.storing(self._folder / name):
                files.remove_file(self._folder / name)

    def keep_maker(self, prefix: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Keep what rows of a table were made by: for what opens `files_of`, which makes others like them."""
        self._made_by |= {prefix + key: tensor for key, tensor in tensors.items()}

    def files_of(self, variants: Sequence[VariantManifest], rows: RowRecipe | None = None) -> RevisionFiles:
        """The staged revision with these variants, to be opened as it will be served. `rows`: what rows of new nodes
        are made by, without what is kept of single tables; None: no rows are made."""
        return RevisionFiles(
            graph_folder=self._graph_folder,
            graph=self._graph,
            folder=self._folder,
            tables=dict(self._tables),
            variants=variants,
            manifest=None,
            rows=None if rows is None else replace(rows, tensors={**rows.tensors, **self._made_by}),
        )

    def _schema_version(self, variants: Sequence[VariantManifest]) -> int:
        if any(variant.network.kind is NetworkKind.PROGRAM for variant in variants):
            return PROGRAM_SCHEMA_VERSION
        are_by_relation = any(table.by_relation for table in self._tables.values())
        return TYPED_SCHEMA_VERSION if are_by_relation else SCHEMA_VERSION

    def commit(
        self,
        *,
        scope: str,
        ranking: RankingManifest,
        variants: Sequence[VariantManifest],
        profile: Profile,
        generator: str,
        created_at: str,
        training: TrainingManifest | None = None,
        row_source: RowSource | None = None,
        edge_rules: EdgeRules | None = None,
        cascades: Sequence[CascadeManifest] = (),
        sections: Mapping[str, TaskSection] = MappingProxyType({}),
        assumptions: Mapping[str, str] | UnsetType = UNSET,
        compared: Sequence[ComparedScores] = (),
        label_misfits: Sequence[LabelMisfit] = (),
    ) -> RevisionManifest:
        """Publish. `variants` in the order of the profile, `cascades` behind them. `created_at` is UTC in
        RFC 3339; revisions are ordered by it. `training`: None for given weights. `sections`: what the task
        has in the manifest, by its fields."""
        manifest = RevisionManifest(
            schema_version=self._schema_version(variants),
            revision=self.revision,
            recipe=self._recipe,
            graph=self._graph.digest,
            model=model_digest(variants, self._files),
            checkpoint=self._checkpoint,
            created_at=created_at,
            generator=generator,
            scope=scope,
            ranking=ranking,
            tables=self._tables,
            variants=tuple(variants),
            profile=profile,
            files=dict(sorted(self._files.items())),
            training=training,
            row_source=row_source,
            edge_rules=edge_rules,
            given=self._given,
            cascades=tuple(cascades),
            assumptions=UNSET if assumptions is UNSET else dict(assumptions),
            compared=tuple(compared) or UNSET,
            label_misfits=tuple(label_misfits) or UNSET,
        )
        manifest = msgspec.structs.replace(manifest, **sections)
        expected = set(checks.files_beside_tables(manifest))
        for table in {table for variant in variants for table in variant.tables}:
            expected.update(checks.files_of(self._tables[table]))
        if not variants or expected != set(self._files):
            raise RuntimeError(f"the variants are of {sorted(expected)}, but {sorted(self._files)} were written")
        if (problem := checks.profile_misfit([*variants, *cascades], profile)) is not None:
            raise RuntimeError(problem)
        manifest = sealed(manifest)
        files.commit(self._folder / paths.REVISION_COMMIT, to_json(manifest))
        return manifest


def stored_bytes(nodes: int, columns: int, storage: Storage) -> int:
    """Bytes of a table on disk, padding included."""
    table_format = FORMATS[storage]
    return nodes * table_format.row_bytes(table_format.padded_columns(columns))


def to_json(manifest: GraphManifest | RevisionManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
