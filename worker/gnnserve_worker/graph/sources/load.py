"""Loading a manifest's `graph.source` as a checked graph. Every kind of source has a file beside this one, and a row in
`KINDS`; the default graph alone is made here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.spec.graph import Builtin, GraphSource, NpzSource
from gnnserve_api.spec.heterogeneous import CsvByType, HeteroDataFile, HeterogeneousSource, NpzFolder, ParquetByType
from gnnserve_api.spec.paths import NamedPath, paths_of
from gnnserve_api.spec.published import OgbSource, PygSource
from gnnserve_api.spec.tables import CsvSource, ParquetSource
from gnnserve_worker.graph.inspection import Inspection, InspectionByType, inspect, inspect_by_type
from gnnserve_worker.graph.links import PartsLinks, part_edges, part_relation
from gnnserve_worker.graph.store import Graph, GraphData, random_splits
from gnnserve_worker.progress import ProgressListener, silent

IMPORTER_VERSION = 1
"""Increase it when the same source is read into another graph than before."""
_MOST_LISTED = 10
"""Most missing files that a message names."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read."""

    digest: str
    """`source_digest` of the source."""
    downloads: Path
    """The folder of fetched files."""
    progress: ProgressListener
    learns_labels: bool
    """Whether labels that cannot be learnt are refused, and graphs without any."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source, by what its manifest says: a member of `GivenSource`."""

    identity: Callable[[Any], str]
    """Identity of its content."""
    load: Callable[[Any, Reading], GraphData]
    part_links: PartsLinks = part_edges
    """How links of such graphs are parted into those that are learnt from and those that are held out."""
    inspect: Callable[[GraphData], Inspection | InspectionByType] = inspect
    check_tried: Callable[[], None] = lambda: None
    """Raises InputError where candidates are not trained over such graphs to compare them."""


def kind_of(source: GraphSource) -> SourceKind:
    return KINDS[type(source.given())]()


def source_digest(source: GraphSource) -> str:
    """Identity of the content without importing or downloading it: cheap enough for every start.

    Raises InputError when a file is missing or is not the one that the manifest pins.
    """
    require_all(paths_of(source, "spec.graph.source"))
    identity = kind_of(source).identity(source.given())
    return hashlib.sha256(f"importer {IMPORTER_VERSION}\n{identity}".encode()).hexdigest()[:16]


def undecided_digest(source: GraphSource) -> str | None:
    """`source_digest` where the direction of a file's edges is not stated, which was decided when it was read; None: it
    is not stated, or never decided."""
    if source.npz is None or source.npz.direction is None:
        return None
    return source_digest(GraphSource(npz=source.npz.model_copy(update={"direction": None})))


def require_all(paths: Sequence[NamedPath]) -> None:
    """Refuse missing files together. Where one alone is missing, its reader knows more to say."""
    missing = [one for one in paths if one.is_missing]
    if len(missing) < 2:
        return
    listed = [f"{one.field}: {one.place}" for one in missing[:_MOST_LISTED]]
    if len(missing) > _MOST_LISTED:
        listed.append(f"{len(missing) - _MOST_LISTED} more")
    raise InputError(
        "spec", f"names {len(missing)} files that are not there: {', '.join(listed)}",
        "bring them there, or correct the paths",
    )  # fmt: skip


def load_source(
    source: GraphSource, downloads: Path, progress: ProgressListener = silent, *, learns_labels: bool = True
) -> GraphData:
    """Read and check the graph. `downloads`: the folder of fetched files. `learns_labels`: refuse labels that cannot
    be learnt, and a graph of several types without any.

    Raises InputError that names the file, the array or column, and the value; ResourceError for failures of the network
    or the disk.
    """
    reading = Reading(source_digest(source), downloads, progress, learns_labels)
    return kind_of(source).load(source.given(), reading)


def load_of_one_type(source: GraphSource, downloads: Path, progress: ProgressListener = silent) -> GraphData:
    """`load_source` for what is made of one list of neighbours of each node. InputError: there are several."""
    data = load_source(source, downloads, progress, learns_labels=False)
    if len(data.relations) > 1:
        raise InputError(
            "spec.graph.source.typed", "is a graph of several types, where one of a single type is needed",
            "name such a graph",
        )  # fmt: skip
    return data


# --- the default graph

_DIGITS = "digits: 10 nearest neighbours, both ways, split 60/20/20 by permutation 0"
_NEIGHBOURS = 10


