"""Writes embeddings as a file that others read, with a manifest that says what they are and checksums.

Blocks go to the file as they are computed. A file gets its name when it is complete, the manifest last: where it is,
all of them are.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import (
    EMBEDDINGS_SCHEMA_VERSION,
    EmbeddingsFormat,
    EmbeddingsManifest,
    Neighbours,
    WrittenFile,
)
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.generation.embeddings.compute import check_embeddings, columns_of_embeddings, embedding_blocks
from gnnserve_worker.generation.embeddings.nodes import EmbeddedNodes
from gnnserve_worker.generation.embeddings.sink import Ids
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.progress import Progress, ProgressListener

_GROUP_ROWS = 65_536
"""Rows of a row group of Parquet, at most."""


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """Embeddings that are to be written."""

    variant: str
    of: EmbeddedNodes
    """The nodes that may be written."""
    places: np.ndarray | None
    """Places of the nodes that are written, int64; None: all, in order."""
    neighbours: Neighbours
    seed: int


class _Sink(Protocol):
    def write(self, ids: Ids, block: np.ndarray) -> None: ...  # pragma: no cover

    def close(self) -> None: ...  # pragma: no cover


def files_of(out: Path) -> tuple[EmbeddingsFormat, tuple[Path, ...]]:
    """The format that the end of the name stands for, and every file that would be written, the manifest last.
    Raises InputError."""
    try:
        chosen = EmbeddingsFormat(out.suffix.removeprefix("."))
    except ValueError:
        ends = " or ".join(f".{each}" for each in EmbeddingsFormat)
        raise InputError("--out", f"{str(out)!r} has the end of no format", f"end it in {ends}") from None
    ids = (out.with_suffix(".ids.jsonl"),) if chosen is EmbeddingsFormat.NPY else ()
    return chosen, (out, *ids, out.with_suffix(".json"))


def export_embeddings(
    revision: LoadedRevision,
    service: str,
    wanted: EmbeddingsRequest,
    out: Path,
    written_by: str,
    on_progress: ProgressListener,
) -> EmbeddingsManifest:
    """Write the embeddings of a revision to `out`. Over all neighbours, it must have been loaded with `build_exact`.
    `service`: namespace and name."""
    if revision.manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    columns = columns_of_embeddings(revision.manifest, check_embeddings(revision.manifest, wanted.variant))
    chosen, paths = files_of(out)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        made_of = revision.origin.made_of
        offset = None if made_of is None else made_of.offset
        count = wanted.of.count if wanted.places is None else len(wanted.places)
        made = tuple(unfinished / path.name for path in paths)
        rows = _Rows(count, columns, wanted.of, revision.manifest.revision, offset)
        _write(_SINKS[chosen](made, rows), revision, wanted, rows, unfinished, on_progress)
        manifest = EmbeddingsManifest(
            schema_version=EMBEDDINGS_SCHEMA_VERSION,
            written_by=written_by,
            service=service,
            revision=revision.manifest.revision,
            graph=revision.manifest.graph,
            offset=offset,
            variant=wanted.variant,
            neighbours=wanted.neighbours,
            seed=wanted.seed if wanted.neighbours is Neighbours.SAMPLED else None,
            nodes=count,
            columns=columns,
            node_ids=wanted.of.id_kind,
            format=chosen,
            files={path.name: _entry(path) for path in made[:-1]},
            type=wanted.of.type or UNSET,
        )
        made[-1].write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        for path, final in zip(made, paths, strict=True):
            path.rename(final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return manifest


@dataclass(frozen=True, slots=True)
class _Rows:
    """Common part of the kinds of rows."""

    count: int
    columns: int
    of: EmbeddedNodes
    revision: str
    offset: int | None

    def shown(self, places: np.ndarray | None, start: int, end: int) -> Ids:
        """Ids of rows start to end - 1."""
        if places is None:
            return self.of.shown(start, end)
        return [self.of.shown(place, place + 1)[0] for place in places[start:end].tolist()]  # type: ignore[return-value]


def _write(
    sink: _Sink,
    revision: LoadedRevision,
    wanted: EmbeddingsRequest,
    rows: _Rows,
    scratch: Path,
    on_progress: ProgressListener,
) -> None:
    done = 0
    stage = f"embeddings of {wanted.variant}"
    try:
        on_progress(Progress(stage, 0, rows.count))
        nodes = _nodes_of(wanted, revision.answered_nodes)
        blocks = embedding_blocks(revision, wanted.variant, nodes, wanted.neighbours, wanted.seed, scratch)
        for group in _grouped(blocks):
            sink.write(rows.shown(wanted.places, done, done + len(group)), group)
            done += len(group)
            on_progress(Progress(stage, done, rows.count))
    finally:
        sink.close()


def _nodes_of(wanted: EmbeddingsRequest, answered_nodes: int) -> np.ndarray | None:
    """As `embedding_blocks` takes them. All that the service answers about are not listed: that would be gigabytes."""
    of = wanted.of
    if wanted.places is not None:
        return wanted.places + of.first
    if (of.first, of.count) == (0, answered_nodes):
        return None
    return np.arange(of.first, of.first + of.count, dtype=np.int64)


def _grouped(blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Join small blocks, so that a file has few row groups."""
    held: list[np.ndarray] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= _GROUP_ROWS:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


class _Parquet:
    def __init__(self, paths: Sequence[Path], rows: _Rows) -> None:
        is_text = rows.of.id_kind is NodeIdKind.STRINGS
        self._rows = rows
        self._id_type = pa.string() if is_text else pa.int64()
        self._schema = pa.schema(
            [
                pa.field("id", self._id_type, nullable=False),
                pa.field("embedding", pa.list_(pa.float32(), rows.columns), nullable=False),
                pa.field("revision", pa.string(), nullable=False),
                pa.field("offset", pa.int64()),
            ]
        )
        dictionaries = ["revision", "offset"]
        self._writer = pq.ParquetWriter(paths[0], self._schema, use_dictionary=dictionaries)

    def write(self, ids: Ids, block: np.ndarray) -> None:
        count = len(block)
        columns = [
            pa.array(ids, self._id_type),
            pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).ravel()), self._rows.columns),
            pa.repeat(pa.scalar(self._rows.revision, pa.string()), count),
            pa.repeat(pa.scalar(self._rows.offset, pa.int64()), count),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=_GROUP_ROWS)

    def close(self) -> None:
        self._writer.close()


class _Npy:
    def __init__(self, paths: Sequence[Path], rows: _Rows) -> None:
        self._values, self._ids = paths[0].open("xb"), paths[1].open("xb")
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows.count, rows.columns)}
        np.lib.format.write_array_header_1_0(self._values, header)

    def write(self, ids: Ids, block: np.ndarray) -> None:
        self._values.write(np.ascontiguousarray(block, "<f4").data)
        self._ids.write(b"".join(msgspec.json.encode(each) + b"\n" for each in ids))

    def close(self) -> None:
        self._values.close()
        self._ids.close()


_SINKS: dict[EmbeddingsFormat, Callable[[Sequence[Path], _Rows], _Sink]] = {
    EmbeddingsFormat.PARQUET: _Parquet,
    EmbeddingsFormat.NPY: _Npy,
}


def _entry(path: Path) -> WrittenFile:
    with path.open("rb") as file:
        return WrittenFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
