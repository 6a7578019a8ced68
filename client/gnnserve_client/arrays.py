"""Node ids, edges, features and labels, from what users have to arrays that are sent.

Users have numpy arrays, lists, and columns of tables. Nothing is converted by guessing: a number is never taken for the
text of its digits, nor a float for an id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnnserve_api.errors import InputError

Ids = NDArray[Any]
"""Node ids: int64, or texts."""
NamedFeatures = Mapping[str, float | Sequence[float]]
"""Features of a node by the names of columns."""
Features = ArrayLike | Sequence[NamedFeatures]
"""Features of nodes, a row or a mapping for each."""
FeatureRows = NDArray[np.float32] | list[NamedFeatures]
_PLAIN = frozenset({str, int, float, bool, type(None)})
_FORM = "give integers, or texts, of one kind"


def read_ids(given: ArrayLike, where: str) -> Ids:
    """One axis. Raises InputError."""
    return _read_ids(given, where, ())


def read_edges(given: ArrayLike | None, where: str) -> Ids:
    """[edges, 2]: source and target. Raises InputError."""
    if given is None:
        return np.zeros((0, 2), np.int64)
    return _read_ids(given, where, (2,))


def read_some_ids(given: ArrayLike | None, where: str) -> Ids:
    return np.zeros(0, np.int64) if given is None else read_ids(given, where)


def are_texts(*ids: Ids) -> bool:
    """Whether the ids are texts. Raises InputError where some are texts and others are not."""
    kinds = {one.dtype.kind == "i" for one in ids if one.size}
    if len(kinds) == 2:
        raise InputError("ids", "some are integers and others are texts", _FORM)
    return kinds == {False}


def read_features(given: Features | None, rows: int, where: str) -> FeatureRows:
    """Float32 [rows, features], or a mapping for each row. Raises InputError."""
    if given is None:
        if rows:
            raise InputError(where, f"they are missing, and there are {_counted(rows, 'node')}", "give a row for each")
        return np.zeros((0, 0), np.float32)
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        found: FeatureRows = [_plain(one, f"{where}[{i}]") for i, one in enumerate(given)]
    else:
        try:
            array = np.asarray(given)
            if array.dtype.kind not in "iuf":
                raise ValueError(f"{array.dtype} are no numbers")  # noqa: TRY301
            found = np.ascontiguousarray(array, np.float32)
        except (ValueError, TypeError) as error:
            raise InputError(
                where, f"they are no matrix: {error}", "give an array [nodes, features], or a mapping for each node"
            ) from None
        if found.ndim != 2:
            raise InputError(where, f"an array of {_counted(found.ndim, 'axis', 'axes')}", "give [nodes, features]")
    if len(found) != rows:
        raise InputError(where, f"{_counted(len(found), 'row')} for {_counted(rows, 'node')}", "give one for each")
    return found


def read_edge_features(given: ArrayLike | None, edges: int, where: str) -> NDArray[np.float32]:
    """Float32 [edges, features]; [0, 0]: they have none. Raises InputError."""
    if given is None:
        return np.zeros((0, 0), np.float32)
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "iuf" and array.size:
            raise ValueError(f"{array.dtype} are no numbers")  # noqa: TRY301
        found = np.ascontiguousarray(array, np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(where, f"they are no matrix: {error}", "give an array [edges, features]") from None
    if found.ndim != 2:
        raise InputError(where, f"an array of {_counted(found.ndim, 'axis', 'axes')}", "give [edges, features]")
    if len(found) != edges:
        raise InputError(where, f"{_counted(len(found), 'row')} for {_counted(edges, 'edge')}", "give one for each")
    if not np.isfinite(found).all():
        raise InputError(where, "some numbers are not finite, or beyond float32", "give numbers")
    return found


def read_edge_times(given: ArrayLike | None, edges: int, where: str) -> NDArray[np.int64]:
    """Int64 [edges], of dates and times the microseconds since 1970 UTC; [0]: edges have none. Raises InputError."""
    if given is None:
        return np.zeros(0, np.int64)
    array, remedy = np.asarray(given), "give an integer, or a time of numpy's datetime64, for each edge"
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise InputError(where, "some are missing (NaT)", remedy)
        whole = array.astype("datetime64[us]")
        # numpy wraps what does not fit; units below a microsecond lose their fraction, and always do.
        if np.can_cast(array.dtype, whole.dtype, "safe") and (whole.astype(array.dtype) != array).any():
            raise InputError(where, "some are beyond what microseconds in 64 bits reach", remedy)
        array = whole.astype(np.int64)
    if array.size and (array.dtype.kind not in "iu" or array.max() > np.iinfo(np.int64).max):
        raise InputError(where, f"{array.dtype} are no integers of 64 bits", remedy)
    if array.shape != (edges,):
        raise InputError(where, f"an array of shape {array.shape} for {_counted(edges, 'edge')}", remedy)
    return np.ascontiguousarray(array, np.int64)


def read_overrides(
    overrides: ArrayLike | Mapping[Any, NamedFeatures] | None, features: Features | None, where: str
) -> tuple[Ids, FeatureRows]:
    """Stored nodes and their new features, which stand apart or together. Raises InputError."""
    if isinstance(overrides, Mapping):
        if features is not None:
            raise InputError("override_features", f"{where} has them already", "leave one of them out")
        features = list(overrides.values())
        overrides = list(overrides)
    ids = read_some_ids(overrides, where)
    return ids, read_features(features, len(ids), "override_features")


def pack_features(*parts: FeatureRows) -> tuple[int, bytes]:
    """Matrices of features as bytes, one below the other, and how wide they are. Raises InputError."""
    rows = [part for part in parts if isinstance(part, np.ndarray) and len(part)]
    widths = {part.shape[1] for part in rows}
    if len(widths) > 1:
        raise InputError("override_features", f"rows of {sorted(widths)} features", "give all features in each row")
    return max(widths, default=0), b"".join(np.ascontiguousarray(part, "<f4").tobytes() for part in rows)


def read_labels(given: ArrayLike | Sequence[Any] | None, rows: int, where: str) -> list[Any]:
    """Labels as JSON has them: integers, texts, lists of these, or None. Raises InputError."""
    labels = [_plain_label(label, f"{where}[{i}]") for i, label in enumerate(() if given is None else _listed(given))]
    if len(labels) != rows:
        raise InputError(where, f"{_counted(len(labels), 'label')} for {_counted(rows, 'node')}", "give one for each")
    return labels


def are_pairs(given: ArrayLike) -> bool:
    """Whether ids are two in each row."""
    listed = _listed(given)
    return bool(listed) and not isinstance(listed[0], str) and hasattr(listed[0], "__len__")


def read_flags(given: ArrayLike | Sequence[Any], rows: int, where: str) -> list[bool]:
    """Whether each pair is a link. Raises InputError."""
    flags = [one.item() if isinstance(one, np.generic) else one for one in _listed(given)]
    for i, flag in enumerate(flags):
        if not isinstance(flag, bool):
            raise InputError(f"{where}[{i}]", f"{flag!r} is no label of a pair", "give True where it came to be a link")
    if len(flags) != rows:
        raise InputError(where, f"{_counted(len(flags), 'label')} for {_counted(rows, 'pair')}", "give one for each")
    return flags


def as_rows(features: FeatureRows, where: str) -> list[Any]:
    """Features as JSON has them. Raises InputError for numbers that JSON does not have."""
    if isinstance(features, list):
        return [dict(one) for one in features]
    if not np.isfinite(features).all():
        raise InputError(where, "some numbers are not finite, and JSON has no others", "name the columns, in mappings")
    rows: list[Any] = features.tolist()
    return rows


def as_json(given: Any, where: str) -> Any:
    """Mappings and lists that are sent as they are, with arrays and numbers of numpy in them as JSON has these. Raises
    InputError for what JSON does not have."""
    if hasattr(given, "tolist"):
        given = given.tolist()
    if given is None or isinstance(given, str | int | float):
        return given
    if isinstance(given, list | tuple):
        return [one if type(one) in _PLAIN else as_json(one, f"{where}[{place}]") for place, one in enumerate(given)]
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return {str(name): as_json(one, f"{where}.{name}") for name, one in given.items()}
    raise InputError(
        where, f"{type(given).__name__} has no form in JSON", "give mappings by texts, lists, arrays, numbers and texts"
    )


def _read_ids(given: ArrayLike, where: str, inner: tuple[int, ...]) -> Ids:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InputError(where, f"they are no array: {error}", _FORM) from None
    if array.size == 0:
        return np.zeros((0, *inner), np.int64)
    if array.ndim != 1 + len(inner) or array.shape[1:] != inner:
        wanted = "give a list of pairs, source and target" if inner else "give a list of ids"
        raise InputError(where, f"an array of shape {array.shape}", wanted)
    match array.dtype.kind:
        case "i" | "u":
            if array.max() > np.iinfo(np.int64).max:
                raise InputError(where, f"{array.max()} has more than 64 bits with a sign", _FORM)
            return np.ascontiguousarray(array, np.int64)
        case "U" | "T" | "O":
            # numpy makes texts of the numbers in a list with a text.
            listed = array.ravel().tolist() if isinstance(given, np.ndarray) else _flat(given, bool(inner))
            entries = [_text_of(entry, where) for entry in listed]
            if all(type(entry) is int for entry in entries):
                return _read_ids(np.array(entries, np.int64).reshape(array.shape), where, inner)
            if all(isinstance(entry, str) for entry in entries):
                return array if array.dtype.kind != "O" else np.array(entries, str).reshape(array.shape)
    raise InputError(where, f"{array.dtype} are no node ids, or not of one kind", _FORM)


def _text_of(entry: Any, where: str) -> Any:
    """The text of an id with its type, as of graphs of several types: {"type": "user", "id": 17} is "user/17"."""
    if not (isinstance(entry, Mapping) and set(entry) == {"type", "id"}):
        return entry
    kind, own = entry["type"], entry["id"]
    if not isinstance(kind, str) or not isinstance(own, int | np.integer | str) or isinstance(own, bool):
        problem = f"type {kind!r} and id {own!r} are no id with its type"
        raise InputError(where, problem, "give a text as type, and as id an integer or a text")
    return f"{kind}/{own}"


def _flat(given: Any, has_pairs: bool) -> list[Any]:
    listed = [entry.item() if isinstance(entry, np.generic) else entry for entry in _listed(given)]
    return [end for pair in listed for end in _flat(pair, False)] if has_pairs else listed


def _listed(given: Any) -> list[Any]:
    listed: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    return listed


def _plain(named: NamedFeatures, where: str) -> NamedFeatures:
    try:
        return {str(name): _numbers(value) for name, value in named.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(where, f"these are no features: {error}", "give numbers by the names of columns") from None


def _numbers(value: Any) -> Any:
    if isinstance(value, str | bytes):
        raise TypeError(f"{value!r} is no number")
    listed = value.tolist() if hasattr(value, "tolist") else value
    return [float(number) for number in listed] if isinstance(listed, list | tuple) else float(listed)


def _plain_label(label: Any, where: str) -> Any:
    if hasattr(label, "tolist"):
        label = label.tolist()
    if isinstance(label, list | tuple | set | frozenset):
        return [_plain_label(one, where) for one in label]
    if label is None or isinstance(label, str) or (isinstance(label, int) and not isinstance(label, bool)):
        return label
    raise InputError(where, f"{label!r} is no label", "give an integer, a text, a list of them, or None")


def _counted(count: int, thing: str, things: str | None = None) -> str:
    return f"1 {thing}" if count == 1 else f"{count:,} {things or thing + 's'}"
