"""Public data sets by name: finding their files, and building the graph from them.

`catalogue.py` lists the files, `download.py` fetches them, and a file per format reads them: `ogb.py`, `graphsaint.py`,
`planetoid.py`, `gnn_benchmark.py`. No public file is unpickled or executed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.pods.interface import MIRROR_VARIABLE
from gnnserve_api.spec.paths import DataPath
from gnnserve_api.spec.published import OgbSource, PublishedSource, PygSource
from gnnserve_worker.downloads.folder import fetched_digest
from gnnserve_worker.graph.sources import gnn_benchmark, graphsaint, planetoid
from gnnserve_worker.graph.sources.catalogue import CATALOGUE, OGB_EDGE, Dataset, GraphSaint, Ogb, Planetoid
from gnnserve_worker.graph.sources.checks import check_classes, check_node_count
from gnnserve_worker.graph.sources.files import digest_of, require_file
from gnnserve_worker.graph.sources.published_file import PublishedFile
from gnnserve_worker.graph.sources.raw import RawGraph
from gnnserve_worker.graph.store import GraphData, Splits, random_splits
from gnnserve_worker.progress import ProgressListener

READER_VERSION = 1
"""Increase it when the same files are read into another graph than before."""


@dataclass(frozen=True, slots=True)
class _LocalFiles:
    """Paths of a data set's files in the folder of a mirror."""

    files: dict[str, Path]
    """Paths by the catalogue's names. An extracted zip is a folder."""
    pinned: dict[str, Path]
    """Paths by the names that `sha256` may have: the same names, or the paths within an extracted zip."""


def identity(source: OgbSource | PygSource) -> str:
    """Identity of the content, without downloading it. Raises InputError when files of a folder are not the pinned
    ones.

    The address is not part of it: the same data set from another mirror is the same content.
    """
    source, dataset = _with_mirror(source), CATALOGUE[source.name]
    digests = dict(source.sha256)
    if (folder := _folder_of(source)) is not None:
        local = _local_files(source, dataset, folder)
        _check_pins(source, local.pinned)
        digests = {name: _pinned_digest(source, name, path) for name, path in local.pinned.items()}
    else:
        _check_pins(source, [file.name for file in dataset.files])
    parts = [source.name.value, f"reader {READER_VERSION}", source.direction.value]
    return "\n".join([*parts, *(f"{name} {digest}" for name, digest in sorted(digests.items()))])


def load(source: OgbSource | PygSource, digest: str, downloads: Path, progress: ProgressListener) -> GraphData:
    """Load a data set; its files are fetched into `downloads` unless the mirror is a folder.

    Raises ResourceError for failures of the network or the disk, InputError where a file is not the right one.
    """
    source, dataset = _with_mirror(source), CATALOGUE[source.name]
    if (folder := _folder_of(source)) is not None:
        files = _local_files(source, dataset, folder).files
        return _checked(source, digest, _read(source, dataset, files, progress))
    files = _fetched(source, dataset, downloads / source.name.value, progress)
    wanted = {path: source.sha256.get(name) or fetched_digest(path) for name, path in files.items()}
    raw = _read(source, dataset, files, progress)
    # Files are read without the lock: a service that pins other files of these names may have replaced them.
    for path, expected in wanted.items():
        if fetched_digest(path) != expected:
            raise ResourceError(
                f"{path}: another process put another file in its place while it was read; run again, and pin the same "
                "sha256 in all services of this repository"
            )
    return _checked(source, digest, raw)


def _read(
    source: OgbSource | PygSource, dataset: Dataset, files: dict[str, Path], progress: ProgressListener
) -> RawGraph:
    if isinstance(dataset, Ogb):
        from gnnserve_worker.graph.sources import ogb  # noqa: PLC0415  (pyarrow takes a fifth of a second)

        return ogb.read(files[dataset.files[0].name], dataset, source.direction, progress)
    if isinstance(dataset, GraphSaint):
        return graphsaint.read(files, source.direction, progress)
    if isinstance(dataset, Planetoid):
        return planetoid.read(files, dataset.prefix, source.direction)
    return gnn_benchmark.read(files[dataset.files[0].name], source.direction)


# --- where the files are


def _field_of(source: PublishedSource) -> str:
    return f"spec.graph.source.{'ogb' if isinstance(source, OgbSource) else 'pyg'}"


def _with_mirror(source: OgbSource | PygSource) -> OgbSource | PygSource:
    """The source with a mirror, if its manifest or the environment names one."""
    return source if source.mirror is not None else source.model_copy(update={"mirror": _mirror_of_all(source)})


def _mirror_of_all(source: OgbSource | PygSource) -> DataPath | None:
    """The mirror of data sets whose manifests name none."""
    written = os.environ.get(MIRROR_VARIABLE, "")
    if not written:
        return None
    is_address = DataPath(written).is_address
    return DataPath(f"{written.rstrip('/') if is_address else Path(written).absolute()}/{source.name.value}")


def _mirror_field(source: OgbSource | PygSource) -> str:
    is_of_all = source.mirror is not None and source.mirror == _mirror_of_all(source)
    return f"environment variable {MIRROR_VARIABLE}" if is_of_all else f"{_field_of(source)}.mirror"


