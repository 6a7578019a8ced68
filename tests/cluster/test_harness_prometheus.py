"""Where the programs of Prometheus come from; that they work is in test_rules.py and test_routing.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.harness import prometheus
from tests.cluster.harness.layout import Layout


def write_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{folder.name}'s {name}")
    return folder


def nothing_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus.shutil, "which", lambda _: None)


def test_programs_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = write_programs(tmp_path / "installed", *prometheus.PROGRAMS)
    monkeypatch.setattr(prometheus.shutil, "which", lambda name: str(installed / name))
    folder = prometheus.unpack(Layout(tmp_path))
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        name: f"installed's {name}" for name in prometheus.PROGRAMS
    }


def test_what_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_on_path(monkeypatch)
    there = write_programs(tmp_path / "prometheus", *prometheus.PROGRAMS)
    assert prometheus.unpack(Layout(tmp_path)) == there


def test_one_of_them_alone_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_on_path(monkeypatch)
    write_programs(tmp_path / "prometheus", "promtool")
    package = write_programs(tmp_path / "package", *prometheus.PROGRAMS)
    monkeypatch.setattr(prometheus, "_from_debian", lambda _: [package / name for name in prometheus.PROGRAMS])
    folder = prometheus.unpack(Layout(tmp_path))
    assert (folder / "promtool").read_text() == "package's promtool"
    assert (folder / "prometheus").is_file()
