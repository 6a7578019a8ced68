"""Compiled kernels: kept for a level of processors, found where nothing can be written, stale when sources change."""

from __future__ import annotations

import fcntl
import importlib.util
import itertools
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core import caching
from tests.support.small_disk import small_disk

from gnnserve_worker import kernel_cache
from gnnserve_worker.kernel_cache import KERNELS, level, levels, watch_compiling

SOURCE = """
from gnnserve_worker.kernel_cache import kernel

@kernel
def double(values):
    return values + values
"""
_numbers = itertools.count()


class Source:
    """A module with a kernel, that may be imported again and again as if by other processes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "doubling.py"
        self.file.write_text(SOURCE)

    def load(self) -> ModuleType:
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

    def kept(self) -> list[str]:
        return sorted(path.name for path in (self.file.parent / "__pycache__").glob("doubling.*.nbc"))


ONES = np.ones(3, np.float32)
OTHERS = np.ones(3, np.int64)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return Source(tmp_path)


@pytest.fixture
def nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for root, who may write wherever a mode forbids it."""

    def refuse(_locator: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refuse)


def test_kernel_is_compiled_once_for_all_processes(source: Source) -> None:
    assert source.compiles(ONES)
    assert not source.compiles(ONES)
    assert source.compiles(OTHERS)
    assert len(source.kept()) == 2


def test_processes_that_compile_at_once_write_one_after_the_other(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = caching.IndexDataCacheFile.save

    def save_alone(self: Any, key: Any, data: Any) -> None:
        descriptor = os.open(source.file.parent / "__pycache__", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        save(self, key, data)

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", save_alone)

    assert source.compiles(ONES)
    assert not source.compiles(ONES)


def test_where_folders_cannot_be_locked_kernels_are_kept_too(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)

    assert source.compiles(ONES)
    assert not source.compiles(ONES)


def test_kernels_are_listed_for_who_compiles_ahead(source: Source) -> None:
    module = source.load()
    assert KERNELS[f"{module.__name__}.double"] is module.double


def test_kernel_is_found_where_nothing_can_be_written(source: Source, request: pytest.FixtureRequest) -> None:
    assert source.compiles(ONES)
    request.getfixturevalue("nothing_can_be_written")
    assert not source.compiles(ONES)


@pytest.mark.usefixtures("nothing_can_be_written")
def test_kernel_that_cannot_be_kept_runs_all_the_same(source: Source) -> None:
    assert source.compiles(ONES)
    assert source.compiles(ONES)
    assert source.kept() == []


def test_kernel_of_another_type_than_those_shipped_runs_all_the_same(
    source: Source, request: pytest.FixtureRequest
) -> None:
    source.compiles(ONES)
    request.getfixturevalue("nothing_can_be_written")
    assert source.compiles(OTHERS)
    assert len(source.kept()) == 1


def test_damaged_kernel_is_compiled_again_and_named(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.compiles(ONES)
    (name,) = source.kept()
    (source.file.parent / "__pycache__" / name).write_bytes(b"no kernel")
    assert source.compiles(ONES)
    assert "a compiled kernel cannot be loaded" in caplog.text
    assert str(source.file.parent) in caplog.text
    assert not source.compiles(ONES)


def test_damaged_index_is_written_anew(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.compiles(ONES)
    (index,) = (source.file.parent / "__pycache__").glob("doubling.*.nbi")
    index.write_bytes(b"")  # as after a power failure
    assert source.compiles(ONES)
    assert "a compiled kernel cannot be loaded" in caplog.text
    assert not source.compiles(ONES)


def test_change_in_another_file_with_kernels_makes_all_of_them_stale(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "sampling/inlined.py"
    other.parent.mkdir()
    monkeypatch.setattr(kernel_cache, "PACKAGE", tmp_path)
    for text, is_new in (("1", True), ("1", False), ("2", True)):
        other.write_text(text)
        kernel_cache.source_stamp.cache_clear()
        assert source.compiles(ONES) is is_new
    kernel_cache.source_stamp.cache_clear()


def test_code_of_other_sources_is_never_taken_for_code_that_could_not_be_written(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: object, _name: str, _data: object) -> None:
        raise OSError(28, "No space left on device")

    source.compiles(ONES)
    (tmp_path / "sampling").mkdir()
    (tmp_path / "sampling/inlined.py").write_text("2")
    monkeypatch.setattr(kernel_cache, "PACKAGE", tmp_path)
    kernel_cache.source_stamp.cache_clear()
    with monkeypatch.context() as full:
        full.setattr(caching.IndexDataCacheFile, "_save_data", refuse)
        assert source.compiles(ONES)
    assert source.compiles(ONES), "that of the sources before has the name that the index tells"
    assert not source.compiles(ONES)
    kernel_cache.source_stamp.cache_clear()


def test_compiling_is_said_once_with_the_reason(
    source: Source, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache._Cache, "has_missed", False)
    with caplog.at_level(logging.INFO, kernel_cache.__name__):
        source.compiles(ONES)
        source.compiles(OTHERS)
    (line,) = [record.getMessage() for record in caplog.records if "compiling kernels" in record.getMessage()]
    assert str(source.file.parent) in line


V3 = {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", V4 | {"avx512vnni"}, "x86-64-v4"),
        ("x86_64", V4 - {"avx512vl"}, "x86-64-v3"),
        ("x86_64", V3 - {"fma"}, None),
        ("aarch64", {"neon"}, "generic"),
        ("riscv64", set(), None),
    ],
)
def test_level_is_the_best_that_the_processor_has_all_of(
    machine: str, features: set[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache.platform, "machine", lambda: machine)
    monkeypatch.setattr(
        kernel_cache.llvmlite.binding,
        "get_host_cpu_features",
        lambda: {**dict.fromkeys(V4, False), **dict.fromkeys(features, True)},
    )
    assert level() == expected
    assert expected is None or expected in levels()


def test_kernel_on_a_full_disk_runs_all_the_same(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path, kib=256) as disk:
        monkeypatch.setattr(kernel_cache._config, "CACHE_DIR", str(disk.path / "kernels"))
        (disk.path / "kernels").mkdir()
        disk.fill()
        assert source.compiles(ONES)
        disk.free()
        assert source.compiles(ONES), "half a kernel is none"
        assert not source.compiles(ONES)
