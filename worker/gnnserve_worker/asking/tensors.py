"""Tensors of the Open Inference Protocol: datatypes and shapes, and their elements in each form.

A tensor's elements stand in JSON, flat or nested as its shape is, in a list of a gRPC message, or as bytes: behind the
JSON or in a message, little-endian, without gaps, and each text of BYTES behind its length. What is wrong is told by
the tensor's name and the place in it.
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_worker.asking.features import RANGE_REMEDY
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, cut, shown_value


class Datatype(StrEnum):
    """The datatypes that tensors of a graph have, as the protocol calls them."""

    INT64 = "INT64"
    FP32 = "FP32"
    BYTES = "BYTES"
    BOOL = "BOOL"

    # An enum's own is Python, and forms of tensors are looked up for every request.
    __hash__ = str.__hash__


_DTYPES: dict[Datatype, np.dtype[Any]] = {Datatype.INT64: np.dtype("<i8"), Datatype.FP32: np.dtype("<f4")}
"""numpy types of inputs whose elements have a fixed size."""
_FLAT: dict[Datatype, msgspec.json.Decoder[Any]] = {
    Datatype.INT64: decoding.decoder(list[int]),
    Datatype.FP32: decoding.decoder(list[float]),
    Datatype.BYTES: decoding.decoder(list[str]),
}
_NESTED: dict[Datatype, msgspec.json.Decoder[Any]] = {
    Datatype.INT64: decoding.decoder(list[list[int]]),
    Datatype.FP32: decoding.decoder(list[list[float]]),
    Datatype.BYTES: decoding.decoder(list[list[str]]),
}
_KINDS = {"int": "an integer", "float": "a number", "str": "a text", "array": "a list"}
_PLACE = re.compile(r" - at `\$((?:\[\d{1,9}\]){0,2})`$")
_NESTED_LIST = re.compile(rb"\s*\[\s*\[")
_LENGTH = struct.Struct("<I")
ANY_LENGTH = -1
"""A length of a shape that may be any."""
_LONGEST_MESSAGE = 200

Elements = np.ndarray | list[Any]
"""Elements in their order, without the shape."""


class TensorKind(msgspec.Struct, frozen=True):
    """An input or output, as metadata describes it."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    """-1: any length."""
    is_optional: bool = False


class InJson(msgspec.Struct, frozen=True):
    """Elements in JSON."""

    text: bytes


class TrailingElements(msgspec.Struct, frozen=True):
    """Elements as bytes behind the JSON of a body."""

    start: int
    """Where they begin, counted from the end of the JSON."""
    size: int


class AsBytes(msgspec.Struct, frozen=True):
    """Elements as bytes of their own."""

    data: bytes


class ListedElements(msgspec.Struct, frozen=True):
    """Elements in the list that a message has for their datatype; texts as UTF-8."""

    values: Sequence[Any] | np.ndarray


Contents = InJson | TrailingElements | AsBytes | ListedElements


class GivenTensor(msgspec.Struct, frozen=True):
    """An input of a request, whose datatype and shape are right."""

    kind: TensorKind
    shape: tuple[int, ...]
    contents: Contents


def check_form(kind: TensorKind, datatype: str, shape: tuple[int, ...]) -> None:
    if datatype != kind.datatype:
        raise RequestError(
            ErrorCode.INVALID_TYPE, kind.name, f"datatype {cut(datatype)}, where {kind.datatype} is expected",
            f"send it as {kind.datatype}",
        )  # fmt: skip
    fitting = _without_ones(shape, len(kind.shape))
    if len(fitting) != len(kind.shape) or any(
        length < 0 or wanted not in {ANY_LENGTH, length} for length, wanted in zip(fitting, kind.shape, strict=False)
    ):
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            kind.name,
            f"shape {shown_value(shape)}, where {shown_value(kind.shape)} is expected",
            "-1 is any length",
        )


def _without_ones(shape: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """A list may also come as a column: [n, 1] for [n]."""
    return shape[:-1] if len(shape) == dimensions + 1 and shape[-1] == 1 else shape


def read_elements(given: GivenTensor, body: bytes = b"", json_bytes: int = 0) -> Elements:
    """Raises RequestError where there are more or fewer than the shape says, or one is wrong. `body`, `json_bytes`:
    what `TrailingElements` refers to, and where its JSON ends."""
    # Bytes first, and no patterns with fields, which take longer: of clients in a hurry, each comparison counts.
    match contents := given.contents:
        case TrailingElements():
            return _read_bytes(given, body, json_bytes + contents.start, contents.size)
        case AsBytes():
            return _read_bytes(given, contents.data, 0, len(contents.data))
        case InJson():
            return _read_json(given, contents.text)
        case ListedElements():
            return _read_listed(given, contents.values)


def _read_bytes(given: GivenTensor, data: bytes, start: int, size: int) -> Elements:
    kind, count = given.kind, math.prod(given.shape)
    if kind.datatype is Datatype.BYTES:
        return _read_texts(given, data[start : start + size], count)
    dtype = _DTYPES[kind.datatype]
    if size != dtype.itemsize * count:
        raise _wrong_size(given, size, f"{dtype.itemsize} for each of {counted(count, 'element')}")
    # JSON has any length, and kernels would be compiled once more for arrays that begin between two words. Bytes of
    # their own begin at one, and NumPy copies such an array number by number.
    elements = np.frombuffer(data[start : start + size] if start else data, dtype, count)
    return elements if sys.byteorder == "little" else elements.astype(dtype.newbyteorder("="))


def _read_texts(given: GivenTensor, data: bytes, count: int) -> list[str]:
    texts: list[str] = []
    start = 0
    while start + _LENGTH.size <= len(data) and len(texts) < count:
        end = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
        if end > len(data):
            break
        texts.append(_as_text(data[start + _LENGTH.size : end], given, len(texts)))
        start = end
    if len(texts) != count or start != len(data):
        raise _wrong_size(given, len(data), f"{counted(count, 'text')}, each behind its length in {_LENGTH.size} bytes")
    return texts


def _as_text(data: bytes, given: GivenTensor, index: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        where = f"{given.kind.name}[{index}]"
        raise RequestError(ErrorCode.INVALID_VALUE, where, "its bytes are no UTF-8", "send texts") from None


def _wrong_size(given: GivenTensor, size: int, expected: str) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_BINARY,
        given.kind.name,
        f"{counted(size, 'byte')}, where its shape {shown_value(given.shape)} has {expected}",
        "send as many elements as the shape says, little-endian",
    )


def _read_listed(given: GivenTensor, values: Sequence[Any] | np.ndarray) -> Elements:
    _check_count(given, len(values))
    if given.kind.datatype is Datatype.BYTES:
        return [_as_text(text, given, index) for index, text in enumerate(values)]
    dtype = _DTYPES[given.kind.datatype].newbyteorder("=")
    return values.astype(dtype) if isinstance(values, np.ndarray) else np.fromiter(values, dtype, len(values))


def _check_count(given: GivenTensor, count: int) -> None:
    wanted = math.prod(given.shape)
    if count != wanted:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            given.kind.name,
            f"{counted(count, 'element')}, where its shape {shown_value(given.shape)} has {wanted:,}",
            "send as many elements as the shape says",
        )


def _read_json(given: GivenTensor, text: bytes) -> Elements:
    kind = given.kind
    elements = _decode(given, text)
    _check_count(given, len(elements))
    if kind.datatype is not Datatype.FP32:
        return elements
    with np.errstate(over="ignore"):
        numbers = np.array(elements, np.float64).astype(np.float32)
    if not np.isfinite(numbers).all():
        first = int(np.isfinite(numbers).argmin())
        problem = f"{shown_value(elements[first])} is beyond the range of float32"
        raise RequestError(ErrorCode.INVALID_VALUE, f"{kind.name}[{first}]", problem, RANGE_REMEDY)
    return numbers


def _decode(given: GivenTensor, text: bytes) -> list[Any]:
    """Elements of a flat list, or of one that is nested once: no tensor here has more than two dimensions."""
    kind, is_nested = given.kind, len(given.shape) > 1 and _NESTED_LIST.match(text) is not None
    try:
        if not is_nested:
            return list(_FLAT[kind.datatype].decode(text))
        rows = _NESTED[kind.datatype].decode(text)
    except msgspec.ValidationError as error:
        raise _wrong_element(kind, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise RequestError(ErrorCode.INVALID_VALUE, kind.name, cut(str(error)), "send its elements in a list") from None
    for index, row in enumerate(rows):
        if len(row) != given.shape[1]:
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"{kind.name}[{index}]", f"{counted(len(row), 'element')}, where its shape "
                f"{shown_value(given.shape)} has {given.shape[1]:,}", "send as many elements as the shape says",
            )  # fmt: skip
    return list(chain.from_iterable(rows))


def _wrong_element(kind: TensorKind, text: str) -> RequestError:
    at = _PLACE.search(text, max(0, len(text) - _LONGEST_MESSAGE))
    told = text.split("`", 4)
    if not text.startswith("Expected") or len(told) < 4:
        return RequestError(ErrorCode.INVALID_VALUE, kind.name, "an element is out of range", f"send {kind.datatype}")
    wanted, found = (_KINDS.get(name, name) for name in (told[1], told[3]))
    where = f"{kind.name}{at[1] if at else ''}"
    return RequestError(ErrorCode.INVALID_TYPE, where, f"expected {wanted}, got {found}", f"send {kind.datatype}")


def encode_texts(texts: Sequence[bytes]) -> bytes:
    """Elements of BYTES as binary data."""
    return b"".join([_LENGTH.pack(len(text)) + text for text in texts])
