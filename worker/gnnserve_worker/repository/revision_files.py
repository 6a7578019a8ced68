"""The files of a revision: of one that is to be opened, whether published or staged, and of one that is being written.

Arrays, tables and tensors are each opened where they are needed. What is made of them is `opening/`.

Readers do not see a revision that is being written before `commit`, and without a commit it is removed. The last file,
`revision.json`, is the commit; it names every other file with size and digest, and each of those is on the disk before
it is written. `repository.py` decides which process may write, and removes unfinished work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import UNSET, UnsetType

from gnnserve_api.families import point_of
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.given_weights import ComparedScores, LabelMisfit
from gnnserve_api.files.graph_schema import GraphSchema, RelationRowPlaces
from gnnserve_api.files.profile import Profile, StaleLayerProfile
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import (
    COLUMNS_SCHEMA_VERSION,
    FOLLOWED_ROWS_SCHEMA_VERSION,
    LISTED_SCHEMA_VERSION,
    PAIRS_SCHEMA_VERSION,
    PRODUCTS_SCHEMA_VERSION,
    PROGRAM_SCHEMA_VERSION,
    SCHEMA_VERSION,
    STALE_SCHEMA_VERSION,
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
)
from gnnserve_api.files.training import TrainingManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage
from gnnserve_worker.repository import checks, files, paths
from gnnserve_worker.repository.room import GraphRoom
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.growing import read_only
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table, WritableRows, copy_rows, write_rows

# --- of a revision that is to be opened


@dataclass(frozen=True, slots=True)
class RowRecipe:
    """Recipe of rows of tables, for nodes that the graph does not have."""

    normalization: Normalization
    tensors: Mapping[str, np.ndarray]
    """Moments of the columns, and what projected tables were made by."""
    columns: np.ndarray
    """Source columns of those tables that do not name theirs: int64, in the order of the ranking."""


class RowLayout(StrEnum):
    """How tables have rows of nodes."""

    BY_NODE = "ByNode"
    """a row of each node, where nodes have one list each"""
    BY_RELATION = "ByRelation"
    """a row of a node for each relation that reads it, and one for itself"""
    BY_TYPE = "ByType"
    """a row of each node, where nodes have lists by relation: what programs read, and embeddings of nodes"""

    @classmethod
    def of_nodes(cls, schema: GraphSchema) -> RowLayout:
        """How tables have one row of each node: where all nodes have one list, neighbours are drawn from it alone."""
        return cls.BY_NODE if schema.slots == (1,) else cls.BY_TYPE


@dataclass(frozen=True, slots=True)
class RevisionFiles:
    """Files of a revision to open, whether published or staged."""

    graph_folder: Path
    graph: GraphManifest
    folder: Path
    tables: Mapping[str, TableManifest]
    variants: Sequence[VariantManifest]
    manifest: RevisionManifest | None
    rows: RowRecipe | None = None
    """What rows of a staged revision are made by; a published one has it in its manifest and its files."""
    staged_rules: EdgeRules | None = None
    """The `edge_rules` that the manifest of a staged revision will have."""
    verified: checks.VerifiedFiles = field(default_factory=checks.VerifiedFiles)
    """Files that were verified; empty while it is staged, when no other process reaches them."""
    room: GraphRoom | None = None
    """What changes may need; None: it is opened to stay as it is."""
    watched: WatchedFiles | None = None
    """What watches its files; None: no other process reaches them, since it is staged."""

    @property
    def edge_rules(self) -> EdgeRules | None:
        """As of `RevisionManifest`."""
        return self.staged_rules if self.manifest is None else self.manifest.edge_rules

    @property
    def node_room(self) -> int:
        """Nodes that tables have rows for."""
        return self.graph.nodes + (0 if self.room is None else self.room.nodes)

    @property
    def has_rows_by_relation(self) -> bool:
        """Whether nodes have a row in its tables for each relation that reads them."""
        return any(table.by_relation for table in self.tables.values())

    @property
    def row_layout(self) -> RowLayout:
        """That of the tables by which the graph is opened."""
        if self.has_rows_by_relation:
            return RowLayout.BY_RELATION
        # Layers over several lists need rows by relation, which these tables do not say they have.
        has_program = any(variant.network.reads_features for variant in self.variants)
        reads_lists = any(any(variant.fanouts) for variant in self.variants)
        return RowLayout.of_nodes(self.graph.schema) if has_program or not reads_lists else RowLayout.BY_NODE

    def layout_of(self, table: TableManifest) -> RowLayout:
        """Beside tables by relation others have one row of each node, whose types these have."""
        if table.by_relation:
            return RowLayout.BY_RELATION
        return RowLayout.BY_TYPE if self.has_rows_by_relation else self.row_layout

    def by_layout(self) -> dict[RowLayout, RevisionFiles]:
        """The revision with the tables of each layout alone, and the variants that read these; first that of
        `row_layout`."""
        found: dict[RowLayout, RevisionFiles] = {}
        for layout in RowLayout:
            tables = {name: table for name, table in self.tables.items() if self.layout_of(table) is layout}
            if tables:
                variants = [variant for variant in self.variants if variant.table in tables]
                found[layout] = replace(self, tables=tables, variants=variants)
        return found

    @property
    def makes_rows_by_type(self) -> bool:
        """Whether it keeps what rows of new nodes of each type are made by."""
        source = None if self.manifest is None else self.manifest.row_source
        has_products = source is not None and source.tensors is not None
        return source is not None and bool(source.types) and (has_products or not self.has_rows_by_relation)

    @property
    def remedy(self) -> str:
        return checks.remedy(self.folder)

    @property
    def graph_remedy(self) -> str:
        """Names both folders, because generation starts only when the revision is gone, and keeps a graph that is
        there."""
        return checks.remedy(self.graph_folder, self.folder)


def open_graph_array(revision: RevisionFiles, name: str, dtype: type[np.generic], *shape: int) -> np.ndarray:
    path = revision.graph_folder / name
    return checks.open_array(path, np.dtype(dtype), shape, revision.graph_remedy, revision.verified.mapped.get(path))


def open_table(revision: RevisionFiles, table: TableManifest) -> Table:
    counts = table.row_counts(revision.graph.schema)
    rows = _open_rows(revision, table, table.rows, counts[0])
    own = rows if table.own is None else _open_rows(revision, table, table.own, counts[1])
    return Table(table.kind, table.columns, rows, own)


def _open_rows(revision: RevisionFiles, table: TableManifest, rows: RowsManifest, count: int) -> Rows:
    def mapped(name: str, dtype: np.dtype, *shape: int) -> np.ndarray:
        path = revision.folder / name
        if revision.room is not None:
            return checks.open_growing(path, dtype, shape, revision.node_room, revision.remedy)
        return checks.open_array(path, dtype, shape, revision.remedy, revision.verified.mapped.get(path))

    table_format = FORMATS[table.storage]
    values = mapped(rows.values, table_format.dtype, count, table_format.padded_columns(table.columns))
    scales = NO_SCALES if rows.scales is None else mapped(rows.scales, np.dtype(np.float32), count)
    if revision.room is None:
        return Rows(table_format, values, scales)
    # Read-only like mapped files, so that the kernels that read them are the same.
    return Rows(table_format, read_only(values), read_only(scales), WritableRows(values, scales))


def read_tensors(revision: RevisionFiles, path: Path) -> dict[str, np.ndarray]:
    content = revision.verified.read.get(path)
    return safetensors.numpy.load_file(path) if content is None else safetensors.numpy.load(content)


# --- of a revision that is being written


MeasureStale = Callable[[RevisionFiles], tuple[StaleLayerProfile, ...]]
"""Function that measures what stale rows of stored layers cost; empty: none may be stale."""


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
        by_relation: RelationRowPlaces | UnsetType = UNSET,
        types: int | UnsetType = UNSET,
    ) -> TableManifest:
        """`rows` and `own` are float32 blocks that add up to [nodes, columns], as `tables/table.py` makes them, or to
        as many rows as `by_relation` says. `source_columns`, `made_by`, `by_relation` and `types`: as in the manifest.

        Raises ValueError for a number that the storage cannot hold; then no file of the table is left.
        """
        written: list[str] = []
        nothing = RowsManifest(values="", scales=None)
        table = TableManifest(
            kind=kind,
            storage=storage,
            columns=columns,
            rows=nothing,
            source_columns=source_columns,
            made_by=made_by,
            by_relation=by_relation,
            types=types,
        )
        counts = table.row_counts(self._graph.schema)
        try:
            table = msgspec.structs.replace(
                table,
                rows=self._write_rows(paths.rows_of(name), rows, counts[0], columns, storage, written),
                own=None
                if own is None
                else self._write_rows(paths.own_rows_of(name), own, counts[1], columns, storage, written),
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

    def files_of(
        self, variants: Sequence[VariantManifest], rows: RowRecipe | None = None, edge_rules: EdgeRules | None = None
    ) -> RevisionFiles:
        """The staged revision with these variants, to be opened as it will be served. `rows`: what rows of new nodes
        are made by, without what is kept of single tables; None: no rows are made. `edge_rules`: as of `commit`."""
        return RevisionFiles(
            graph_folder=self._graph_folder,
            graph=self._graph,
            folder=self._folder,
            tables=dict(self._tables),
            variants=variants,
            manifest=None,
            rows=None if rows is None else replace(rows, tensors={**rows.tensors, **self._made_by}),
            staged_rules=edge_rules,
        )

    def _as_served(self, manifest: RevisionManifest) -> RevisionFiles:
        """Files of the revision, with the manifest that it will have."""
        return RevisionFiles(
            self._graph_folder, self._graph, self._folder, dict(self._tables), manifest.variants, manifest
        )

    def _schema_version(self, variants: Sequence[VariantManifest], *, decides_by_pairs: bool) -> int:
        if any(table.has_columns_of_types for table in self._tables.values()):
            return COLUMNS_SCHEMA_VERSION
        listed = [variant for variant in variants if variant.network.kind is NetworkKind.LISTED]
        if any(map(_is_of_other_rows, listed)):
            return PRODUCTS_SCHEMA_VERSION
        if listed:
            return LISTED_SCHEMA_VERSION
        by_relation = {bool(table.by_relation) for table in self._tables.values()}
        is_mixed = len(by_relation) > 1 or any(table.types for table in self._tables.values())
        if decides_by_pairs or is_mixed or any(map(self._needs_makers_by_network, variants)):
            return PAIRS_SCHEMA_VERSION
        if any(variant.network.kind is NetworkKind.PROGRAM for variant in variants):
            return PROGRAM_SCHEMA_VERSION
        return TYPED_SCHEMA_VERSION if True in by_relation else SCHEMA_VERSION

    def _needs_makers_by_network(self, variant: VariantManifest) -> bool:
        """Whether it is one by relation whose rows earlier releases would make by the model's first layer, or not make
        anew behind the first."""
        followed = None if variant.stored is None else variant.stored.followed
        is_narrow = any(self._tables[name].made_by for name in variant.tables)
        is_deep = followed is not None and len(followed.layers) > 1
        return bool(self._tables[variant.table].by_relation) and (is_narrow or is_deep)

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
        measure_stale: MeasureStale = lambda _: (),
    ) -> RevisionManifest:
        """Publish. `variants` in the order of the profile, `cascades` behind them. `created_at` is UTC in
        RFC 3339; revisions are ordered by it. `training`: None for given weights. `sections`: what the task
        has in the manifest, by its fields. `measure_stale`: measures stored layers that may be stale, on the revision
        as it will be served; its profile says so already where there are none."""
        manifest = RevisionManifest(
            schema_version=self._schema_version(variants, decides_by_pairs=bool(cascades and sections)),
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
        stale = measure_stale(self._as_served(manifest)) or profile.stale
        if stale is not UNSET or any(map(_makes_rows_for_requests, variants)):
            profile = msgspec.structs.replace(profile, stale=stale)
            manifest = msgspec.structs.replace(manifest, schema_version=STALE_SCHEMA_VERSION, profile=profile)
        able = [point_of(one).capabilities for one in cascades]
        follows_newly = any(one.changes and not one.overlay for one in able)
        if follows_newly or any(variant.propagated is not UNSET for variant in variants):
            manifest = msgspec.structs.replace(manifest, schema_version=FOLLOWED_ROWS_SCHEMA_VERSION)
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


def _makes_rows_for_requests(variant: VariantManifest) -> bool:
    """Whether rows of a stored layer are made where requests reach, which earlier releases do for first layers of one
    type and for those that a manifest lists."""
    stored = variant.stored
    if stored is None or stored.followed is None or not point_of(variant).capabilities.overlay:
        return False
    return stored.layer > 1 or variant.network.kind is NetworkKind.LAYERS


def _is_of_other_rows(variant: VariantManifest) -> bool:
    """Whether it is one of listed layers whose rows or family earlier releases do not know."""
    program, stored = variant.network.program, variant.stored
    reads_fewer = program is not UNSET and program.layers is not UNSET and bool(program.layers.columns)
    point = point_of(variant)
    is_stored_otherwise = stored is not None and (stored.layer == 0 or point.capabilities.overlay)
    return reads_fewer or is_stored_otherwise or not point.has_all_channels


def stored_bytes(nodes: int, columns: int, storage: Storage) -> int:
    """Bytes of a table on disk, padding included."""
    table_format = FORMATS[storage]
    return nodes * table_format.row_bytes(table_format.padded_columns(columns))


def to_json(manifest: GraphManifest | RevisionManifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
