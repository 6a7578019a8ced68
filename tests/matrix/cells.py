"""Cells of docs/capabilities.md: features beside a kind of graph, task and model, and what the page says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from typing import Any

from tests.support.pairwise import pairwise_cover

from gnnserve_api.generated.capabilities import FEATURES, SETUPS, Feature, Setup, is_of_task, merged, refusal_of


@dataclass(frozen=True)
class Cell:
    setup: Setup
    features: tuple[Feature, ...]

    @property
    def refusal(self) -> str | None:
        return refusal_of(self.setup, *self.features)

    @property
    def spec(self) -> dict[str, Any]:
        """What the page's manifest says."""
        return merged(self.setup.spec, *(one.parts for one in self.features))

    def __str__(self) -> str:
        return f"{self.setup.name}: {', '.join(one.name for one in self.features) or 'nothing more'}"


LAYERED = [setup for setup in SETUPS if "program" not in setup.spec["model"]]
"""Those whose model is no program: to export one takes as long as a sample of all others."""
CELLS = [Cell(setup, (feature,)) for setup in SETUPS for feature in FEATURES if is_of_task(setup, feature)]
REFUSED = [cell for cell in CELLS if cell.refusal is not None]
ADMITTED = [*(Cell(setup, ()) for setup in SETUPS), *(cell for cell in CELLS if cell.refusal is None)]


_MEETING = (
    ("variants.channels", "variants.stored", "updates.log"),
    ("variants.oneRow", "variants.cascades", "updates.log"),
    ("routing.canary", "updates.compaction", "updates.log"),
    ("updates.refresh", "variants.channels", "updates.log"),
)
"""Fields, by the beginnings of their paths, that the same code reads all three of: rows that are made anew where the
graph changes, of several networks; stages that follow changes; two revisions, one of which is compacted."""


def sets_of(setup: Setup) -> tuple[Cell, ...]:
    """Cells of several features that have each pair which goes together in one of them, and each three whose fields
    meet."""
    return _sets_of([one.name for one in SETUPS].index(setup.name))


@cache
def _sets_of(place: int) -> tuple[Cell, ...]:
    setup = SETUPS[place]
    able = [cell.features[0] for cell in ADMITTED if cell.setup is setup and cell.features]

    def go_together(chosen: tuple[Feature, ...]) -> bool:
        if any(contradict(one.parts, other.parts) for one, other in permutations(chosen, 2)):
            return False
        return refusal_of(setup, *chosen) is None

    return tuple(Cell(setup, chosen) for chosen in pairwise_cover(able, go_together, _meeting(able)))


def sets_in_turn(turn: int) -> list[Cell]:
    """A set of each kind of graph and task, of `LAYERED`: another one with each turn, until all were there."""
    kinds: dict[tuple[bool, bool], list[Setup]] = {}
    for setup in LAYERED:
        kinds.setdefault(kind_of(setup), []).append(setup)
    found = []
    for setups in kinds.values():
        # Turns of one setup are as far apart as there are setups.
        sets = sets_of(setups[turn % len(setups)])
        found.append(sets[turn // len(setups) % len(sets)])
    return found


def kind_of(setup: Setup) -> tuple[bool, bool]:
    """Whether its graph is of several types, and whether links are scored."""
    return "typed" in setup.spec["graph"]["source"], "task" in setup.spec


def _meeting(able: Sequence[Feature]) -> Iterator[tuple[Feature, Feature, Feature]]:
    """Threes of which each has one of the fields that meet."""
    for fields in _MEETING:
        having = [[one for one in able if _has(one, field)] for field in fields]
        for first, second, third in product(*having):
            if len({first.name, second.name, third.name}) == len(fields):
                yield first, second, third


def _has(feature: Feature, field: str) -> bool:
    return any(path.startswith(field) for path, _ in fields_of(feature.parts))


def contradict(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they say different things of one field, or one names a file of weights and the other an architecture."""
    said = dict(fields_of(one))
    if "model.architecture" in said and any("checkpoint" in f"{field} {value}" for field, value in fields_of(other)):
        return True
    return any(field in said and said[field] != value for field, value in fields_of(other))


def fields_of(parts: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a spec that are no sections, by their paths, as `variants.stored`; an empty section is one."""
    for name, value in parts.items():
        path = f"{under}.{name}" if under else name
        if isinstance(value, Mapping) and value:
            yield from fields_of(value, path)
        else:
            yield path, value
