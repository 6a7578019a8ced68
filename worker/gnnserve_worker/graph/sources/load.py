"""Loading a manifest's `graph.source` as a checked graph. Every kind of source has a file beside this one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import assert_never

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import Builtin, GraphSource, NpzSource
from gnnserve_api.spec.heterogeneous import HeteroDataFile, TypedCsv, TypedFolder, TypedParquet, TypedSource
from gnnserve_api.spec.paths import paths_of
from gnnserve_api.spec.published import OgbSource, PygSource
from gnnserve_api.spec.tables import CsvSource, ParquetSource
from gnnserve_worker.graph.sources import digits, npz
from gnnserve_worker.graph.sources.files import require_all
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener, silent

IMPORTER_VERSION = 1
"""Increase it when the same source is read into another graph than before."""


def source_digest(source: GraphSource) -> str:
    """Identity of the content without importing or downloading it: cheap enough for every start.

    Raises InputError when a file is missing or is not the one that the manifest pins.
    """
    require_all(paths_of(source, "spec.graph.source"))
    return hashlib.sha256(f"importer {IMPORTER_VERSION}\n{_identity(source)}".encode()).hexdigest()[:16]


def undecided_digest(source: GraphSource) -> str | None:
    """`source_digest` where the direction of a file's edges is not stated, which was decided when it was read; None: it
    is not stated, or never decided."""
    if source.npz is None or source.npz.direction is None:
        return None
    return source_digest(GraphSource(npz=source.npz.model_copy(update={"direction": None})))


def _identity(source: GraphSource) -> str:
    # Modules that few graphs need are imported where they are needed: pyarrow alone takes a fifth of a second.
    match given := source.given():
        case Builtin.DIGITS:
            return digits.IDENTITY
        case NpzSource():
            return npz.identity(given)
        case OgbSource() | PygSource():
            from gnnserve_worker.graph.sources.published import identity as published_identity  # noqa: PLC0415

            return published_identity(given)
        case ParquetSource() | CsvSource():
            from gnnserve_worker.graph.sources.tables import identity as tables_identity  # noqa: PLC0415

            return tables_identity(given)
        case TypedSource():
            return _typed_identity(given)
        case _:
            assert_never(given)


def load_source(
    source: GraphSource, downloads: Path, progress: ProgressListener = silent, *, learns_labels: bool = True
) -> GraphData:
    """Read and check the graph. `downloads`: the folder of fetched files. `learns_labels`: refuse labels that cannot
    be learnt.

    Raises InputError that names the file, the array or column, and the value; ResourceError for failures of the network
    or the disk.
    """
    digest = source_digest(source)
    match given := source.given():
        case Builtin.DIGITS:
            return digits.load(digest)
        case NpzSource():
            return npz.load(given, digest, learns_labels=learns_labels)
        case OgbSource() | PygSource():
            from gnnserve_worker.graph.sources.published import load as load_published  # noqa: PLC0415

            return load_published(given, digest, downloads, progress)
        case ParquetSource() | CsvSource():
            from gnnserve_worker.graph.sources.tables import load as load_tables  # noqa: PLC0415

            return load_tables(given, digest, progress, learns_labels=learns_labels)
        case TypedSource():
            raise InputError(
                "spec.graph.source.typed", "is a graph of several types, where one of a single type is needed",
                "name such a graph",
            )  # fmt: skip
        case _:
            assert_never(given)


def load_typed_source(
    source: TypedSource, progress: ProgressListener = silent, *, needs_labels: bool = True
) -> GraphData:
    """Read and check a typed graph. `needs_labels`: refuse one without labels.

    Raises InputError that names the place, the value and what there is.
    """
    digest = source_digest(GraphSource(typed=source))
    match given := source.given():
        case TypedFolder():
            from gnnserve_worker.graph.sources.npz_folder import load as load_folder  # noqa: PLC0415

            return load_folder(source, given, digest, progress, needs_labels=needs_labels)
        case HeteroDataFile():
            from gnnserve_worker.graph.sources.hetero_data import load as load_hetero  # noqa: PLC0415

            return load_hetero(source, given, digest, progress, needs_labels=needs_labels)
        case TypedParquet() | TypedCsv():
            from gnnserve_worker.graph.sources.tables_by_type import load as load_typed_tables  # noqa: PLC0415

            return load_typed_tables(source, given, digest, progress, needs_labels=needs_labels)
        case _:
            assert_never(given)


def _typed_identity(source: TypedSource) -> str:
    match given := source.given():
        case TypedFolder():
            from gnnserve_worker.graph.sources.npz_folder import identity as folder_identity  # noqa: PLC0415

            files = folder_identity(given)
        case HeteroDataFile():
            from gnnserve_worker.graph.sources.hetero_data import identity as hetero_identity  # noqa: PLC0415

            files = hetero_identity(given)
        case TypedParquet() | TypedCsv():
            from gnnserve_worker.graph.sources.tables_by_type import identity as tables_identity  # noqa: PLC0415

            files = tables_identity(given)
        case _:
            assert_never(given)
    options = source.model_dump_json(include={"target", "without_features", "reverse"})
    return f"typed {type(given).__name__} {options}\n{files}"
