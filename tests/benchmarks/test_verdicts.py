"""Every verdict can fail: bad figures are planted into what was measured, and each has to say so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.catalogue import MODULES, benchmark
from benchmarks.results import FOLDER, fragments, merge, plain, read_parts

Change = Callable[[Any, float], Any]
Place = Callable[[int], int]
"""Which of two factors changes what lies so far behind in a list."""


def first_alone(index: int) -> int:
    return min(index, 1)


def every_other(index: int) -> int:
    return index % 2


def planted(
    found: Any, key: str | None, factors: tuple[float, float], place: Place, *, here: bool = False, at: int = 0
) -> Any:
    """The same with every leaf changed that is named so, or lies in what is named so; None: every leaf. Some of each
    list are changed by the first factor, others by the second: many verdicts are of ratios."""
    match found:
        case dict() if found:
            return {
                name: planted(value, key, factors, place, here=here or key in (None, name), at=at)
                for name, value in found.items()
            }
        case list() if found:
            # In a list of texts or numbers, each belongs to what the list belongs to.
            return [
                planted(value, key, factors, place, here=here, at=place(index) if isinstance(value, dict) else at)
                for index, value in enumerate(found)
            ]
    return changed(found, factors[at]) if here else found


def names_in(found: Any) -> set[str]:
    match found:
        case dict():
            return {*found}.union(*map(names_in, found.values()))
        case list():
            return set[str]().union(*map(names_in, found))
    return set()


def changed(value: Any, factor: float) -> Any:
    """A number times as large, a truth value turned, something in what is empty."""
    changes: dict[type, Change] = {
        bool: lambda value, _: not value,
        int: lambda value, factor: round(value * factor) + 1000 * (factor > 1),
        float: lambda value, factor: value * factor,
        dict: lambda *_: {"planted": 1},
        list: lambda *_: ["planted"],
        str: lambda value, _: value or "planted",
    }
    return changes.get(type(value), lambda value, _: value)(value, factor)


def bad_files(found: Any) -> Iterator[Any]:
    for place, key in itertools.product((first_alone, every_other), (None, *sorted(names_in(found)))):
        for factors in ((1e4, 1e4), (1e-4, 1e-4), (0.0, 0.0), (1e-4, 1.0), (1e4, 1.0)):
            yield planted(found, key, factors, place)


@pytest.mark.parametrize("name", MODULES)
def test_every_verdict_fails_where_figures_are_bad(name: str) -> None:
    parts = read_parts(FOLDER / f"{name}.json")
    if not parts:
        pytest.fail(f"{name} has no committed result")
    found = plain(merge(fragments(parts)))
    never_missed = dict.fromkeys(benchmark(name).judged(found))
    for bad in bad_files(found):
        try:
            judged = benchmark(name).judged(bad)
        except (ZeroDivisionError, ValueError):  # figures that nothing can measure
            continue
        for figure, verdict in judged.items():
            if not verdict["passed"]:
                never_missed.pop(figure, None)
        if not never_missed:
            return
    assert not never_missed, "these pass whatever is measured"
