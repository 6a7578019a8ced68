"""Compiled kernels: kept for a level of processors, found where nothing can be written, stale when sources change."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.gpu.kernel_source import (
    ONES,
    OTHERS,
    SOURCE,
    Source,
    forget_folders,
    kernel_root,
    see_other_sources,
    source,
)
from tests.support.machine.read_only import read_only
from tests.support.machine.small_disk import small_disk

from gnnserve_worker import kernel_cache, kernel_folder
from gnnserve_worker.kernel_cache import (
    EVERYTHING,
    KERNELS,
    can_be_kept,
    copy_compiled,
    folder_of,
    level,
    levels,
    note_compiled,
)

__all__ = ["kernel_root", "source"]


def test_kernel_is_compiled_once_for_all_processes(source: Source) -> None:
    assert source.compiles(ONES)
    assert not source.compiles(ONES)
    assert source.compiles(OTHERS)
    assert len(source.kept()) == 2


def test_process_of_its_own_finds_what_another_compiled(source: Source) -> None:
    """What is found by an import once more, above, is found by a process too."""
    program = "import doubling, numpy; from gnnserve_worker.kernel_cache import watch_compiling\n"
    program += "compiled = watch_compiling(); doubling.double(numpy.ones(3, numpy.float32)); print(len(compiled))"
    environ = {**os.environ, "PYTHONPATH": str(source.file.parent)}
    said = [subprocess.check_output([sys.executable, "-c", program], env=environ, text=True) for _ in range(2)]
    assert int(said[0]) > 0
    assert int(said[1]) == 0


def test_processes_that_compile_at_once_write_one_after_the_other(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.compiles(ONES)
    folder = source.kept()[0].parent
    waits = threading.Event()
    lock = fcntl.flock

    def tell(descriptor: int, operation: int) -> None:
        waits.set()
        lock(descriptor, operation)

    other_process = os.open(folder, os.O_RDONLY)
    lock(other_process, fcntl.LOCK_EX)
    monkeypatch.setattr(fcntl, "flock", tell)
    compiling = threading.Thread(target=source.compiles, args=(OTHERS,))
    compiling.start()
    assert waits.wait(60)
    assert len(source.kept()) == 1
    os.close(other_process)
    compiling.join()

    assert len(source.kept()) == 2
    other_process = os.open(folder, os.O_RDONLY)
    lock(other_process, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other_process)
    assert not source.compiles(ONES)
    assert not source.compiles(OTHERS)


def test_where_folders_cannot_be_locked_kernels_are_kept_too(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)

    assert source.compiles(ONES)
    assert not source.compiles(ONES)


def test_kernels_are_listed_for_who_compiles_ahead(source: Source) -> None:
    module = source.load()
    assert KERNELS[f"{module.__name__}.double"] is module.double


def test_kernel_is_found_where_nothing_can_be_written(source: Source, tmp_path: Path) -> None:
    assert source.compiles(ONES)
    with read_only(tmp_path / "kernels"):
        assert not source.compiles(ONES)
        assert not can_be_kept()
    assert can_be_kept()


def test_kernel_that_cannot_be_kept_runs_all_the_same(source: Source, tmp_path: Path) -> None:
    for folder in ("kernels", "home"):
        (tmp_path / folder).mkdir()
    with read_only(tmp_path / "kernels"), read_only(tmp_path / "home"):
        assert source.compiles(ONES)
        assert source.compiles(ONES)
        assert folder_of(None) is None
        assert not can_be_kept()


def test_kernel_of_an_installation_that_cannot_be_written_is_kept_in_the_users_folder(
    source: Source, tmp_path: Path
) -> None:
    (tmp_path / "kernels").mkdir()
    with read_only(tmp_path / "kernels"):
        assert source.compiles(ONES)
        assert not source.compiles(ONES)
        assert source.kept()[0].is_relative_to(tmp_path / "home/gnnserve/kernels")


def test_kernel_of_another_type_than_those_shipped_runs_all_the_same(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel_cache._say_not_kept.cache_clear()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    with monkeypatch.context() as building:
        building.setenv("NUMBA_CACHE_DIR", str(tmp_path / "shipped"))
        source.compiles(ONES)
    monkeypatch.setattr(kernel_folder, "SHIPPED", tmp_path / "shipped")
    with read_only(tmp_path / "shipped"):
        assert not source.compiles(ONES)
        assert source.compiles(OTHERS)
        assert source.compiles(OTHERS)
        assert len(source.kept()) == 1
    assert "compiled kernels are not kept" in caplog.text


def test_damaged_kernel_is_compiled_again_and_named(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.compiles(ONES)
    (path,) = source.kept()
    path.write_bytes(b"no kernel")
    assert source.compiles(ONES)
    assert "a compiled kernel cannot be loaded" in caplog.text
    assert str(path.parent) in caplog.text
    assert not source.compiles(ONES)


@pytest.mark.parametrize("damaged", ["nbi", "nbc"])
def test_damaged_kernel_that_cannot_be_written_anew_runs_all_the_same(
    damaged: str, source: Source, tmp_path: Path
) -> None:
    source.compiles(ONES)
    (path,) = source.kept()[0].parent.glob(f"doubling.*.{damaged}")
    path.write_bytes(b"")
    with read_only(tmp_path / "kernels"):
        assert source.compiles(ONES)
    assert path.read_bytes() == b""


def test_damaged_index_is_written_anew(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.compiles(ONES)
    (index,) = source.kept()[0].parent.glob("doubling.*.nbi")
    index.write_bytes(b"")  # as after a power failure
    assert source.compiles(ONES)
    assert "a compiled kernel cannot be loaded" in caplog.text
    assert not source.compiles(ONES)


def test_error_of_compiling_is_the_callers(source: Source) -> None:
    source.file.write_text(SOURCE.replace("values + values", "values.nothing_of_arrays"))
    with pytest.raises(Exception, match="nothing_of_arrays"):
        source.load().double(ONES)


def test_change_in_another_file_with_kernels_makes_all_of_them_stale(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "sampling/inlined.py"
    other.parent.mkdir()
    monkeypatch.setattr(kernel_folder, "PACKAGE", tmp_path)
    for text, is_new in (("1", True), ("1", False), ("2", True), ("1", False)):
        other.write_text(text)
        assert source.compiles(ONES) is is_new


def test_change_in_its_own_file_makes_a_kernel_stale_outside_of_the_folders_with_kernels(source: Source) -> None:
    source.file.write_text("SUMMAND = 1\n" + SOURCE.replace("values + values", "values + SUMMAND"))
    assert source.load().double(ONES)[0] == 2
    source.file.write_text("SUMMAND = 2\n" + SOURCE.replace("values + values", "values + SUMMAND"))
    assert source.load().double(ONES)[0] == 3


def test_folders_of_old_sources_are_forgotten(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "sampling/inlined.py"
    other.parent.mkdir()
    (tmp_path / "kernels/of another program").mkdir(parents=True)
    monkeypatch.setattr(kernel_folder, "PACKAGE", tmp_path)
    monkeypatch.setattr(kernel_folder, "_MOST_FOLDERS", 2)
    for number in range(4):
        other.write_text(str(number))
        source.compiles(ONES)
        folder = folder_of(None)
        assert folder is not None
        os.utime(folder, (number, number))
    assert len(list((tmp_path / "kernels").iterdir())) == 3
    assert not source.compiles(ONES)


def test_kernels_compiled_elsewhere_are_copied_where_everything_was_compiled(
    source: Source, kernel_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (name := level()) is not None
    source.compiles(ONES)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "image"))
    forget_folders()
    assert not copy_compiled(kernel_root, name)

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kernel_root))
    forget_folders()
    note_compiled(EVERYTHING)
    source.compiles(OTHERS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "image"))
    forget_folders()

    assert copy_compiled(kernel_root, name)
    assert not source.compiles(ONES)
    assert source.compiles(OTHERS), "compiled after everything was, for a test perhaps"


def test_kernels_of_other_sources_are_not_copied(
    source: Source, kernel_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (name := level()) is not None
    source.compiles(ONES)
    note_compiled(EVERYTHING)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "image"))
    see_other_sources(monkeypatch)

    assert not copy_compiled(kernel_root, name)


def test_compiling_is_said_once_with_the_reason(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    kernel_cache._say_compiling.cache_clear()
    with caplog.at_level(logging.INFO, kernel_cache.__name__):
        source.compiles(ONES)
        source.compiles(OTHERS)
    (line,) = [record.getMessage() for record in caplog.records if "compiling kernels" in record.getMessage()]
    assert str(folder_of(None)) in line


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
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(disk.path / "kernels"))
        (disk.path / "kernels").mkdir()
        disk.fill()
        assert source.compiles(ONES)
        disk.free()
        assert source.compiles(ONES), "half a kernel is none"
        assert not source.compiles(ONES)
