"""Something happens around the n-th durable step of a publication: the process ends, or the disk is full.

Steps are the small functions of `repository/files.py`, and the writing of the table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import pytest

from gnnserve_worker.repository import files, revision_files

Act = Callable[[], None]
Moment = Literal["before", "within", "after"]
"""Within: where a step writes data, when half of it is written.

On the disk, after one step is before the next: who kills needs only one of the two, and so does a full disk, which
refuses before it does anything.
"""
STEPS = ("create", "write", "sync", "make_directory", "rename", "remove_file", "remove_tree")


class Interruption:
    """Acts once, at the `number`-th of the given moments."""

    def __init__(self, number: int, moments: Collection[Moment], act: Act) -> None:
        self.passed = 0
        self._number = number
        self._moments = moments
        self._act = act

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in STEPS:
            patch.setattr(files, name, self._around(name, getattr(files, name)))
        patch.setattr(revision_files, "write_rows", self._around("write_rows", revision_files.write_rows))

    @property
    def happened(self) -> bool:
        return self.passed > self._number

    def _pass(self, moment: Moment) -> None:
        if moment not in self._moments:
            return
        self.passed += 1
        if self.passed - 1 == self._number:
            self._act()

    def _around(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted(*arguments: Any) -> Any:
            self._pass("before")
            if name == "write":
                return self._write_half(step, *arguments)
            result = step(*arguments)
            if name == "write_rows":
                self._show_half(arguments[0])
            self._pass("after")
            return result

        return interrupted

    def _write_half(self, step: Callable[..., int], descriptor: int, data: memoryview) -> int:
        """Write a part, as the system may: the caller goes on with the rest."""
        written = step(descriptor, data[: max(1, len(data) // 2)])
        self._pass("after" if written == len(data) else "within")
        return written

    def _show_half(self, path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        self._pass("within")
        path.write_bytes(whole)


def in_child(body: Callable[[], None]) -> int:
    """Exit status of a forked process that runs `body`: 0, what it left with, or 1 for an exception."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
