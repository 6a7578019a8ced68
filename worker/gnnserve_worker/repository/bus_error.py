"""Last words of a process that touches a mapped file beyond its end.

Who cuts a mapped file short ends whoever reads it there: the kernel sends SIGBUS, and nothing can be computed on from.
Left alone that is an exit by signal 7 without a word. Here it is one sentence that names the file, and an exit code.

Python's own signal handlers run between two instructions of the interpreter, which a thread that faults never gets to,
so the handler is given to the system directly. It runs Python all the same: the fault is the thread's own, at a known
kind of place (a kernel, a copy, a hash), not in the middle of the interpreter.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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
    """As much of `siginfo_t` as is needed."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("address", ctypes.c_void_p),
    )


_kept: list[object] = []
"""The system keeps the handler for ever, so Python must."""


def exit_on_bus_error(say: Callable[[str], None], code: int) -> None:
    """From now on, in every thread: `say` gets the sentence, then the process ends with `code`."""

    def handle(_number: int, information: int, _context: int) -> None:
        # A return would run into the same fault again, for ever.
        try:
            with suppress(BaseException):
                say(describe(_Information.from_address(information).address or 0))
        finally:
            os._exit(code)

    handler = _Handler(handle)
    action = _Action(handler=handler, flags=_SA_SIGINFO)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sigaction(signal.SIGBUS, ctypes.byref(action), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    _kept.append(handler)


def describe(address: int, maps: Path = Path("/proc/self/maps")) -> str:
    """What is mapped there, and what must have happened to it."""
    path = _mapped_at(address, maps)
    if path is None:
        return f"memory at {address:#x} could not be read (SIGBUS): a fault of the machine; look at its kernel's log"
    return (
        f"{path}: was cut short, or can no longer be read, while it was mapped (SIGBUS): published files must never "
        "change; what is there is verified at the next start, which says what to do"
    )


def _mapped_at(address: int, maps: Path) -> str | None:
    for line in maps.read_text(errors="backslashreplace").splitlines():
        # `start-end permissions offset device inode path`, of which the last may hold blanks.
        fields = line.split(None, 5)
        start, _, end = fields[0].partition("-")
        if int(start, 16) <= address < int(end, 16):
            path = fields[5] if len(fields) > 5 else ""
            return path.removesuffix(" (deleted)") if path.startswith("/") else None
    return None
