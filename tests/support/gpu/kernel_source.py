"""A folder for kernels, and a kernel outside of the package that is loaded again and again as if by other processes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gnnserve_worker import kernel_folder
from gnnserve_worker.kernel_cache import folder_of, watch_compiling

SOURCE = """
from gnnserve_worker.kernel_cache import kernel

@kernel
def double(values):
    return values + values
"""
_numbers = itertools.count()


def forget_folders() -> None:
    """Let folders be looked for anew, as another process would."""
    kernel_folder.folder_for.cache_clear()
    kernel_folder.source_stamp.cache_clear()


def see_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be compiled from other sources than before, as after an upgrade."""
    monkeypatch.setattr(kernel_folder, "source_stamp", cache(lambda: b"of another version"))
    forget_folders()


class Source:
    """A module with a kernel, that may be imported again and again as if by other processes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "doubling.py"
        self.file.write_text(SOURCE)

    def load(self) -> ModuleType:
        forget_folders()
        spec = importlib.util.spec_from_file_location(f"doubling_{next(_numbers)}", self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def compiles(self, value: np.ndarray) -> bool:
        """Whether another process would, for such an argument."""
        double = self.load().double
        compiled = watch_compiling()
        np.testing.assert_array_equal(double(value), value + value)
        return bool(compiled)

    def kept(self) -> list[Path]:
        folder = folder_of(None)
        return [] if folder is None else sorted(folder.glob("doubling.*.nbc"))


ONES = np.ones(3, np.float32)
OTHERS = np.ones(3, np.int64)


@pytest.fixture
def kernel_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, below which kernels are kept; where they may not, it is below `tmp_path / "home"`."""
    with monkeypatch.context() as patched:
        patched.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
        patched.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        # Python tells bytecode of a source that was written again by its size and whole seconds: it would run the old.
        patched.setattr(sys, "dont_write_bytecode", True)
        forget_folders()
        yield tmp_path / "kernels"
    forget_folders()


@pytest.fixture
def source(tmp_path: Path, kernel_root: Path) -> Source:
    """One whose kernel is kept below that folder."""
    return Source(tmp_path)
