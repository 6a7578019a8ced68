"""Parts of a benchmark run one by one, and each says when, where, of what and for how long it ran."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.results import Benchmark, Part, Run, fragments, judge_again, main, merge, plain, read_parts
from benchmarks.verdicts import Verdict, Worded, at_least, at_most, exactly, given, judge, that


def one(run: Run) -> Mapping[str, Any]:
    return {"rows": [{"of": "one", "ms": 1.0 if run.quick else 2.0}], "common": 3}


def two(_: Run) -> Mapping[str, Any]:
    return {"rows": [{"of": "two", "ms": 5.0}], "common": 3}


def absent(_: Run) -> None:
    return None


VERDICTS = (
    Verdict("slowest", at_most(4, "ms"), lambda found: max(row["ms"] for row in found["rows"]), "the disk"),
    Verdict("of nothing", exactly(0), lambda found: found["nothing"]),
)
BENCHMARK = Benchmark(
    "made_up", (Part("one", one), Part("two", two, depends=("docs/data.md",)), Part("absent", absent)), VERDICTS,
    quick=("one",),
)  # fmt: skip


def test_a_part_that_is_run_alone_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    main(BENCHMARK, ["--out", str(tmp_path)])
    file = tmp_path / "made_up.json"
    before = read_parts(file)
    assert list(before) == ["one", "two"], "one part has said that it cannot run"
    assert {"commit", "date", "machine", "versions", "duration_s", "depends", "found"} == before["one"].keys()
    assert "tests/benchmarks/test_parts.py" in before["one"]["depends"]
    assert "docs/data.md" in before["two"]["depends"]
    before["one"]["date"] = before["two"]["date"] = "2026-01-01T00:00:00+00:00"
    file.write_text(json.dumps({"parts": before, "verdicts": {}}))
    main(BENCHMARK, ["--out", str(tmp_path), "--only", "two"])
    after = read_parts(file)
    assert after["one"] == before["one"]
    assert after["two"]["date"] > before["two"]["date"]


def test_all_parts_are_judged_together(tmp_path: Path) -> None:
    main(BENCHMARK, ["--out", str(tmp_path)])
    assert json.loads((tmp_path / "made_up.json").read_text())["verdicts"] == {
        "slowest": {"wanted": "at most 4 ms", "measured": 5.0, "passed": False, "reason": "the disk"}
    }


def test_what_was_measured_is_judged_by_what_is_wanted_today(tmp_path: Path) -> None:
    main(BENCHMARK, ["--out", str(tmp_path)])
    before = read_parts(tmp_path / "made_up.json")
    less = Verdict("slowest", at_most(6, "ms"), lambda found: max(row["ms"] for row in found["rows"]))
    judge_again(dataclasses.replace(BENCHMARK, verdicts=(less,)), tmp_path)
    assert read_parts(tmp_path / "made_up.json") == before
    assert json.loads((tmp_path / "made_up.json").read_text())["verdicts"] == {
        "slowest": {"wanted": "at most 6 ms", "measured": 5.0, "passed": True}
    }


def test_a_reason_is_that_of_the_first_words_in_the_name_of_a_figure() -> None:
    found = {"wanted": 1, "measured": 2, "passed": False}
    judged = judge(
        given(
            {"arxiv, changes": found, "arxiv, reads": found, "starts": {**found, "reason": "the disk"}},
            {"changes": "two tables", "arxiv": "one table", "starts": "unread"},
        ),
        {},
    )
    assert [one["reason"] for one in judged.values()] == ["two tables", "one table", "the disk"]


def test_a_quick_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    main(BENCHMARK, ["--out", str(tmp_path), "--quick"])
    assert [path.name for path in tmp_path.iterdir()] == ["made_up.quick.json"]
    written = json.loads((tmp_path / "made_up.quick.json").read_text())
    assert written["quick"] is True
    assert list(written["parts"]) == ["one"]


def test_with_a_limit_of_minutes_the_oldest_part_is_run_first(tmp_path: Path) -> None:
    main(BENCHMARK, ["--out", str(tmp_path), "--only", "one"])
    ran: list[str] = []
    parts = tuple(Part(part.name, lambda run, part=part: ran.append(part.name)) for part in BENCHMARK.parts)
    main(Benchmark("made_up", parts), ["--out", str(tmp_path), "--minutes", "1"])
    assert ran == ["two", "absent", "one"]
    main(Benchmark("made_up", parts), ["--out", str(tmp_path), "--minutes", "-1"])
    assert len(ran) == 3


def test_an_unknown_part_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(BENCHMARK, ["--out", str(tmp_path), "--only", "three"])
    assert "three: no such part; there are one, two, absent" in capsys.readouterr().err


def test_what_must_pass_ends_with_an_error_where_it_does_not(tmp_path: Path) -> None:
    must = Benchmark("made_up", BENCHMARK.parts, VERDICTS, must_pass=True)
    with pytest.raises(SystemExit, match="failed: slowest"):
        main(must, ["--out", str(tmp_path)])


def test_parts_share_what_is_prepared_around_them(tmp_path: Path) -> None:
    @contextmanager
    def around(run: Run) -> Any:
        assert isinstance(run.options, argparse.Namespace)
        yield "prepared"

    seen: list[Any] = []
    parts = (Part("one", lambda run: seen.append(run.context)), Part("two", lambda run: seen.append(run.context)))
    main(Benchmark("made_up", parts, around=around), ["--out", str(tmp_path)])
    assert seen == ["prepared", "prepared"]


def test_fragments_are_one_value_and_a_reader_is_told_of_which_parts_it_reads() -> None:
    read: list[str] = []
    found = merge(
        fragments({
            "one": {"found": {"rows": [1, 2], "by_name": {"a": 1}, "scalar": 1}},
            "two": {"found": {"rows": [3], "by_name": {"b": 2}, "scalar": 2, "own": {"x": [5]}}},
        }),
        read.append,
    )  # fmt: skip
    assert plain(found) == {"rows": [1, 2, 3], "by_name": {"a": 1, "b": 2}, "scalar": 2, "own": {"x": [5]}}
    read.clear()
    assert found["rows"][2] == 3
    assert read == ["two"]
    read.clear()
    assert found["by_name"]["a"] == 1
    assert read == ["one"]
    read.clear()
    assert found["own"]["x"] == [5]
    assert read == ["two"]
    read.clear()
    assert "b" in found["by_name"] and list(found["by_name"]) == ["a", "b"] and len(found["rows"]) == 3
    assert read == []
    assert found["rows"][1:] == [2, 3]
    with pytest.raises(KeyError):
        found["nothing"]


def test_wanted_and_measured_are_told_in_words() -> None:
    verdicts = (
        Verdict("fast", at_least(1_000, "requests/s"), lambda found: found["rate"]),
        Verdict("right", that("equal to the bit"), lambda found: Worded(found["equal"], "equal after 5")),
        Verdict("unmeasured", exactly(1), lambda _: None),
    )
    assert judge(verdicts, {"rate": 999, "equal": True}) == {
        "fast": {"wanted": "at least 1,000 requests/s", "measured": 999, "passed": False},
        "right": {"wanted": "equal to the bit", "measured": "equal after 5", "passed": True},
    }
