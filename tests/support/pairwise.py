"""Few sets of things that have wanted pairs and triples of them together: a cover, found greedily."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Thing = TypeVar("Thing")


def pairwise_cover(
    things: Sequence[Thing],
    go_together: Callable[[tuple[Thing, ...]], bool],
    triples: Iterable[tuple[Thing, Thing, Thing]] = (),
) -> list[tuple[Thing, ...]]:
    """Sets, each in the order of `things`, in which all go together. Every pair of which that can be said is in one,
    and so is every one of the triples.

    `go_together` is asked of two things and more. A set begins with what is together in none yet, a triple before a
    pair, and takes whatever brings most of these more, the first of those that bring as much.
    """
    places = range(len(things))

    def fits(chosen: Iterable[int]) -> bool:
        return go_together(tuple(things[place] for place in sorted(chosen)))

    of_three = {tuple(sorted(map(things.index, three))) for three in triples}
    missing = {wanted for wanted in (*combinations(places, 2), *of_three) if fits(wanted)}
    found: list[tuple[Thing, ...]] = []
    while missing:
        chosen = {*min(missing, key=lambda wanted: (-len(wanted), wanted))}
        rest = [place for place in places if place not in chosen]
        while rest:
            gains = {place: _gain(place, chosen, missing) for place in rest}
            best = max(rest, key=lambda place: (gains[place], -place))
            if not gains[best]:
                break
            rest.remove(best)
            if fits({*chosen, best}):
                chosen.add(best)
        missing = {wanted for wanted in missing if not chosen.issuperset(wanted)}
        found.append(tuple(things[place] for place in sorted(chosen)))
    return found


def _gain(place: int, chosen: set[int], missing: Iterable[tuple[int, ...]]) -> float:
    """Of what is missing and has the place, how much is chosen already: all of it counts 1."""
    having = (wanted for wanted in missing if place in wanted)
    return sum(len(chosen.intersection(wanted)) / (len(wanted) - 1) for wanted in having)
