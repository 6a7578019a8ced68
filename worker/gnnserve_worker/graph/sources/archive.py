"""Reading arrays of an `.npz` archive whose headers are checked before memory is allocated.

A member's header states a shape and a type, and numpy allocates what they ask for before it reads a byte of content; a
kilobyte can claim 60 GB. Here headers are read first and compared with what the archive stores, so that a reader can
refuse an array that does not fit the graph without reading it. Nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DEFLATE_RATIO = 1032
"""Largest expansion of one byte of deflate, by the documentation of zlib."""
_SLACK_BYTES = 1024
"""Bytes allowed beyond the ratio, for members of a few bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    """Type and shape as a member's header states them."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """An open archive. Made by `opened`, valid until that block ends."""

    def __init__(self, file: IO[bytes]) -> None:
        _require_archive(file)
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array, not an archive of named arrays")  # noqa: TRY004
        self._arrays = archive
        self.names: tuple[str, ...] = tuple(archive.files)
        with zipfile.ZipFile(file) as members:
            stored = {info.filename: info for info in members.infolist()}
            self.headers: Mapping[str, Header | None] = {
                name: _header(members, stored[f"{name}.npy"]) if f"{name}.npy" in stored else None
                for name in self.names
            }
            """Headers by name. None: the member is not an array, or not one that is supported; `read` says so."""
            self._stored = stored

    def read(self, name: str) -> np.ndarray:
        """Read an array. Raises ValueError where the member is not what its header states."""
        header = self.headers[name]
        if header is not None:
            if header.dtype.hasobject:
                raise ValueError(f"{name} holds Python objects, not numbers")
            _check_claim(name, header, self._stored[f"{name}.npy"])
        try:
            array = self._arrays[name]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        # For a member that is not an .npy file numpy returns its bytes.
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is not an array")  # noqa: TRY004
        return array


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Open an archive. Raises ValueError, and for damaged bytes whatever numpy, zipfile, zlib and tokenize raise."""
    with path.open("rb") as file:  # numpy leaves a file open that it opened and found truncated
        yield Archive(file)


_BEGINNINGS = (
    (b"\x93NUMPY", "it holds a single array (.npy), not an archive of named arrays"),
    (b"PAR1", "it is a Parquet file: write spec.graph.source.parquet instead of npz"),
    (b"\x80", "it is a Python pickle, which can run any code when it is read"),
    (b"\x89HDF", "it is an HDF5 file"),
    (b"\x1f\x8b", "it is compressed by gzip"),
)


def numpy_words(error: Exception) -> str:
    """numpy's message about a file that it cannot read, without its advice on how to load a pickle."""
    return "it holds no numbers" if "pickle" in str(error) else str(error)


def _require_archive(file: IO[bytes]) -> None:
    """Refuse a file that is not an archive, before numpy does: numpy takes it for a pickle and advises to load it
    unsafely."""
    found = file.read(8)
    file.seek(0)
    if found.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return
    if not found:
        raise ValueError("it is empty")
    raise ValueError(next((words for begin, words in _BEGINNINGS if found.startswith(begin)), "it is no zip archive"))


def _header(members: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header | None:
    with members.open(info) as file:
        try:
            read_header = _HEADER_READERS.get(np.lib.format.read_magic(file))
        except ValueError:
            return None
        if read_header is None:
            return None
        shape, _, dtype = read_header(file)
    return Header(shape, dtype)


def _check_claim(name: str, header: Header, info: zipfile.ZipInfo) -> None:
    claimed = f"{name} claims {header.dtype} {list(header.shape)}, which are {header.nbytes:,} bytes"
    if header.nbytes > info.file_size:
        raise ValueError(f"{claimed}, but the archive has {info.file_size:,} bytes of it")
    is_stored = info.compress_type == zipfile.ZIP_STORED
    most = info.compress_size if is_stored else info.compress_size * _DEFLATE_RATIO + _SLACK_BYTES
    if info.compress_type in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} and header.nbytes > most:
        raise ValueError(f"{claimed}, but the {info.compress_size:,} bytes that are stored of it cannot hold them")
