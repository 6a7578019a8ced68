"""What a request brings, from ids, numbers and pairs to the arrays that `OverlaySupport.arrange` takes.

What both forms of requests share is here, and `read_overlay` for JSON, with ids as clients write them and features by
name; arrays are read in `codecs/binary_overlay.py`. Nothing of the graph is read but its ids, and every mistake is
found before anything is computed. A message names the place in the request, the value and the remedy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import NodeFeatures, RequestOverlay
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.inference.served import OverlaySupport, ServedRevision
from gnnserve_worker.serving.http.question import (
    ErrorCode,
    RequestError,
    cut,
    shown_value,
    unknown_node,
)

MOST_FEATURE_BYTES = 16 * 1024 * 1024
"""Features of one request's new nodes and overrides, as float32."""
NUMBER_BYTES = 4
_SHOWN_COLUMNS = 4
_FEW_IDS = 256
_MOST_ID = 2**63 - 1
BRING_IT = "a new node goes into overlay.nodes, with its features"
"""What else may be meant by an id that the graph lacks."""
RANGE_REMEDY = f"give a number from {np.finfo(np.float32).min:.7g} to {np.finfo(np.float32).max:.7g}"


class Brought(msgspec.Struct, frozen=True):
    """What a request brings, checked. Nodes are called by position, and N + k is the k-th new node."""

    seeds: np.ndarray
    """int64 [nodes asked for]"""
    features: np.ndarray
    """float32 [new nodes and overrides, features], in this order, C-contiguous."""
    overridden: np.ndarray
    """Stored nodes, distinct: int64 [overrides]."""
    edges: np.ndarray
    """int64 [edges, 2]: source and target."""


def support_of(revision: ServedRevision, limits: OverlayLimits) -> OverlaySupport:
    """Raises RequestError where the service takes no overlays."""
    if not limits.max_nodes:
        raise RequestError(
            ErrorCode.NO_OVERLAYS,
            "overlay",
            "the service takes none",
            "leave it out, or set spec.endpoint.overlay.maxNodes above 0",
        )
    if revision.overlays is None:
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {revision.no_overlays}", "leave it out"
        )
    return revision.overlays


def check_sizes(new_nodes: int, overrides: int, edges: int, features: int, limits: OverlayLimits) -> None:
    nodes = new_nodes + overrides
    where = "overlay.nodes" if new_nodes else "overlay.overrides"
    if nodes > limits.max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_NODES,
            where,
            f"{_counted(new_nodes, 'new node')} and {_counted(overrides, 'override')}, more than the "
            f"{limits.max_nodes:,} that one request may have",
            "split the request, or raise spec.endpoint.overlay.maxNodes",
        )
    if edges > limits.max_edges:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_EDGES,
            "overlay.edges",
            f"{_counted(edges, 'edge')}, more than the {limits.max_edges:,} that one request may have",
            f"{'split the request' if limits.max_edges else 'leave them out'}, or raise spec.endpoint.overlay.maxEdges",
        )
    size = nodes * features * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise RequestError(
            ErrorCode.OVERLAY_TOO_LARGE,
            where,
            f"{nodes:,} nodes with {features:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one request may have",
            "split the request",
        )


def read_overlay(
    nodes: Sequence[Any],
    overlay: RequestOverlay[Any],
    revision: ServedRevision,
    support: OverlaySupport,
    limits: OverlayLimits,
) -> Brought:
    """`nodes`: the ids that are asked for, at least one. All ids are of the graph's kind."""
    new, overrides, columns = overlay.nodes, overlay.overrides, support.columns
    check_sizes(len(new), len(overrides), len(overlay.edges), columns.features, limits)
    asked = len(nodes)
    # All ids are found in one call, which lays their texts out once.
    wanted: list[Any] = [*nodes, *chain.from_iterable(overlay.edges)]
    ends = len(wanted)
    if overrides:
        wanted += [override.id for override in overrides]
    named = len(wanted)
    places = {node.id: revision.nodes + k for k, node in enumerate(new)}
    if len(places) < len(new):
        raise repeated([node.id for node in new], "overlay.nodes")
    if new:
        _check_ids(list(places), are_texts=revision.has_text_ids)
    wanted += places
    found = _find(wanted, revision)
    if new:
        _check_unseen(found[named:], new)
        for i in [i for i, place in enumerate(found[:ends]) if place < 0]:
            found[i] = places.get(wanted[i], -1)
    del found[named:]
    if -1 in found:
        first = found.index(-1)
        where, shown = place_of(first, asked, ends), shown_value(wanted[first])
        raise new_node(where, shown) if wanted[first] in places else unknown_node(where, shown, revision, BRING_IT)
    if len(overrides) > 1 and len(set(found[ends:])) < len(overrides):
        raise repeated([override.id for override in overrides], "overlay.overrides")
    positions = np.array(found, np.int64)
    features = np.empty((len(new) + len(overrides), columns.features), np.float32)
    if new:
        _write_features(new, "overlay.nodes", columns, features)
    if overrides:
        _keep_features(overrides, positions[ends:], support, features[len(new) :])
        _write_features(overrides, "overlay.overrides", columns, features[len(new) :], are_kept=True)
    return Brought(positions[:asked], features, positions[ends:], positions[asked:ends].reshape(-1, 2))


