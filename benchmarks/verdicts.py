"""Verdicts: what was wanted of a figure, what was measured, and whether that meets it.

Pure functions of what was measured. One that cannot fail is none: a test alters what was measured and wants each to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

Found = Any
"""What was measured: JSON values, or `results.Merged`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    words: str
    holds: Callable[[Any], bool]
    """Whether a measured value is what was wanted."""


@dataclass(frozen=True, slots=True)
class Worded:
    """A measured value that is shown in words of its own."""

    value: Any
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    wanted: Wanted
    measure: Callable[[Found], Any]
    """A number, a truth value or `Worded`; None: not measured, and there is no verdict. So do KeyError and LookupError,
    which a part that was not run leaves."""
    reason: str = ""
    """Why it is missed, as far as that is known: a sentence without figures, which would drift."""


def at_most(limit: float, unit: str = "") -> Wanted:
    return Wanted(_words("at most", limit, unit), lambda value: bool(value <= limit))


def below(limit: float, unit: str = "") -> Wanted:
    return Wanted(_words("below", limit, unit), lambda value: bool(value < limit))


def at_least(limit: float, unit: str = "") -> Wanted:
    return Wanted(_words("at least", limit, unit), lambda value: bool(value >= limit))


def above(limit: float, unit: str = "") -> Wanted:
    return Wanted(_words("above", limit, unit), lambda value: bool(value > limit))


def exactly(wanted: Any) -> Wanted:
    return Wanted(f"{wanted}", lambda value: bool(value == wanted))


def that(words: str) -> Wanted:
    """A condition in words; the measured value says whether it is true, mostly as `Worded`."""
    return Wanted(words, lambda value: value is True)


def given(judged: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str] | None = None) -> list[Verdict]:
    """Verdicts that a function has found already, by figure: `wanted` and `measured` in words, and `passed`.

    reasons: why figures are missed, by words of their names; of several the first counts."""
    return [
        Verdict(name, that(f"{one['wanted']}"), partial(_given, one), one.get("reason") or _reason(name, reasons or {}))
        for name, one in judged.items()
    ]


def _reason(figure: str, reasons: Mapping[str, str]) -> str:
    return next((reason for words, reason in reasons.items() if words in figure), "")


def _given(one: Mapping[str, Any], _: Found) -> Worded:
    return Worded(one["passed"], one["measured"])


def judge(verdicts: Iterable[Verdict], found: Found) -> dict[str, dict[str, Any]]:
    """By figure, as result files have it."""
    judged = {}
    for verdict in verdicts:
        try:
            measured = verdict.measure(found)
        except LookupError:
            continue
        if measured is None:
            continue
        value, words = (measured.value, measured.words) if isinstance(measured, Worded) else (measured, measured)
        judged[verdict.name] = {
            "wanted": verdict.wanted.words,
            "measured": words,
            "passed": verdict.wanted.holds(value),
            **({"reason": verdict.reason} if verdict.reason else {}),
        }
    return judged


def _words(how: str, limit: float, unit: str) -> str:
    return f"{how} {limit:,}{f' {unit}' if unit else ''}"


Judge = Callable[[Found], Iterable[Verdict]]
"""Verdicts that depend on what was measured: one for each graph, say."""


def verdicts_of(given: Iterable[Verdict] | Judge, found: Found) -> Iterable[Verdict]:
    return given(found) if callable(given) else given


def failing(judged: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name, verdict in judged.items() if not verdict["passed"]]
