"""The process that runs a program, by ONNX Runtime; a fork of `fork_server.py`. Each lane is a socket and a memory, and
a thread of its own; each run takes one thread, since sums into one index lose updates where there are more. It ends
when the worker does.

Other services come first: it is made ready at a lower priority, and a run that `started.py` finds slow goes on at one.
A thread cannot raise its priority again, so after such a run another one takes its lane.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.extras import PROGRAMS
from gnnserve_worker.programs.failure import ProgramFailure
from gnnserve_worker.programs.messages import NAME, ProgramAnswer, ProgramQuestion, SharedArray, Start, receive, send
from gnnserve_worker.programs.priority import is_lowered, yield_to_others
from gnnserve_worker.programs.providers import limit_memory, prepare, providers
from gnnserve_worker.programs.rewriting import rewritten
from gnnserve_worker.programs.stats import ProgramRun

_MOST_REASON = 600
_MOST_COPIES = 8
"""A file is rewritten where its memory holds so many of it: as read, as a message, as written, and in the session."""
_LACKS_MEMORY = (
    "bad_alloc", "bad allocation", "failed to allocate", "memory allocation", "can't start new thread", "failed to map",
)  # fmt: skip


def main(start: Start, descriptors: list[int]) -> None:
    """`descriptors`: the control connection, where the file's rewritten form is kept, and two of each lane: its
    connection, and its memory."""
    Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    control, kept, *of_lanes = descriptors
    connection = socket.socket(fileno=control)
    waiting = SimpleQueue[_Lane]()
    opened: list[tuple[Any, int]] = []
    try:
        _apart(lambda: opened.append(_open(start, kept)))
        ((session, kept_bytes),) = opened
        threading.Thread(target=_end_with_worker, args=(connection,)).start()
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker tells it
        send(connection, _answer_of(error))
        return
    send(connection, ProgramAnswer(kept_bytes=kept_bytes, provider=session.get_providers()[0]))
    for asked, memory in zip(of_lanes[::2], of_lanes[1::2], strict=True):
        waiting.put(_Lane(socket.socket(fileno=asked), memory))
    while True:
        lane = waiting.get()
        try:
            threading.Thread(target=_serve, args=(session, lane, waiting)).start()
        except RuntimeError as error:
            # There is no memory for its stack. The worker, once it is told, ends this process.
            send(lane.connection, _answer_of(error))


def _end_with_worker(connection: socket.socket) -> None:
    connection.recv(1)
    # The worker is gone, or wants no more; a run in another thread does not hold this up.
    os._exit(0)


def _apart(act: Callable[[], object]) -> None:
    """Do something at a lower priority, which a thread keeps, and threads that it starts."""
    failed: list[Exception] = []

    def do() -> None:
        yield_to_others(threading.get_native_id())
        try:
            act()
        except Exception as error:  # noqa: BLE001 - raised again
            failed.append(error)

    thread = threading.Thread(target=do)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def import_runtime() -> Any:
    """ModuleNotFoundError."""
    import onnxruntime  # noqa: PLC0415 - of an extra

    return onnxruntime


def _open(start: Start, kept: int) -> tuple[Any, int]:
    """A session, and the size of the file's rewritten form, which the next process need not make; 0: it has none."""
    onnxruntime = import_runtime()
    onnxruntime.set_default_logger_severity(4)
    chosen = providers(start.device, onnxruntime.get_available_providers())
    # Beyond what the process holds before it reads the program.
    limit_memory(start.device, start.memory_bytes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # A thread that waits by spinning takes a core from another service.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The file stays as it is, and what is made of it finds the weights beside it.
    file = Path(start.file)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(file.parent))
    prepare(onnxruntime, start.device, options)
    program = _kept(kept, start.kept_bytes) or rewritten(file, start.memory_bytes // _MOST_COPIES)
    if program is None:
        return onnxruntime.InferenceSession(start.file, options, providers=chosen), 0
    if not start.kept_bytes:
        _keep(kept, program)
    return onnxruntime.InferenceSession(program, options, providers=chosen), len(program)


def _kept(descriptor: int, size: int) -> bytes | None:
    if not size:
        return None
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as mapped:
        return mapped[:]


def _keep(descriptor: int, program: bytes) -> None:
    os.ftruncate(descriptor, len(program))
    with mmap.mmap(descriptor, len(program)) as mapped:
        mapped[:] = program


@dataclass(slots=True)
class _Lane:
    connection: socket.socket
    descriptor: int
    """File descriptor of the memory, which the worker makes larger."""
    memory: memoryview = field(default_factory=lambda: memoryview(b""))
    owed: ProgramAnswer = field(default_factory=ProgramAnswer)
    """Answer that the next thread sends, with its own number; at first, that it is there."""

    def map(self, size: int) -> None:
        """OSError."""
        if size > len(self.memory):
            self.memory = memoryview(b"")
            self.memory = memoryview(mmap.mmap(self.descriptor, size))


def _serve(session: Any, lane: _Lane, waiting: SimpleQueue[_Lane]) -> None:
    """Answer questions of one lane, until the worker closes it, or this thread is slowed down."""
    thread = threading.get_native_id()
    answer = lane.owed
    while True:
        send(lane.connection, msgspec.structs.replace(answer, thread=thread))
        try:
            question = decoding.decode(receive(lane.connection), ProgramQuestion)
        except EOFError:
            return
        answer = _answer(session, question, lane)
        if is_lowered(thread):
            lane.owed = answer
            waiting.put(lane)
            return


def _answer(session: Any, question: ProgramQuestion, lane: _Lane) -> ProgramAnswer:
    try:
        lane.map(question.memory_bytes)
    except OSError as error:
        return _answer_of(MemoryError(str(error)))
    return _run(session, question, lane.memory)


def _run(session: Any, question: ProgramQuestion, memory: memoryview) -> ProgramAnswer:
    try:
        inputs = {each.name: each.of(memory) for each in question.inputs}
        began_ms = time.perf_counter() * 1e3
        found = session.run([each.name for each in question.outputs], inputs)
        run = ProgramRun(began_ms, time.perf_counter() * 1e3)
        for each, array in zip(question.outputs, found, strict=True):
            _write(each, array, memory)
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker tells it
        return _answer_of(error)
    return ProgramAnswer(run=run)


def _write(wanted: SharedArray, found: Any, memory: memoryview) -> None:
    rows, columns = wanted.shape
    is_met = isinstance(found, np.ndarray) and found.dtype == np.float32 and found.ndim == 2
    if not is_met or found.shape[1] != columns or len(found) < rows:
        told = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ValueError(
            f"output {wanted.name} is {told}, expected float32 [{rows} or more, {columns}]: correct the outputs of "
            "the contract"
        )
    wanted.of(memory)[...] = found[:rows]


def _answer_of(error: Exception) -> ProgramAnswer:
    # ONNX Runtime breaks its messages into lines.
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        text = f"{error.name} is not installed; {PROGRAMS.remedy}"
    lacks_memory = isinstance(error, MemoryError) or any(words in text.lower() for words in _LACKS_MEMORY)
    return ProgramAnswer(ProgramFailure.MEMORY if lacks_memory else ProgramFailure.REFUSED, text[:_MOST_REASON])
