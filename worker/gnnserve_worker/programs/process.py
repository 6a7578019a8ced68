"""The process that runs a program, by ONNX Runtime: `python -m gnnserve_worker.programs.process FILE BYTES CONTROL
LANES`. Each lane is a socket and a memory, and a thread of its own; each run takes one thread, since sums into one
index lose updates where there are more. It ends when the worker does. `runner.py` starts it.
"""

from __future__ import annotations

import mmap
import os
import resource
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from gnnserve_api import decoding
from gnnserve_worker.programs.messages import Answer, Failure, Placed, Question, receive, send
from gnnserve_worker.programs.rewriting import rewritten

_MOST_REASON = 600
_MOST_COPIES = 8
"""A file is rewritten where its memory holds so many of it: as read, as a message, as written, and in the session."""
_LACKS_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate", "memory allocation")


def main(arguments: list[str]) -> None:
    file, memory_bytes, control, lanes = arguments
    connection = socket.socket(fileno=int(control))
    try:
        session = _open(file, int(memory_bytes))
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker tells it
        send(connection, _answer_of(error))
        return
    for lane in lanes.split(","):
        asked, memory = lane.split(":")
        threading.Thread(target=_answer, args=(session, socket.socket(fileno=int(asked)), int(memory))).start()
    send(connection, Answer())
    connection.recv(1)
    # The worker is gone, or wants no more; a run in another thread does not hold this up.
    os._exit(0)


def _open(file: str, memory_bytes: int) -> Any:
    import onnxruntime  # noqa: PLC0415 - of an extra

    onnxruntime.set_default_logger_severity(4)
    # Beyond what the process holds before it reads the program.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # A thread that waits by spinning takes a core from another service.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The file stays as it is, and what is made of it finds the weights beside it.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(Path(file).parent))
    program = rewritten(Path(file), memory_bytes // _MOST_COPIES) or file
    return onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])


def _answer(session: Any, asked: socket.socket, descriptor: int) -> None:
    """Answer questions of one lane, until the worker closes it."""
    memory, size = memoryview(b""), 0
    while True:
        try:
            question = decoding.decode(receive(asked), Question)
        except EOFError:
            return
        if question.memory_bytes > size:
            size = question.memory_bytes
            try:
                memory = memoryview(mmap.mmap(descriptor, size))
            except OSError as error:
                send(asked, _answer_of(MemoryError(str(error))))
                size = 0
                continue
        send(asked, _run(session, question, memory))


def _run(session: Any, question: Question, memory: memoryview) -> Answer:
    try:
        inputs = {each.name: each.of(memory) for each in question.inputs}
        found = session.run([each.name for each in question.outputs], inputs)
        for each, array in zip(question.outputs, found, strict=True):
            _write(each, array, memory)
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker tells it
        return _answer_of(error)
    return Answer()


def _write(wanted: Placed, found: Any, memory: memoryview) -> None:
    rows, columns = wanted.shape
    is_met = isinstance(found, np.ndarray) and found.dtype == np.float32 and found.ndim == 2
    if not is_met or found.shape[1] != columns or len(found) < rows:
        told = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ValueError(
            f"output {wanted.name} is {told}, expected float32 [{rows} or more, {columns}]: correct the outputs of "
            "the contract"
        )
    wanted.of(memory)[...] = found[:rows]


def _answer_of(error: Exception) -> Answer:
    text = str(error) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        text = f"{error.name} is not installed: pip install 'gnnserve[programs]'"
    lacks_memory = isinstance(error, MemoryError) or any(words in text.lower() for words in _LACKS_MEMORY)
    return Answer(Failure.MEMORY if lacks_memory else Failure.REFUSED, text[:_MOST_REASON])


if __name__ == "__main__":
    main(sys.argv[1:])