def _check_ids(ids: list[Any], *, are_texts: bool) -> None:
    """Refuse ids of new nodes that no node of a source may have."""
    if are_texts:
        if "" in ids:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"overlay.nodes[{ids.index('')}].id",
                "it is empty, and no id is the empty text",
                "give the node an id of one character or more",
            )
    elif max(ids) > _MOST_ID or min(ids) < -_MOST_ID - 1:
        first = next(i for i, id_ in enumerate(ids) if not -_MOST_ID - 1 <= id_ <= _MOST_ID)
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"overlay.nodes[{first}].id",
            f"{shown_value(ids[first])} is beyond 64 bits with a sign, as no id is",
            f"give an integer from {-_MOST_ID - 1} to {_MOST_ID}",
        )


def _find(wanted: list[Any], revision: ServedRevision) -> list[int]:
    """Positions of stored nodes; -1 for others."""
    if revision.has_text_ids:
        assert revision.ids is not None  # noqa: S101
        return _listed(revision.ids.find_texts(wanted))
    stored = revision.nodes
    if revision.ids is None and len(wanted) <= _FEW_IDS:  # a list is several times as quick as an array
        return [id_ if 0 <= id_ < stored else -1 for id_ in wanted]
    try:
        numbers = np.array(wanted, np.int64)
    except OverflowError:  # an integer beyond 64 bits is no stored node's
        possible = [id_ for id_ in wanted if -(2**63) <= id_ < 2**63]
        places = dict(zip(possible, _find(possible, revision), strict=True))
        return [places.get(id_, -1) for id_ in wanted]
    if revision.ids is None:
        return _listed(np.where((numbers >= 0) & (numbers < stored), numbers, -1))
    return _listed(revision.ids.find_integers(numbers))


def _listed(positions: np.ndarray) -> list[int]:
    listed: list[int] = positions.tolist()
    return listed


def place_of(index: int, asked: int, ends: int) -> str:
    """Where the id stands that is `index` in the order of nodes asked for, ends of edges, overrides."""
    if index < asked:
        return f"nodes[{index}]"
    if index < ends:
        edge, end = divmod(index - asked, 2)
        return f"overlay.edges[{edge}][{end}]"
    return f"overlay.overrides[{index - ends}].id"


def _check_unseen(found: list[int], new: Sequence[NodeFeatures[Any]]) -> None:
    """`found`: positions of the new nodes' ids, -1 where no stored node has them."""
    if max(found) >= 0:
        first = next(i for i, place in enumerate(found) if place >= 0)
        raise RequestError(
            ErrorCode.STORED_NODE,
            f"overlay.nodes[{first}].id",
            f"{shown_value(new[first].id)} is a node of the graph",
            "give a new node an id of its own; new features of a stored one go into overlay.overrides",
        )


def repeated(ids: Sequence[Any], field: str) -> RequestError:
    firsts: dict[Any, int] = {}
    again = next(i for i, id_ in enumerate(ids) if firsts.setdefault(id_, i) != i)
    return RequestError(
        ErrorCode.REPEATED_NODE,
        f"{field}[{again}].id",
        f"{shown_value(ids[again])} is also the id of {field}[{firsts[ids[again]]}]",
        "give each node once",
    )


def new_node(where: str, shown: str) -> RequestError:
    """An override of a new node."""
    return RequestError(
        ErrorCode.INVALID_VALUE, where, f"{shown} is a new node of the request", "give its features in overlay.nodes"
    )


# Features


def _keep_features(
    overrides: Sequence[NodeFeatures[Any]], positions: np.ndarray, support: OverlaySupport, rows: np.ndarray
) -> None:
    """Write the stored features of nodes of which some columns are not given. `rows`: float32 [overrides, features]."""
    columns = support.columns
    most = len(columns.columns) or columns.features
    partly = [
        i for i, node in enumerate(overrides) if isinstance(node.features, dict) and len(node.features) < most
    ]  # fmt: skip
    if not partly:
        return
    if support.features_of is not None:
        rows[partly] = support.features_of(positions[partly])
        return
    given = overrides[partly[0]].features
    names = (column.name for column in columns.columns) if columns.columns else map(str, range(columns.features))
    raise RequestError(
        ErrorCode.MISSING_COLUMN,
        f"overlay.overrides[{partly[0]}].features.{cut(next(name for name in names if name not in given))}",
        "it is missing, and this revision does not keep what the node has: it stores no table of all features in "
        "float32, or rows were divided by their norms",
        "give every column",
    )


