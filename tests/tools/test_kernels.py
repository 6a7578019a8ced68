"""Kernels are compiled once for all clones of the same sources."""

from __future__ import annotations

import pytest
from tests.support.gpu.kernel_source import kernel_root
from tools import kernels

from gnnserve_worker.kernel_cache import EVERYTHING, levels, note_compiled

__all__ = ["kernel_root"]


@pytest.mark.usefixtures("kernel_root")
def test_kernels_are_compiled_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def compile_all(arguments: list[str]) -> int:
        ran.append(arguments)
        for level in (None,) if "--own-level" in arguments else levels():
            note_compiled(EVERYTHING, level)
        return 0

    monkeypatch.setattr(kernels.compile_kernels, "main", compile_all)

    assert [kernels.main([]), kernels.main([])] == [0, 0]
    assert ran == [["--own-level"]]

    # Where a kind of machine has one level alone, those of every level are there by now.
    assert [kernels.main(["--every-level"]), kernels.main(["--every-level"])] == [0, 0]
    assert ran[1:] == ([[]] if len(levels()) > 1 else [])
