"""Every verdict can fail: bad figures are planted into what was measured, and each has to say so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.page.catalogue import MODULES, benchmark
from benchmarks.results import FOLDER, fragments, merge, plain, read_parts

Change = Callable[[Any, float], Any]
Key = tuple[str | None, str]
"""A name, and that of what it lies in; None: wherever it lies."""
Place = Callable[[int], int]
"""Which of two factors changes what lies so far behind in a list."""


def first_alone(index: int) -> int:
    return min(index, 1)


def every_other(index: int) -> int:
    return index % 2


def planted(
    found: Any,
    key: Key | None,
    factors: tuple[float, float],
    place: Place,
    *,
    above: str = "",
    here: bool = False,
    at: int = 0,
) -> Any:
    """The same with every leaf changed that has this key, or lies in what has it; None: every leaf. Some of each list
    are changed by the first factor, others by the second: many verdicts are of ratios. `above`: the name of what
    `found` is."""
    match found:
        case dict() if found:
            return {
                name: planted(
                    value,
                    key,
                    factors,
                    place,
                    above=name,
                    here=here or key in (None, (None, name), (above, name)),
                    at=at,
                )
                for name, value in found.items()
            }
        case list() if found:
            # In a list of texts or numbers, each belongs to what the list belongs to.
            return [
                planted(
                    value,
                    key,
                    factors,
                    place,
                    above=above,
                    here=here,
                    at=place(index) if isinstance(value, dict) else at,
                )
                for index, value in enumerate(found)
            ]
    return changed(found, factors[at]) if here else found


def keys_in(found: Any, above: str = "") -> set[Key]:
    """Each name alone, and below the name of what it lies in: of two that are compared, one alone can be bad."""
    match found:
        case dict():
            below = (keys_in(value, name) for name, value in found.items())
            return {(parent, name) for name in found for parent in (None, above)}.union(*below)
        case list():
            return set[Key]().union(*(keys_in(value, above) for value in found))
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
    for place, key in itertools.product(
        (first_alone, every_other),
        (None, *sorted(keys_in(found), key=lambda key: (key[0] is not None, *map(str, key)))),
    ):
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