def _folder_of(source: PublishedSource) -> Path | None:
    return None if source.mirror is None or source.mirror.is_address else source.mirror.path


def _fetched(
    source: OgbSource | PygSource, dataset: Dataset, folder: Path, progress: ProgressListener
) -> dict[str, Path]:
    from gnnserve_worker.downloads.file import fetch  # noqa: PLC0415  (httpx takes a fifth of a second)

    files = {}
    for file in dataset.files:
        url = file.url if source.mirror is None else f"{str(source.mirror).rstrip('/')}/{quote(file.name)}"
        wanted = PublishedFile(
            file.name, url, source.sha256.get(file.name), begins=file.begins, field=_field_of(source)
        )
        files[file.name] = fetch(wanted, folder, progress)
    return files


def _local_files(source: OgbSource | PygSource, dataset: Dataset, folder: Path) -> _LocalFiles:
    missing = [file.name for file in dataset.files if not _is_there(source, folder / file.name)]
    if not missing:
        files = {file.name: folder / file.name for file in dataset.files}
        return _LocalFiles(files, files)
    also = ""
    if isinstance(dataset, Ogb):
        for extracted in (folder / dataset.folder, folder):
            if _is_there(source, extracted / OGB_EDGE):
                pinned = {member: extracted / member for member in dataset.members}
                return _LocalFiles({dataset.files[0].name: extracted}, pinned)
        also = f", nor {OGB_EDGE}, extracted from it"
    raise InputError(
        _mirror_field(source),
        f"{folder} has no {missing[0]}{also}",
        f"the folder needs {', '.join(file.name for file in dataset.files)}",
    )


def _is_there(source: OgbSource | PygSource, path: Path) -> bool:
    """Whether the file exists. Raises InputError where the path is something other than a file."""
    try:
        require_file(_mirror_field(source), path)
    except (OSError, ValueError):
        return False
    return path.is_file()


# --- which files they have to be


def _check_pins(source: PublishedSource, names: Iterable[str]) -> None:
    known = list(names)
    if (unknown := next((name for name in source.sha256 if name not in known), None)) is not None:
        raise InputError(
            f"{_field_of(source)}.sha256", f"has {unknown}, which is not read", f"the files are {', '.join(known)}"
        )


def _pinned_digest(source: OgbSource | PygSource, name: str, path: Path) -> str:
    digest = digest_of(_mirror_field(source), path)
    if (expected := source.sha256.get(name, digest)) != digest:
        raise InputError(
            f"{_field_of(source)}.sha256[{name}]",
            f"{path} has SHA-256 {digest}, expected {expected}",
            "restore the file, or change sha256 to serve this one",
        )
    return digest


# --- from the published data to a graph


def _checked(source: OgbSource | PygSource, digest: str, raw: RawGraph) -> GraphData:
    kind = "ogb" if isinstance(source, OgbSource) else "pyg"
    where = f"{kind} {source.name.value}" + ("" if source.mirror is None else f" from {source.mirror}")
    check_node_count(where, raw.graph.nodes)
    if raw.labels.ndim == 2:
        labels, classes = raw.labels, tuple(range(raw.labels.shape[1]))
        known = np.ones(len(labels), dtype=bool)
    else:
        known = raw.labels >= 0
        distinct, indices = np.unique(raw.labels[known], return_inverse=True)
        check_classes(f"{where}: classes", len(distinct), len(indices), len(known))
        labels = np.full(len(known), -1, dtype=np.int64)
        labels[known] = indices
        classes = tuple(int(label) for label in distinct)
    splits = random_splits(known) if raw.splits is None else _splits(where, raw.splits, known)
    rules = EdgeRules(source.direction, self_loops=raw.self_loops)
    return GraphData.of_one_type(
        where, digest, raw.graph, raw.features, labels, classes, splits, rules, findings=raw.findings
    )


def _splits(where: str, given: tuple[np.ndarray, np.ndarray, np.ndarray], known: np.ndarray) -> Splits:
    names = ("training", "validation", "test")
    times = np.zeros(len(known), dtype=np.int64)
    found = []
    for name, ids in zip(names, given, strict=True):
        outside = np.flatnonzero((ids < 0) | (ids >= len(known)))
        if len(outside):
            problem = f"have {ids[outside[0]]}, expected 0 to {len(known) - 1}"
            raise InputError(f"{where}: {name} nodes", problem, "set mirror to where the published files are")
        nodes = np.unique(ids)
        times[nodes] += 1
        # Nodes without a label can be served, but not used for training or evaluation.
        found.append(nodes[known[nodes]].astype(np.int64))
    if (twice := np.flatnonzero(times > 1)).size:
        problem = f"share {len(twice)} nodes, the first is {twice[0]}"
        raise InputError(
            f"{where}: training, validation and test nodes", problem, "set mirror to where the published files are"
        )
    for name, nodes in zip(names[:2], found[:2], strict=True):
        if len(nodes) == 0:
            raise InputError(
                f"{where}: {name} nodes", "none has a class", "set mirror to where the published files are"
            )
    return Splits(*found)