def _write_features(
    given: Sequence[NodeFeatures[Any]],
    field: str,
    columns: FeatureColumns,
    rows: np.ndarray,
    *,
    are_kept: bool = False,
) -> None:
    """Write one row for each node; `rows`: float32 [at least as many, features], C-contiguous. `are_kept`: they hold
    what columns that are not given stay at; otherwise those get what missing values get."""
    for i, node in enumerate(given):
        values = node.features
        if isinstance(values, dict):
            _write_named(values, f"{field}[{i}].features", columns, rows[i], are_kept=are_kept)
            continue
        if len(values) != columns.features:
            raise _wrong_length(f"{field}[{i}].features", len(values), columns)
        try:
            columns.row.pack_into(rows[i].data, 0, *values)
        except OverflowError:
            raise _out_of_range(f"{field}[{i}].features", enumerate(values)) from None


def _write_named(
    values: Mapping[str, float | list[float]], where: str, columns: FeatureColumns, row: np.ndarray, *, are_kept: bool
) -> None:
    if columns.in_order is not None and len(values) == len(columns.columns):
        try:
            columns.row.pack_into(row.data, 0, *columns.in_order(values))
        except (KeyError, OverflowError, struct.error):
            pass  # what is wrong is told below
        else:
            return
    if are_kept or not columns.required or columns.required <= values.keys():
        try:  # a loop over columns in Python takes ten times as long
            single = np.fromiter(map(columns.single.__getitem__, values), np.intp, len(values))
            packed = struct.pack(f"={len(values)}f", *values.values())
        except (KeyError, OverflowError, struct.error):
            pass  # some are lists, or wrong
        else:
            if not are_kept:
                row[:] = columns.filled
            row[single] = np.frombuffer(packed, np.float32)
            return
    places: list[int] = []
    numbers: list[float] = []
    for name, value in values.items():
        start, width = columns.place(name) or (0, 0)
        if isinstance(value, list):
            if len(value) != width or not width:
                raise _wrong_column(where, name, value, width, columns)
            places += range(start, start + width)
            numbers += value
        elif width != 1:
            raise _wrong_column(where, name, value, width, columns)
        else:
            places.append(start)
            numbers.append(value)
    if not are_kept:
        _check_required(values, where, columns)
        row[:] = columns.filled
    try:
        row[places] = np.frombuffer(struct.pack(f"={len(numbers)}f", *numbers), np.float32)
    except OverflowError:
        raise _out_of_range(where, values.items()) from None


def _check_required(values: Mapping[str, object], where: str, columns: FeatureColumns) -> None:
    if not columns.required or len(values) == len(columns.columns):
        return
    for column in columns.columns:
        if column.fill is None and column.name not in values:
            raise RequestError(
                ErrorCode.MISSING_COLUMN,
                f"{where}.{cut(column.name)}",
                "it is missing, and missing values are refused, as in the graph's source",
                f"give {_described(column.width)}",
            )


def _described(width: int) -> str:
    return "a number" if width == 1 else f"a list of {width:,} numbers"


def _counted(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s"


def _wrong_length(where: str, numbers: int, columns: FeatureColumns) -> RequestError:
    return RequestError(
        ErrorCode.WRONG_FEATURES,
        where,
        f"{_counted(numbers, 'number')}, where the graph has {columns.features:,} features",
        f"give {columns.features:,} numbers, or an object with the names of columns",
    )


def _wrong_column(
    where: str, name: str, value: float | list[float], width: int, columns: FeatureColumns
) -> RequestError:
    where = f"{where}.{cut(name)}"
    if not width:
        known = [column.name for column in columns.columns[:_SHOWN_COLUMNS]]
        more = ", …" if len(columns.columns) > len(known) else ""
        remedy = f"its columns are {cut(', '.join(known))}{more}"
        if not known:
            remedy = f"it does not name them, so they are called by their numbers, 0 to {columns.features - 1}"
        return RequestError(ErrorCode.UNKNOWN_COLUMN, where, "the graph's source has no such column", remedy)
    found = _counted(len(value), "number") if isinstance(value, list) else shown_value(value)
    return RequestError(
        ErrorCode.WRONG_FEATURES, where, f"expected {_described(width)}, got {found}", f"give {_described(width)}"
    )


def _out_of_range(where: str, given: Iterable[tuple[int | str, float | list[float]]]) -> RequestError:
    """Names the first number that float32 cannot hold. `given`: by the name of its column, or by its index."""
    for name, value in given:
        place = f"{where}[{name}]" if isinstance(name, int) else f"{where}.{cut(name)}"
        for index, number in enumerate(value if isinstance(value, list) else [value]):
            try:
                struct.pack("=f", number)
            except OverflowError:
                place = f"{place}[{index}]" if isinstance(value, list) else place
                return RequestError(
                    ErrorCode.INVALID_VALUE,
                    place,
                    f"{shown_value(number)} is beyond the range of float32",
                    RANGE_REMEDY,
                )
    raise AssertionError("float32 holds every number")
