"""Kernels that were compiled for one clone are found by the next one, all of them or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools import kernels


def _package(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return folder


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_what_is_kept_is_what_was_compiled_and_nothing_else(tmp_path: Path) -> None:
    compiled = {"tables/__pycache__/gather._gather-1.py311.nbi", "tables/__pycache__/gather._gather-1.py311.1.nbc"}
    compiled.add("graph/__pycache__/compiled.0123456789abcdef.nbm")
    package = _package(tmp_path / "package", *compiled, "tables/gather.py", "tables/__pycache__/gather.pyc")

    kernels.keep(package, tmp_path / "kept" / "a")

    assert _files(tmp_path / "kept") == {f"a/{name}" for name in compiled}
    assert kernels.copy_kernels(tmp_path / "kept" / "a", tmp_path / "clone") == len(compiled)
    assert _files(tmp_path / "clone") == compiled
    assert kernels.copy_kernels(tmp_path / "kept" / "b", tmp_path / "clone") == 0


def test_the_oldest_versions_are_forgotten(tmp_path: Path) -> None:
    package = _package(tmp_path / "package", "tables/__pycache__/a.nbc")
    for age in range(6, 0, -1):
        kernels.keep(package, tmp_path / "kept" / str(age))
        os.utime(tmp_path / "kept" / str(age), (1e9 - age, 1e9 - age))

    kernels.keep(package, tmp_path / "kept" / "now")

    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"now", "1", "2", "3"}


def test_each_version_of_the_sources_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = kernels.kept_here()
    assert kernels.kept_here() == here
    monkeypatch.setattr(kernels, "source_stamp", lambda: b"other sources")
    assert kernels.kept_here() != here
