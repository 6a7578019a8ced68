"""Numbers as people read them, and lists of names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gnnserve_api.files.profile import Profile
from gnnserve_api.tiers import ROUNDING
from gnnserve_api.wording import in_words
from gnnserve_cli.render import metric_name

NO_LOSS_POINTS = 100 * ROUNDING
"""Points of accuracy; a smaller difference is the rounding of floats."""


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def points(value: float) -> str:
    """`1.39 points`; never -0.00."""
    number = f"{value:.2f}"
    number = "0.00" if number == "-0.00" else number
    return f"{number} point" if number in {"1.00", "-1.00"} else f"{number} points"


def signed_points(value: float) -> str:
    number = f"{value:+.2f}"
    return "0.00" if number in {"+0.00", "-0.00"} else number.replace("-", "−")


def ms(milliseconds: float) -> str:
    """`0.0213 ms`, `12.3 ms`, `1,230 ms`."""
    return f"{plain_ms(milliseconds)} ms"


def plain_ms(milliseconds: float) -> str:
    """Three digits, and never finer than what is measured, which is 0.1 µs."""
    if abs(milliseconds) < 5e-5:
        return "0"
    shown = number(milliseconds)
    return shown if len(shown.partition(".")[2]) <= 4 else f"{milliseconds:.4f}"


def number(value: float, digits: int = 3) -> str:
    """The number with so many significant digits, without an exponent."""
    if value == 0:
        return "0"
    magnitude = len(f"{abs(value):.{digits - 1}e}".split("e")[0].replace(".", ""))
    exponent = int(f"{abs(value):.{digits - 1}e}".split("e")[1])
    decimals = max(0, magnitude - 1 - exponent)
    return f"{round(value, magnitude - 1 - exponent):,.{decimals}f}"


def names(items: Sequence[str], most: int = 8) -> str:
    """`x1`, `x1 and x2`, `x1, x2 and 15 more`."""
    if len(items) > most:
        return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"
    return in_words(items)


def nodes(number_of: int) -> str:
    return "1 node" if number_of == 1 else f"{number_of:,} nodes"


def nodes_of(split: Literal["validation", "test"], profile: Profile) -> str:
    """`validation nodes`; where links are scored, whose nodes are profiled, `nodes of validation links`."""
    return profile.judged.name_nodes(split)


def items_of(split: Literal["validation", "test"], profile: Profile) -> str:
    """`validation nodes`; where links are scored `validation links`, of which their accuracies are."""
    return f"{split} {profile.judged.item}s"


def gets_right(share: float, profile: Profile) -> str:
    """How accurate a variant is on what validation has."""
    metric, asked = profile.metric, f"{profile.validation_items:,} {items_of('validation', profile)}"
    if metric == "accuracy":
        return f"gets {percent(share)} of {asked} right"
    article = "an" if metric_name(metric).startswith("a") else "a"
    return f"has {article} {metric_name(metric)} of {percent(share)} on {asked}"


def ratio(value: float) -> str:
    """`half` reads worse than `50 %`, and `2.10 times` says more than `210 %`. Nothing is 0 % but 0."""
    if value >= 1.995:
        return f"{number(value)} times"
    return f"{100 * value:.0f} %" if value >= 0.01 else f"{number(100 * value, 1)} %"