def _load_digits(digest: str) -> GraphData:
    """scikit-learn's 1,797 handwritten digits, each linked to its 10 nearest neighbours.

    It is real data that needs no network: 8×8 grey levels as features, the digit as label. Links go both ways. The
    split is 60/20/20 by a fixed permutation, since the data set has none of its own.
    """
    # Imported here: scikit-learn takes seconds to load, scipy.sparse a tenth of one, and once the graph is stored no
    # start needs them.
    import scipy.sparse as sp  # noqa: PLC0415
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.neighbors import kneighbors_graph  # noqa: PLC0415

    features, labels = load_digits(return_X_y=True)
    nearest = kneighbors_graph(features, _NEIGHBOURS)
    links = sp.csr_array(nearest.maximum(nearest.T))
    links.sort_indices()
    return GraphData.of_one_type(
        source="builtin Digits",
        digest=digest,
        graph=Graph(links.indptr.astype(np.int64), links.indices.astype(np.int32)),
        features=features.astype(np.float32),
        labels=labels.astype(np.int64),
        classes=tuple(range(10)),
        splits=random_splits(np.ones(len(labels), dtype=bool)),
        edge_rules=EdgeRules(Direction.UNDIRECTED),
    )


# --- all kinds

# Each imports its modules late: a start that finds its revision pays for one kind, and pyarrow alone takes a fifth of a
# second.


def _digits() -> SourceKind:
    return SourceKind(lambda _: _DIGITS, lambda _, reading: _load_digits(reading.digest))


def _npz() -> SourceKind:
    from gnnserve_worker.graph.sources import npz  # noqa: PLC0415

    def load(given: NpzSource, reading: Reading) -> GraphData:
        return npz.load(given, reading.digest, learns_labels=reading.learns_labels)

    return SourceKind(npz.identity, load)


def _published() -> SourceKind:
    from gnnserve_worker.graph.sources import published  # noqa: PLC0415

    def load(given: OgbSource | PygSource, reading: Reading) -> GraphData:
        return published.load(given, reading.digest, reading.downloads, reading.progress)

    return SourceKind(published.identity, load)


def _tables() -> SourceKind:
    from gnnserve_worker.graph.sources import tables  # noqa: PLC0415

    def load(given: ParquetSource | CsvSource, reading: Reading) -> GraphData:
        return tables.load(given, reading.digest, reading.progress, learns_labels=reading.learns_labels)

    return SourceKind(tables.identity, load)


def _several_types() -> SourceKind:
    """Graphs of named types and relations, in one of several layouts."""

    def identity(source: HeterogeneousSource) -> str:
        given = source.given()
        options = source.model_dump_json(include={"target", "without_features", "reverse"})
        layout = LAYOUTS[type(given)]()
        return f"typed {layout.name} {options}\n{layout.identity(given)}"

    def load(source: HeterogeneousSource, reading: Reading) -> GraphData:
        layout, needs_labels = LAYOUTS[type(source.given())](), reading.learns_labels
        return layout.load(source, source.given(), reading.digest, reading.progress, needs_labels=needs_labels)

    def check_tried() -> None:
        raise InputError("--try", "trains candidates over graphs of one type alone", "leave it out")

    return SourceKind(identity, load, part_relation, inspect_by_type, check_tried)


KINDS: Mapping[type, Callable[[], SourceKind]] = {
    Builtin: _digits,
    NpzSource: _npz,
    OgbSource: _published,
    PygSource: _published,
    ParquetSource: _tables,
    CsvSource: _tables,
    HeterogeneousSource: _several_types,
}
"""By the type of what `GraphSource.given` returns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Files that a graph of several types may be in, by what `HeterogeneousSource.given` returns."""

    name: str
    """Its name in digests of graphs. Another one would have every such graph imported and learnt anew."""
    identity: Callable[[Any], str]
    load: Callable[..., GraphData]
    """Called with the source, what it gives, the digest and a listener; `needs_labels`: as `Reading.learns_labels`."""


def _npz_folder() -> Layout:
    from gnnserve_worker.graph.sources import npz_folder  # noqa: PLC0415

    return Layout("TypedFolder", npz_folder.identity, npz_folder.load)


def _hetero_data() -> Layout:
    from gnnserve_worker.graph.sources import hetero_data  # noqa: PLC0415

    return Layout("HeteroDataFile", hetero_data.identity, hetero_data.load)


def _tables_by_type(name: str) -> Layout:
    from gnnserve_worker.graph.sources import tables_by_type  # noqa: PLC0415

    return Layout(name, tables_by_type.identity, tables_by_type.load)


LAYOUTS: Mapping[type, Callable[[], Layout]] = {
    NpzFolder: _npz_folder,
    HeteroDataFile: _hetero_data,
    ParquetByType: lambda: _tables_by_type("TypedParquet"),
    CsvByType: lambda: _tables_by_type("TypedCsv"),
}
"""By the type of what `HeterogeneousSource.given` returns."""
