"""Reads the options of `gnnserve cache simulate`: against one another, and against the graph once it is known.

`given` are the parameters that the user wrote: a default is fitted to the rest, a written value is not.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Model
from gnnserve_cli.render import count
from gnnserve_worker.caching.simulation.simulate import POLICIES
from gnnserve_worker.caching.simulation.traces import TraceKind, TraceSettings

_TRACES = (TraceKind.UNIFORM, TraceKind.ZIPF, TraceKind.MOVING)
_CAPACITIES = (5.0, 10.0, 20.0)
_HOT = (TraceKind.MOVING, TraceKind.RECURRING)
_KINDS_THAT_READ = {
    "requests": tuple(TraceKind),
    "seeds_per_request": tuple(TraceKind),
    "exponent": (TraceKind.ZIPF, TraceKind.DRIFTING),
    "hot_nodes": _HOT,
    "hot_share": _HOT,
    "moves": (*_HOT, TraceKind.DRIFTING),
}
"""Kinds of traces that read a parameter; traces from files read none of them."""


def parse_policies(wanted: list[str] | None) -> list[str]:
    for name in wanted or ():
        if name not in POLICIES:
            raise InputError("--policy", f"{name!r} is none", f"name one of {', '.join(POLICIES)}")
    return [name for name in POLICIES if wanted is None or name in wanted]


def parse_traces(wanted: list[str] | None) -> list[str]:
    names = list(dict.fromkeys(wanted or _TRACES))
    for name in names:
        if name in list(TraceKind):
            continue
        if not Path(name).exists():
            known = ", ".join(TraceKind)
            raise InputError("--trace", f"{name!r} is neither a trace nor a file", f"name one of {known}, or a file")
        # A pipe without a writer would block for ever.
        if not Path(name).is_file():
            raise InputError("--trace", f"{name!r} is no regular file", "write the requests into one, and name that")
    return names


def parse_fanouts(text: str) -> tuple[int, ...]:
    remedy = "write them as 25,10"
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError("--fanouts", f"{text!r} is no list of integers", remedy) from None
    try:
        return Model.model_validate({"fanouts": numbers}).fanouts
    except ValidationError as error:
        detail: Any = error.errors()[0]
    match detail["type"]:
        case "value_error":
            raise InputError("--fanouts", str(detail["ctx"]["error"]))
        case "too_long":
            most = detail["ctx"]["max_length"]
            raise InputError("--fanouts", f"{text!r} is {len(numbers)} layers, expected at most {most}", remedy)
    # What is left are the bounds of one number.
    expected = detail["msg"].removeprefix("Input should be ")
    raise InputError("--fanouts", f"found {detail['input']}, expected {expected}", remedy)


def say_what_changes_nothing(names: Sequence[str], policies: Sequence[str], given: Collection[str]) -> None:
    for parameter, kinds in _KINDS_THAT_READ.items():
        if parameter in given and not set(kinds) & set(names):
            *others, last = kinds
            _note(f"{_option(parameter)} changes nothing: no trace is {', '.join(others)} or {last}")
    if "round_requests" in given and CachePolicy.FREQUENCY not in policies:
        _note(f"--round-requests changes nothing: {CachePolicy.FREQUENCY} is not among the policies")


def fit_moves(settings: TraceSettings, names: Sequence[str], given: Collection[str]) -> TraceSettings:
    """InputError: so many moves were asked for, and there are no requests between them."""
    moving = next((name for name in names if name in _HOT), None)
    if moving is None or settings.moves < settings.requests:
        return settings
    if "moves" in given:
        default = "" if "requests" in given else " (the default)"
        raise InputError(
            "--moves",
            f"{settings.moves:,} are too many for the {settings.requests:,} requests{default} of the {moving} trace",
            "ask for more --requests, or for fewer moves",
        )
    _note(f"--moves is {settings.requests - 1}: its default, {settings.moves}, wants more --requests than that")
    return replace(settings, moves=settings.requests - 1)


def fit_hot_nodes(settings: TraceSettings, names: Sequence[str], nodes: int, given: Collection[str]) -> TraceSettings:
    """InputError: so many were asked for that there is nothing else."""
    if settings.hot_nodes < nodes or not set(_HOT) & set(names):
        return settings
    if "hot_nodes" in given:
        raise InputError(
            "--hot-nodes",
            f"found {settings.hot_nodes:,}, expected fewer than the {count(nodes, 'node')} of the graph",
            "ask for fewer, or nothing is hotter than the rest",
        )
    half = max(1, nodes // 2)
    _note(f"--hot-nodes is {half}, half of the graph's: its default is {settings.hot_nodes:,}")
    return replace(settings, hot_nodes=half)


def rooms_of(percents: list[float] | None, nodes: int) -> dict[float, int]:
    """Nodes that have room, by capacity. InputError: not a single one has."""
    rooms = {percent: round(nodes * percent / 100) for percent in percents or _CAPACITIES}
    for percent, room in rooms.items():
        if room == 0:
            default = "" if percents else " (a default)"
            raise InputError(
                "--capacity",
                f"{percent:g} %{default} of the graph's {count(nodes, 'node')} is less than one",
                f"ask for {100 / nodes:.3g} or more",
            )
    return rooms


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)
