"""Counts of a commit, so that noise is no excuse: calls that a request takes, and modules that one opens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tools.calls import ONE_NODE, count_calls

from benchmarks.commits import Commit
from benchmarks.verdicts import Verdict, at_most

_MOST = {"own": 90, "modules": 20, "others": 112}
"""Wanted of `ONE_NODE`: what it took before the features of a hundred issues, and fewer calls of our own."""
_MOST_OPENED = {"request": 25, "generation": 60}
_WORDS = {"own": "own calls", "modules": "modules", "others": "calls of built-ins and libraries"}
"""By the field of `tools.calls.Calls`."""


def count(commit: Commit) -> dict[str, Any]:
    calls = count_calls(commit.folder, commit.variables)
    kept = (*_WORDS, "elsewhere")
    return {
        "calls": {case: {name: asdict(found)[name] for name in kept} for case, found in calls.items()},
        "opened": _count_opened(commit),
    }


def _count_opened(commit: Commit) -> dict[str, int]:
    """By the commit's own script, since what it opens has names of its own; empty where it has none."""
    if not (commit.folder / "tools/opened.py").exists():
        return {}
    ended = subprocess.run(
        [sys.executable, "-m", "tools.opened", "--json", *_MOST_OPENED], env=commit.variables, cwd=commit.folder,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return {scene: len(found["executed"] + found["held"]) for scene, found in json.loads(ended.stdout).items()}


def count_verdicts(counts: Mapping[str, Any]) -> Iterator[Verdict]:
    """On `counts`, by the name of the commit. Cases without a figure of their own may not rise over the old commit's;
    nothing is wanted of one that the old commit does not know."""
    old = counts["old"]["calls"]
    for case in counts["new"]["calls"]:
        for name, words in _WORDS.items():
            if case == ONE_NODE or case in old:
                most = _MOST[name] if case == ONE_NODE else old[case][name]
                yield Verdict(f"{case}: {words}", at_most(most), _calls(case, name))
    for scene, most in _MOST_OPENED.items():
        yield Verdict(f"modules opened for a {scene}", at_most(most), _opened(scene))


def _calls(case: str, name: str) -> Callable[[Any], Any]:
    return lambda found: found["counts"]["new"]["calls"][case][name]


def _opened(scene: str) -> Callable[[Any], Any]:
    return lambda found: found["counts"]["new"]["opened"][scene]


def count_rows(counts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Rows of a table: a figure, of the old commit and of the new one; "–": it is not known there."""
    for case, found in counts["new"]["calls"].items():
        before = counts["old"]["calls"].get(case, {})
        for name, words in _WORDS.items():
            yield f"{case}: {words}", _told(before.get(name)), _told(found[name])
        moved = [f"{thread}: {number:g}" for thread, number in found["elsewhere"].items()]
        if moved:
            was = [f"{thread}: {number:g}" for thread, number in before.get("elsewhere", {}).items()]
            yield f"{case}: calls on other threads", ", ".join(was) or "–", ", ".join(moved)
    for scene, number in counts["new"]["opened"].items():
        yield f"modules opened for a {scene}", _told(counts["old"]["opened"].get(scene)), _told(number)


def _told(number: float | None) -> str:
    return "–" if number is None else f"{number:g}"
