"""Kernels are compiled once for all clones of the same sources."""

from __future__ import annotations

import pytest
from tests.support.gpu.kernel_source import kernel_root
from tools import kernels

from gnnserve_worker.kernel_cache import EVERYTHING, note_compiled

__all__ = ["kernel_root"]


@pytest.mark.usefixtures("kernel_root")
def test_kernels_are_compiled_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def compile_all(arguments: list[str]) -> int:
        ran.append(arguments)
        note_compiled(EVERYTHING)
        return 0

    monkeypatch.setattr(kernels.compile_kernels, "main", compile_all)
    monkeypatch.setattr("sys.argv", ["kernels"])

    assert [kernels.main(), kernels.main()] == [0, 0]
    assert ran == [["--own-level"]]
