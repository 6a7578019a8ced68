"""Columns of the source that recommendations are filtered by, kept beside the index of a published revision."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.files.embeddings import COLUMNS_SCHEMA_VERSION, ColumnsManifest
from gnnserve_api.files.repository import RevisionManifest, SourceColumn
from gnnserve_worker.graph.store import NodeType
from gnnserve_worker.nearest.columns import COMMIT, columns_folder, read_manifest, write_columns
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.repository import files

TypesOf = Callable[[RevisionManifest], Sequence[NodeType]]
"""Gives the types of a revision's nodes, as `types_with_columns`."""


def keep_columns(
    revision: Path, manifest: RevisionManifest, parts: Sequence[IndexPart], types_of: TypesOf, written_by: str
) -> None:
    """Write the columns of the nodes of each part, unless they are there. `revision`: its folder. A source that cannot
    be read keeps no index from being made: why is told where a request filters by columns."""
    missing = [part for part in parts if not _are_there(columns_folder(revision, part), manifest)]
    if not missing:
        return
    try:
        types, problem = types_of(manifest), ""
    except (InputError, ResourceError) as error:
        types, problem = (), " ".join(str(error).split())
    of_name = {kind.name: kind for kind in types}
    for part in missing:
        kind = of_name.get(part.type)
        misfit = problem
        if kind is not None and kind.nodes != part.nodes:
            misfit = f"its source has {kind.nodes:,} nodes of type {part.type!r}, and it {part.nodes:,}"
        fitting = None if misfit else kind
        _write(columns_folder(revision, part), manifest, part, fitting, misfit, written_by)


def _are_there(folder: Path, manifest: RevisionManifest) -> bool:
    found = read_manifest(folder)
    return found is not None and found.revision == manifest.revision and not found.problem


def _write(
    folder: Path, manifest: RevisionManifest, part: IndexPart, kind: NodeType | None, problem: str, written_by: str
) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    files.make_folder(unfinished)
    try:
        features = None if kind is None else kind.features
        described = () if kind is None else kind.feature_columns
        made = ColumnsManifest(
            COLUMNS_SCHEMA_VERSION,
            written_by,
            manifest.revision,
            part.nodes,
            0 if features is None else features.shape[1],
            tuple(SourceColumn(column.name, column.width, column.fill) for column in described),
            write_columns(unfinished, features),
            problem,
        )
        files.commit(unfinished / COMMIT, msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
        with files.storing(folder):
            # Processes that have the old files mapped go on reading them.
            shutil.rmtree(folder, ignore_errors=True)
            files.rename(unfinished, folder)
            files.sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
