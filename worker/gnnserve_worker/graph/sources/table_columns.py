"""Arrow columns as numpy arrays: texts in Arrow's own memory, integers, and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnserve_worker.kernel_cache import kernel

_MARKERS = pa.array(["", "na", "n/a", "nan", "null", "none", "-"])
"""Texts that stand for a missing number in CSV files; compared in lower case."""
_INT64_MAX = np.iinfo(np.int64).max


def is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    )  # fmt: skip


def is_integer(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind))


def is_number(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )  # fmt: skip


def kind_of(kind: Any) -> str:
    """Kind of a column's type, equal for types that may differ between files: integers and doubles are both numbers."""
    if is_text(kind):
        return "texts"
    if is_list(kind):
        return f"lists of {kind_of(kind.value_type)}"
    return "numbers" if is_number(kind) or is_integer(kind) else str(kind)


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def plain(array: Any) -> Any:
    """The array without dictionary encoding or extension type; texts, known to be UTF-8, as string or large_string."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type) or pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.large_string())
    return array


def first_broken_text(array: Any) -> int:
    """First row that is not UTF-8, or -1; the array may hold texts, bytes or a dictionary. Reading a Parquet file does
    not check this."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    texts = array.dictionary if pa.types.is_dictionary(array.type) else array
    if not is_text(texts.type):
        return -1
    try:
        if pa.types.is_binary(texts.type) or pa.types.is_large_binary(texts.type):
            texts.cast(pa.large_string())
        else:
            texts.validate(full=True)
    except pa.ArrowInvalid:
        return next((row for row, text in enumerate(array) if text.is_valid and not _is_utf8(text)), -1)
    return -1


def _is_utf8(text: Any) -> bool:
    try:
        (text.value if isinstance(text, pa.DictionaryScalar) else text).as_buffer().to_pybytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def shortened(value: object) -> str:
    """A value shortened for messages: one cell may hold megabytes."""
    if not isinstance(value, str):
        return repr(value)
    text = value.rstrip("\r\n")
    return repr(text if len(text) <= 80 else text[:77] + "…")


def missing_rows(array: Any) -> np.ndarray:
    """Rows that are missing, ascending."""
    if array.null_count == 0:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts in Arrow's own memory: text i is `utf8[offsets[i]:offsets[i + 1]]`."""

    utf8: np.ndarray
    offsets: np.ndarray
    """int32 or int64 [texts + 1]; need not begin at 0."""


def texts_of(array: Any) -> Texts:
    """The texts of a string or large_string array; a missing text may have any length."""
    dtype = np.dtype(np.int64 if pa.types.is_large_string(array.type) else np.int32)
    _, offsets, utf8 = array.buffers()
    if len(array) == 0 or offsets is None:
        return Texts(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=dtype))
    begins = np.frombuffer(offsets, dtype=dtype, count=array.offset + len(array) + 1)[array.offset :]
    return Texts(np.frombuffer(utf8 if utf8 is not None else b"", dtype=np.uint8), begins)


def microseconds_of(array: Any) -> Any:
    """Timestamps as integers: microseconds since 1970 (UTC). Parts of a microsecond are left out; pa.ArrowInvalid: one
    is beyond 64 bits."""
    whole = array.cast(pa.timestamp("us", array.type.tz), safe=array.type.unit != "ns")
    return whole.cast(pa.int64())


def integers_of(array: Any) -> tuple[np.ndarray, int]:
    """An array of integers as int64, 0 where missing, without a copy where possible; and the first row that does not
    fit int64, or -1."""
    if not pa.types.is_integer(array.type):  # numpy would cut 3.7 to 3
        raise TypeError(f"{array.type} are no integers")
    if array.null_count:
        array = array.fill_null(0)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        large = np.flatnonzero(values > np.uint64(_INT64_MAX))
        if len(large):
            return values.view(np.int64), int(large[0])
    return values.astype(np.int64, copy=False), -1


