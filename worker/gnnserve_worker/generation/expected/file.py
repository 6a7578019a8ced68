"""Reading a file of expected scores, checked against the graph that they are of."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.generation.expected.listed import ListedScores
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.checked_arrays import reading

_NODES, _SCORES = "nodes", "scores"
_HOW = "write it with numpy.savez(PATH, nodes=…, scores=…), as docs/models.md shows"


@dataclass(frozen=True, slots=True)
class ExpectedNodes:
    """Nodes of a graph that scores are known of."""

    nodes: int
    """All nodes that may have scores."""
    ids: NodeIds | None
    """What the source calls them; None: by their positions from 0."""
    columns: int
    column_of: str = "class"
    """What a column of scores is of."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenScores:
    """Scores as a file has them."""

    positions: np.ndarray
    """int64 [rows]: nodes, each once."""
    shown: Sequence[int | str]
    """What the file calls them."""
    scores: np.ndarray
    """float64 [rows, columns]."""


def read_scores(listed: ListedScores, of: ExpectedNodes) -> GivenScores:
    """InputError names what does not fit the graph."""
    field, path = f"{listed.field}.uri", listed.expected.uri.path
    nodes, scores = _arrays(field, path)
    if scores.ndim != 2 or scores.dtype.kind not in "fiu" or scores.shape[1] != of.columns:
        found, wanted = f"{scores.dtype} {list(scores.shape)}", f"a column for each {of.column_of}"
        raise InputError(
            field, f"{path}: {_SCORES} are {found}, expected floats [nodes, {of.columns}], {wanted}",
            f"write {wanted}, ascending",
        )  # fmt: skip
    if nodes.ndim != 1 or len(nodes) != len(scores) or not len(nodes):
        raise InputError(
            field, f"{path}: {_NODES} are {list(nodes.shape)}, and {_SCORES} {list(scores.shape)}",
            "write one node for each row of scores, and at least one",
        )  # fmt: skip
    scores = scores.astype(np.float64)
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores).all(axis=1))[0])
        raise InputError(field, f"{path}: {_SCORES}[{row}] has values that are not finite", "leave the node out")
    positions = find_nodes(field, path, _NODES, nodes, of)
    if len(np.unique(positions)) < len(positions):
        _, first, counts = np.unique(positions, return_index=True, return_counts=True)
        twice = nodes[first[counts > 1][0]]
        raise InputError(field, f"{path}: {_NODES} has {twice!s} more than once", "write each node once")
    return GivenScores(positions, nodes.tolist(), scores)


def _arrays(field: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.suffix in {".parquet", ".pq"}:
        return _of_parquet(field, path)
    if path.suffix != ".npz":
        raise InputError(field, f"{path} is no .npz and no .parquet file by its name", _HOW)
    with reading(field, path, ".npz", _HOW), archive.opened(path) as arrays:
        missing = [name for name in (_NODES, _SCORES) if name not in arrays.names]
        if missing:
            there = ", ".join(arrays.names) or "nothing"
            raise InputError(field, f"{path}: has no array {missing[0]}; it has {there}", _HOW)
        return arrays.read(_NODES), arrays.read(_SCORES)


def _of_parquet(field: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow as pa  # noqa: PLC0415  (takes a tenth of a second)
    import pyarrow.parquet as pq  # noqa: PLC0415

    how = f"write the columns {_NODES} and {_SCORES}, the latter lists of one number for each class"
    with reading(field, path, "Parquet", how):
        table = pq.read_table(io.BytesIO(path.read_bytes()))
    missing = [name for name in (_NODES, _SCORES) if name not in table.column_names]
    if missing:
        raise InputError(field, f"{path}: has no column {missing[0]}; it has {', '.join(table.column_names)}", how)
    if table[_NODES].null_count:
        row = table[_NODES].is_null().to_pylist().index(True)
        raise InputError(field, f"{path}: {_NODES}: row {row} is empty", "write the node of each row of scores")
    kind = table[_SCORES].type
    are_lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not are_lists or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise InputError(field, f"{path}: {_SCORES} are {kind}, expected lists of numbers", how)
    rows = table[_SCORES].to_pylist()
    widths = {len(row) if isinstance(row, list) else 0 for row in rows}
    if len(widths) > 1 or 0 in widths:
        raise InputError(field, f"{path}: {_SCORES} are not lists of the same length", how)
    return np.array(table[_NODES].to_pylist()), np.array(rows, dtype=np.float64)


def find_nodes(field: str, path: Path, name: str, nodes: np.ndarray, of: ExpectedNodes) -> np.ndarray:
    """Positions of nodes, int64, as the array of that name calls them. InputError: one is none of the graph's."""
    kind = NodeIdKind.POSITIONS if of.ids is None else of.ids.kind
    wanted = {
        NodeIdKind.POSITIONS: "positions of nodes from 0",
        NodeIdKind.INTEGERS: "integers, as the source's ids are",
        NodeIdKind.STRINGS: "texts, as the source's ids are",
    }[kind]
    is_text = kind is NodeIdKind.STRINGS
    if nodes.dtype.kind not in ("U" if is_text else "iu"):
        raise InputError(field, f"{path}: {name} are {nodes.dtype}, expected {wanted}", f"write {wanted}")
    if of.ids is None:
        positions = nodes.astype(np.int64)
        is_there = (positions >= 0) & (positions < of.nodes)
    elif is_text:
        positions = of.ids.find_texts(nodes.tolist())
        is_there = positions >= 0
    else:
        positions = of.ids.find_integers(nodes.astype(np.int64))
        is_there = positions >= 0
    if not is_there.all():
        unknown = nodes[~is_there]
        raise InputError(
            field, f"{path}: {name} has {unknown[0]!s}, which is no node of the graph ({len(unknown):,} such)",
            f"write {wanted}",
        )  # fmt: skip
    return positions
