"""Both tiers of `make test` are run, shown and counted, whichever ends first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tools import run_tests as run_tests_module
from tools.run_tests import (
    ALONE,
    CLUSTER,
    UNIT,
    Ended,
    GpuVersions,
    Spent,
    Tier,
    commit_count,
    describe,
    exit_code,
    held,
    run_alone,
    run_tiers,
    unit_tiers,
)


def _prints(words: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"import sys; print({words!r}); sys.exit({code})"]


def _unit(command: list[str]) -> list[Tier]:
    return [Tier("unit tier", command)]


def _prints_when_there_is(file: Path, words: str) -> list[str]:
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(file)!r}).exists(): time.sleep(0.01)\nprint({words!r})"
    return [sys.executable, "-c", wait]


@pytest.mark.parametrize(
    ("unit", "cluster", "expected"),
    [
        pytest.param(0, 0, 0, id="both pass"),
        pytest.param(1, 0, 1, id="the unit tier fails"),
        pytest.param(0, 2, 2, id="the cluster tier fails"),
        pytest.param(1, 2, 1, id="both fail"),
    ],
)
def test_a_tier_that_fails_fails_the_whole(unit: int, cluster: int, expected: int, tmp_path: Path) -> None:
    ended = run_tiers(_unit(_prints("3 passed", unit)), _prints("2 passed", cluster), tmp_path / "log")
    assert ended == (Ended("unit tier", unit, "3 passed"), Ended("cluster tier", cluster, "2 passed"))
    assert exit_code(ended) == expected


def test_the_two_run_at_once_and_the_cluster_tier_is_shown_last(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster_began = tmp_path / "began"
    cluster = [sys.executable, "-c", f"print('of the cluster'); open({str(cluster_began)!r}, 'w').close()"]
    ended = run_tiers(_unit(_prints_when_there_is(cluster_began, "of the unit")), cluster, tmp_path / "log")
    shown = capfd.readouterr().out
    assert exit_code(ended) == 0
    assert shown.index("of the unit") < shown.index("=== the cluster tier ===") < shown.index("of the cluster")


def test_what_the_cluster_tier_prints_after_the_unit_tier_is_shown_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unit_ended = tmp_path / "ended"
    unit = [sys.executable, "-c", f"open({str(unit_ended)!r}, 'w').close()"]
    run_tiers(_unit(unit), _prints_when_there_is(unit_ended, "of the cluster, late"), tmp_path / "log")
    assert "of the cluster, late" in capfd.readouterr().out


def test_the_last_lines_are_the_closing_lines_of_both() -> None:
    ended = Ended("unit tier", 0, "== 3 passed in 2.00s =="), Ended("cluster tier", 1, "== 1 failed in 1.00s ==")
    assert describe(ended).splitlines() == [
        "unit tier: passed, cluster tier: FAILED with exit code 1",
        "== 3 passed in 2.00s ==",
        "== 1 failed in 1.00s ==",
    ]


def test_the_closing_line_is_found_though_it_comes_in_pieces(tmp_path: Path) -> None:
    pieces = "import os, time\nfor t in (b'a', b'b\\n== 5', b' passed ', b'==\\n'): os.write(1, t); time.sleep(0.05)"
    unit, _ = run_tiers(_unit([sys.executable, "-c", pieces]), _prints("2 passed"), tmp_path / "log")
    assert unit.closing == "== 5 passed =="


def test_what_runs_alone_is_left_out_before_and_counts() -> None:
    assert f"--ignore={ALONE[-1]}" in CLUSTER
    assert run_alone(_prints("7 passed", 1)) == Ended("cluster under load", 1, "7 passed")


def test_what_tests_compile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    says = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    ended = (*run_tiers(_unit(says), says, tmp_path / "log"), run_alone(says))
    assert [tier.closing for tier in ended] == ["False"] * 3


def test_how_busy_the_processors_were_is_told() -> None:
    before, after = Spent(100.0, 5000.0, 2), Spent(1400.0, 7200.0, 2)
    assert str(after.since(before)) == "1,300 s; processors were busy for 2,200 s of 2,600"


def test_what_the_system_tells_is_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(run_tests_module, "_STAT", stat)
    assert Spent.so_far() is None
    ticks = os.sysconf("SC_CLK_TCK")
    told = []
    for busy in (1, 3):
        stat.write_text(f"cpu  {busy * ticks} 0 0 99 99 0 0 0 0 0\ncpu0 7 7\n")
        told.append(Spent.so_far())
    first, second = told
    assert first is not None and second is not None
    assert second.since(first).busy_s == 2


def test_what_is_held_ends_after_what_is_run_with_it(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    with held([sys.executable, "-c", f"import sys; sys.stdin.read(); open({str(ended)!r}, 'w').close()"]):
        assert not ended.exists()
    assert ended.exists()


def test_tiers_beside_the_cluster_run_one_after_the_other_each_with_its_variables(tmp_path: Path) -> None:
    tells = [sys.executable, "-c", "import os; print(os.environ.get('KIND', 'none'))"]
    units = [Tier("first", tells, {"KIND": "one"}), Tier("second", tells)]
    ended = run_tiers(units, _prints("2 passed"), tmp_path / "log")
    assert [(tier.tier, tier.closing) for tier in ended] == [
        ("first", "one"), ("second", "none"), ("cluster tier", "2 passed")
    ]  # fmt: skip


def test_the_oldest_and_the_newest_versions_take_turns() -> None:
    assert [GpuVersions.of_turn(commits) for commits in (6, 7)] == [GpuVersions.OLDEST, GpuVersions.NEWEST]
    assert commit_count() > 0


@pytest.mark.parametrize(
    ("versions", "with_newest", "with_oldest"),
    [(GpuVersions.NEWEST, True, False), (GpuVersions.OLDEST, False, True), (GpuVersions.BOTH, True, True)],
)
def test_the_gpu_code_is_tested_with_each_version_whose_turn_it_is(
    versions: GpuVersions, with_newest: bool, with_oldest: bool
) -> None:
    unit, *oldest = unit_tiers(versions, "/oldest/bin/python")
    assert unit.command[: len(UNIT)] == UNIT
    assert ("--ignore=tests/gpu" not in unit.command) is with_newest
    assert [("/oldest/bin/python" in tier.command, "tests/gpu" in tier.command) for tier in oldest] == (
        [(True, True)] if with_oldest else []
    )
