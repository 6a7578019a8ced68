"""Handler of memory faults (SIGBUS, SIGSEGV) that altered mapped files cause: a message and an exit code.

A file that is cut short ends the process that reads beyond its new end: the system sends SIGBUS. A file that is
overwritten with other positions (nodes, offsets) makes compiled code read memory anywhere: SIGSEGV. The process cannot
continue. By default it would end by the signal without a message; this handler writes one sentence that names the file
and exits with a code. A fault that no file explains still ends the process by its signal, after a sentence that says
so.

Python's own signal handlers run between two instructions of the interpreter, which a thread that faults never reaches,
so the handler is installed with the system directly. It may run Python all the same: the fault is synchronous, in a
known kind of place (a kernel, a copy, a hash), not in the middle of the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gnnserve_worker.repository.watched import written_files

_SA_SIGINFO = 4
_SIGNAL_SET_BYTES = 128

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc and musl on 64-bit Linux."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_byte * _SIGNAL_SET_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Information(ctypes.Structure):
    """The beginning of `siginfo_t`, as far as it is needed."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


_SIGNALS = (signal.SIGBUS, signal.SIGSEGV)
_kept: list[object] = []
"""Keeps the handler alive: the system refers to it until the process ends."""


@dataclass(frozen=True, slots=True)
class Fault:
    words: str
    is_of_files: bool
    """True: a mapped file was altered. False: a fault of the machine or of a program."""


def exit_on_memory_fault(say: Callable[[str], None], code: int) -> None:
    """Install the handler, for every thread: it passes the sentence to `say` and ends the process, with exit code
    `code` where a file was altered."""
    libc = ctypes.CDLL(None, use_errno=True)
    previous = {number: _Action() for number in _SIGNALS}

    def handle(number: int, information: int, _context: int) -> None:
        # Returning would repeat the same fault for ever.
        is_of_files = True
        try:
            with suppress(BaseException):
                fault = describe(number, _Information.from_address(information).address or 0)
                is_of_files = fault.is_of_files
                say(fault.words)
        finally:
            if is_of_files or libc.sigaction(number, ctypes.byref(previous[signal.Signals(number)]), None) != 0:
                os._exit(code)
            signal.raise_signal(number)  # it is delivered at the return

    handler = _Handler(handle)
    _kept.append(handler)
    action = _Action(handler=handler, flags=_SA_SIGINFO)
    for number in _SIGNALS:
        if libc.sigaction(number, ctypes.byref(action), ctypes.byref(previous[number])) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def describe(number: int, address: int, maps: Path = Path("/proc/self/maps")) -> Fault:
    """Explain a fault: the file that is mapped at the address, or the files that were written to."""
    name = signal.Signals(number).name
    path = _mapped_at(address, maps) if number == signal.SIGBUS else None
    if path is not None:
        return _of_file(f"{path}: was cut short, or can no longer be read, while it was mapped", name)
    if written := written_files():
        # Several files may have been written to; which of them caused the fault cannot be known.
        return _of_file(f"{'; '.join(map(str, written))}, while it was mapped", name)
    if number == signal.SIGBUS:
        reason = "a fault of the machine; look at its kernel's log"
    else:
        reason = "no file of a revision was written to, so this is a fault of a program or of the machine; report it"
    return Fault(f"memory at {address:#x} could not be accessed ({name}): {reason}", is_of_files=False)


def _of_file(what: str, name: str) -> Fault:
    words = f"{what} ({name}): published files must never change; what is there is verified at the next start, which "
    return Fault(f"{words}says what to do", is_of_files=True)


def _mapped_at(address: int, maps: Path) -> str | None:
    for line in maps.read_text(errors="backslashreplace").splitlines():
        # `start-end permissions offset device inode path`, of which the last may hold blanks.
        fields = line.split(None, 5)
        start, _, end = fields[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            path = fields[5] if len(fields) > 5 else ""
            return path.removesuffix(" (deleted)") if path.startswith("/") else None
    return None
