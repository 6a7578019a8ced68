"""Messages between a worker and the process that runs a program: JSON behind its length, over a socket.

Numbers go through memory that both map; a message says where in it they are.
"""

from __future__ import annotations

import math
import socket
import struct
from enum import StrEnum
from itertools import accumulate

import msgspec
import numpy as np

from gnnserve_worker.programs.failure import ProgramFailure
from gnnserve_worker.programs.providers import ON_CPU, ProgramDevice
from gnnserve_worker.programs.stats import ProgramRun

STATUS = struct.Struct("<i")
"""Number of a process, and how one ended: its exit status; negative: the signal that ended it."""
NAME = "gnnserve-model"
"""Name of the processes of programs, as ps and top show it: 15 characters at most."""
_LENGTH = struct.Struct("<I")
MOST_BYTES = 1 << 20
"""Length of a message, at most."""
_ALIGNMENT_BYTES = 64


class SharedArray(msgspec.Struct, frozen=True):
    """An array in the memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def of(self, memory: memoryview) -> np.ndarray:
        """The array itself."""
        count = math.prod(self.shape)
        return np.frombuffer(memory, self.dtype, count, self.offset).reshape(self.shape)


class NotReadError(EOFError):
    """The other side is gone, and did not read what was sent to it."""


class ProcessPurpose(StrEnum):
    """Purpose of a process of a program."""

    RUN = "Run"
    """It is asked for scores, by the messages below."""
    INSPECT = "Inspect"
    """It tells what the file states of itself (`inspection.py`)."""


class Start(msgspec.Struct, frozen=True):
    """A program that a process is wanted for. Descriptors come along: where its exit status is wanted, and those of the
    `main` of its purpose."""

    file: str
    memory_bytes: int
    kept_bytes: int
    """As an earlier process answered; 0: none did."""
    descriptors: int = 0
    """How many come along, in several messages where they are many."""
    device: ProgramDevice = ON_CPU
    purpose: ProcessPurpose = ProcessPurpose.RUN


class ProgramQuestion(msgspec.Struct, frozen=True):
    memory_bytes: int
    inputs: tuple[SharedArray, ...]
    outputs: tuple[SharedArray, ...]
    """Where the first rows of each output are wanted."""


class ProgramAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    failure: ProgramFailure | None = None
    reason: str = ""
    thread: int = 0
    """Number of the thread that runs the next question of this lane."""
    kept_bytes: int = 0
    """Size of the rewritten form of the file, in the answer that the program is read; 0: there is none."""
    provider: str = ""
    """Execution provider of the session, in the same answer."""
    run: ProgramRun | None = None
    """Run that gave the outputs."""


def place(arrays: list[tuple[str, str, tuple[int, ...]]], first: int = 0) -> tuple[SharedArray, ...]:
    """Places for arrays, one behind the other, by name, dtype and shape."""
    sizes = [SharedArray(*each, 0).bytes for each in arrays]
    offsets = accumulate((-(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for size in sizes), initial=first)
    return tuple(SharedArray(*each, offset) for each, offset in zip(arrays, offsets, strict=False))


def end_of(placed: tuple[SharedArray, ...], first: int = 0) -> int:
    """Where the next array may begin."""
    if not placed:
        return first
    end = placed[-1].offset + placed[-1].bytes
    return -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def send(connection: socket.socket, message: msgspec.Struct) -> None:
    """NotReadError: the other side is gone."""
    body = msgspec.json.encode(message)
    try:
        connection.sendall(_LENGTH.pack(len(body)) + body)
    except ConnectionError as error:
        raise NotReadError("the connection is lost") from error


def receive(connection: socket.socket) -> bytes:
    """The next message. EOFError: the other side is gone, or speaks otherwise; NotReadError: before it had read what
    was sent. TimeoutError: as the socket's."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if length > MOST_BYTES:
        raise EOFError(f"a message of {length} bytes")
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        try:
            part = connection.recv(count - len(received))
        except ConnectionError as error:
            # Linux says so where a socket is closed with something in it.
            raise NotReadError("the connection is lost") from error
        if not part:
            raise EOFError("the connection is closed")
        received += part
    return bytes(received)