def parsed_integers(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Parse an array of texts: int64, and which texts are canonical integers: `0`, `17`, `-3`, but not `007`, ` 1` or
    `1.0`, which could not be found again by their text."""
    texts = texts_of(array)
    values = np.zeros(len(array), dtype=np.int64)
    canonical = np.zeros(len(array), dtype=np.bool_)
    _parse_integers(texts.utf8, texts.offsets, values, canonical)
    return values, canonical


def parse_integer(text: str) -> int | None:
    """Parse one text as `parsed_integers` does; None if it is not a canonical integer."""
    values, canonical = parsed_integers(pa.array([text], type=pa.string()))
    return int(values[0]) if canonical[0] else None


class NotANumberError(ValueError):
    def __init__(self, row: int, value: object) -> None:
        super().__init__(f"{shortened(value)} is not a number")
        self.row = row
        self.value = value


def numbers_of(array: Any, decimal: str = ".") -> np.ndarray:
    """An array as float64, nan where a number is missing. It may hold numbers, true and false, or texts of them with
    `decimal` before the fraction. Raises NotANumberError."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = _parsed_numbers(array if decimal == "." else _with_points(array, decimal))
    elif pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    # A safe cast would refuse integers that a double rounds, which is allowed here.
    numbers = array.cast(pa.float64(), safe=False)
    if numbers.null_count:
        numbers = numbers.fill_null(np.nan)
    return np.asarray(numbers.to_numpy(zero_copy_only=False))


def are_numbers(array: Any, decimal: str) -> bool:
    """Whether every text of the array is a number, with `decimal` before its fraction, or missing."""
    try:
        numbers = numbers_of(array, decimal)
    except NotANumberError:
        return False
    return bool(np.isfinite(numbers).any())


def _with_points(array: Any, decimal: str) -> Any:
    """Replace the decimal mark by a point. A text that contains a point already is not a number then: it may group
    thousands."""
    with_point = np.flatnonzero(pc.match_substring(array, ".").fill_null(False).to_numpy(zero_copy_only=False))
    if len(with_point):
        raise NotANumberError(int(with_point[0]), array[int(with_point[0])].as_py())
    return pc.replace_substring(array, decimal, ".", max_replacements=1)


def _parsed_numbers(array: Any) -> Any:
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:
        pass  # at least one is written in another way
    words = pc.utf8_lower(pc.utf8_trim_whitespace(array))
    words = pc.if_else(pc.is_in(words, value_set=_MARKERS.cast(words.type)), pa.scalar(None, words.type), words)
    words = pc.if_else(pc.equal(words, "true"), "1", pc.if_else(pc.equal(words, "false"), "0", words))
    try:
        return words.cast(pa.float64())
    except pa.ArrowInvalid:
        row = _first_that_fails(words)
        raise NotANumberError(row, array[row].as_py()) from None


def _first_that_fails(words: Any) -> int:
    low, high = 0, len(words)  # words[:low] can be cast, words[:high] cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            words.slice(low, middle - low).cast(pa.float64())
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


@kernel
def _parse_integers(text: np.ndarray, offsets: np.ndarray, values: np.ndarray, canonical: np.ndarray) -> None:
    for i in range(len(values)):
        start, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        negative = end > start and text[start] == 45
        first = start + 1 if negative else start
        digits = end - first
        # 19 digits fit into 64 bits without a sign.
        good = 1 <= digits <= 19 and (text[first] != 48 or (digits == 1 and not negative))
        value = np.uint64(0)
        if good:
            for place in range(first, end):
                digit = np.uint64(text[place]) - np.uint64(48)
                good &= digit <= np.uint64(9)
                value = value * np.uint64(10) + digit
        good &= value <= np.uint64(9223372036854775807) + np.uint64(negative)
        canonical[i] = good
        if good:
            values[i] = -np.int64(value) if negative else np.int64(value)
