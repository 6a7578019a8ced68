"""What a worker and the process that runs a program say to each other: JSON behind its length, over a socket.

Numbers go through memory that both map; a message says where in it they are.
"""

from __future__ import annotations

import socket
import struct
from enum import StrEnum
from itertools import accumulate

import msgspec
import numpy as np

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 20
_ALIGNMENT_BYTES = 64


class Failure(StrEnum):
    """Why a program gave no answer."""

    CRASH = "Crash"
    """its process ended"""
    TIME_OUT = "TimeOut"
    MEMORY = "Memory"
    """it wanted more than it may have"""
    REFUSED = "Refused"
    """ONNX Runtime could not read or run it, or it gave something else than the contract says"""


class Placed(msgspec.Struct, frozen=True):
    """An array in the memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def of(self, memory: memoryview) -> np.ndarray:
        """The array itself."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return np.frombuffer(memory, self.dtype, count, self.offset).reshape(self.shape)


class Question(msgspec.Struct, frozen=True):
    memory_bytes: int
    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]
    """Where the first rows of each output are wanted."""


class Answer(msgspec.Struct, frozen=True):
    failure: Failure | None = None
    reason: str = ""


def place(arrays: list[tuple[str, str, tuple[int, ...]]], first: int = 0) -> tuple[Placed, ...]:
    """Places for arrays, one behind the other, by name, dtype and shape."""
    sizes = [Placed(*each, 0).bytes for each in arrays]
    offsets = accumulate((-(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes), initial=first)
    return tuple(Placed(*each, offset) for each, offset in zip(arrays, offsets, strict=False))


def end_of(placed: tuple[Placed, ...], first: int = 0) -> int:
    """Where the next array may begin."""
    if not placed:
        return first
    end = placed[-1].offset + placed[-1].bytes
    return -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def send(connection: socket.socket, message: Question | Answer) -> None:
    body = msgspec.json.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket) -> bytes:
    """The next message. EOFError: the other side is gone, or speaks otherwise. TimeoutError: as the socket's."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > _MOST_BYTES:
        raise EOFError(f"a message of {length} bytes")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        try:
            part = connection.recv(count - len(received))
        except (ConnectionError, BrokenPipeError) as error:
            raise EOFError("the connection is lost") from error
        if not part:
            raise EOFError("the connection is closed")
        received += part
    return bytes(received)
