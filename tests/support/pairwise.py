"""Few sets of things that have every pair of them in one set at least: a cover of pairs, found greedily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TypeVar

Thing = TypeVar("Thing")


def pairwise_cover(
    things: Sequence[Thing], go_together: Callable[[tuple[Thing, ...]], bool]
) -> list[tuple[Thing, ...]]:
    """Sets, each in the order of `things`, in which all go together. Every pair of which that can be said is in one.

    `go_together` is asked of two things and more. A set begins with a pair that none has yet, and takes whatever brings
    most pairs more, the first of those that bring as many.
    """
    places = range(len(things))

    def fits(chosen: Sequence[int]) -> bool:
        return go_together(tuple(things[place] for place in sorted(chosen)))

    missing = {pair for pair in combinations(places, 2) if fits(pair)}
    found: list[tuple[Thing, ...]] = []
    while missing:
        chosen = [*min(missing)]
        rest = [place for place in places if place not in chosen]
        while rest:
            gains = {place: sum((min(place, one), max(place, one)) in missing for one in chosen) for place in rest}
            best = max(rest, key=lambda place: (gains[place], -place))
            if not gains[best]:
                break
            rest.remove(best)
            if fits([*chosen, best]):
                chosen.append(best)
        missing -= {*combinations(sorted(chosen), 2)}
        found.append(tuple(things[place] for place in sorted(chosen)))
    return found
