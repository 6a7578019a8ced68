"""`gnnserve` of a checkout with its Python calls counted on every thread; `calls.py` starts it.

    python -P counted_server.py SOCKET ARGUMENT…

The checkout's packages are on PYTHONPATH. SOCKET is an inherited file descriptor: each byte that comes is answered by a
line of JSON, all calls so far as [thread, file, line, function, calls]; what is built in has no file and line 0.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Note = Callable[[FrameType, str, Any], None]
_counts: list[tuple[str, dict[int | str, int]]] = []
"""Name of each thread, and its calls: by the id of Python code, or the name of a built-in function."""
_codes: dict[int, CodeType] = {}
"""Code by id: its own hash would be computed of all that is in it."""


def count_here(thread: str) -> Note:
    """A profile function for the thread of that name."""
    counts: dict[int | str, int] = {}
    _counts.append((thread, counts))

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            code = frame.f_code
            key: int | str = id(code)
            _codes.setdefault(id(code), code)
        elif event == "c_call":
            key = called.__qualname__
        else:
            return
        counts[key] = counts.get(key, 0) + 1

    return note


def _begin(frame: FrameType, event: str, called: Any) -> None:
    note = count_here(threading.current_thread().name)
    sys.setprofile(note)
    note(frame, event, called)


def counted() -> list[tuple[str, str, int, str, int]]:
    """As `calls.py` is answered."""
    found = []
    for thread, counts in list(_counts):
        for key, number in list(counts.items()):
            if isinstance(key, str):
                found.append((thread, "", 0, key, number))
            else:
                code = _codes[key]
                found.append((thread, code.co_filename, code.co_firstlineno, code.co_name, number))
    return found


def _answer(asking: socket.socket) -> None:
    while asking.recv(1):
        asking.sendall(json.dumps(counted()).encode() + b"\n")


if __name__ == "__main__":
    _, descriptor, *arguments = sys.argv
    sys.argv = ["gnnserve", *arguments]
    # Before any thread is told to count: this one is none of the server's.
    threading.Thread(target=_answer, args=(socket.socket(fileno=int(descriptor)),), daemon=True).start()
    threading.setprofile(_begin)
    sys.setprofile(count_here("main"))
    runpy.run_module("gnnserve_cli", run_name="__main__")
