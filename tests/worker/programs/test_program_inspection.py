"""Another process reads the files of programs, within the program's limits; what is wrong comes back in a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.programs.programs import write_linear

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import ProgramLimits
from gnnserve_worker.programs.facts import ProgramFacts, StatedTensor
from gnnserve_worker.programs.forking import ForkServer
from gnnserve_worker.programs.inspection import inspect

LIMITS = ProgramLimits(memory_bytes=64 << 20)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.end()


def refusal(file: Path, server: ForkServer, limits: ProgramLimits = LIMITS) -> str:
    with pytest.raises(InputError) as raised:
        inspect(file, limits, server)
    return str(raised.value)


def test_what_a_file_states_is_told_by_another_process(tmp_path: Path, server: ForkServer) -> None:
    path = write_linear(tmp_path / "model.onnx", np.ones((3, 2), np.float32))
    assert inspect(path, LIMITS, server) == ProgramFacts(
        (StatedTensor("x", "float", (None, 3)),), (StatedTensor("scores", "float", (None, 2)),), ()
    )
    path.write_bytes(b"no program")
    assert "model.onnx is no file of ONNX; write one by" in refusal(path, server)
    assert "cannot be read: No such file" in refusal(tmp_path / "missing", server)


def test_a_file_that_takes_more_memory_than_the_program_may_is_refused(tmp_path: Path, server: ForkServer) -> None:
    large = tmp_path / "large.onnx"
    with large.open("wb") as opened:
        opened.truncate(30 << 20)
    words = "large.onnx has 31,457,280 bytes, and the program cannot be read within 64 MiB; give it more, or write"
    assert words in refusal(large, server)
    # Operators without a name or an input: two bytes each here, and many more once they are read.
    nodes = b"\x0a\x00" * (10 << 20)
    bomb = tmp_path / "bomb.onnx"
    bomb.write_bytes(b"\x3a" + _varint(len(nodes)) + nodes)
    assert "limits.memory: is too little: the program cannot be read within 64 MiB" in refusal(bomb, server)


def test_a_file_that_takes_too_long_is_refused(tmp_path: Path, server: ForkServer) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.onnx")  # reading it ends when there is a writer
    impatient = ProgramLimits(memory_bytes=LIMITS.memory_bytes, start_seconds=0.01)
    assert "pipe.onnx took longer than 0.01 s to be read" in refusal(pipe, server, impatient)
    path = write_linear(tmp_path / "model.onnx", np.ones((3, 2), np.float32))
    assert inspect(path, LIMITS, server).data_files == ()


def _varint(number: int) -> bytes:
    """As protobuf writes a length."""
    found = []
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
