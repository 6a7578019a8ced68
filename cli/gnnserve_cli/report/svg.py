"""Plots as inline SVG: scales, axes, labels that keep out of each other's way. Knows nothing of reports.

Colours and fonts are the page's (`html.py`), by class, so that one drawing serves light, dark and paper. Every text is
escaped here, the only place where markup is made of it. Widths of texts are estimates: there is no font to ask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

_CHARACTER_PX = 6.3
"""Of the 11 px text of a plot, on the wide side."""
_PIECE_PX = 6.0
"""Of a line, that is one area for labels to keep off."""
_LOG_FROM = 6.0
"""Largest over smallest value from which an axis is logarithmic: below it, a linear one shows proportions better."""


def text_width(text: str) -> float:
    return _CHARACTER_PX * len(text)


def shorten(text: str, most_px: float) -> str:
    most = max(4, int(most_px / _CHARACTER_PX + 1e-6))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def element(tag: str, attributes: dict[str, object], *children: str) -> str:
    """`class_` is `class`; numbers get one decimal; None leaves an attribute out."""
    told = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{told}>{''.join(children)}</{tag}>" if children else f"<{tag}{told}/>"


def _value(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


# --- scales


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    start: float
    """Where `low` is drawn, in pixels; `end`: where `high` is."""
    end: float
    log: bool = False
    steps: tuple[float, ...] = ()
    """Where lines and numbers go."""

    def at(self, value: float) -> float:
        if self.log:
            # What is not above 0 has no place on such an axis: it lies at its beginning.
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def spread_scale(values: Iterable[float], start: float, end: float, most_steps: int = 6) -> Scale:
    """For positions: logarithmic where values are far apart, otherwise linear, not from 0."""
    found = [value for value in values if math.isfinite(value)]
    low, high = min(found), max(found)
    if low > 0 and high / low >= _LOG_FROM:
        return _log_scale(low, high, start, end, most_steps)
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return _linear_scale(max(0.0, low - margin) if low >= 0 else low - margin, high + margin, start, end, most_steps)


def zero_scale(values: Iterable[float], start: float, end: float, most_steps: int = 5) -> Scale:
    """For lengths: always from 0."""
    high = max((value for value in values if math.isfinite(value)), default=0.0) or 1.0
    return _linear_scale(0.0, high * 1.02, start, end, most_steps)


def fixed_scale(low: float, high: float, start: float, end: float, most_steps: int = 5) -> Scale:
    return _linear_scale(low, high, start, end, most_steps)


def _linear_scale(low: float, high: float, start: float, end: float, most_steps: int) -> Scale:
    raw = (high - low) / max(1, most_steps)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    steps = [round(index * step, 12) for index in range(first, first + most_steps + 2)]
    return Scale(low, high, start, end, False, tuple(value for value in steps if value <= high + step * 1e-9))


def _log_scale(low: float, high: float, start: float, end: float, most_steps: int) -> Scale:
    low, high = low / 1.15, high * 1.15
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        steps = [factor * 10.0**power for power in powers for factor in factors]
        steps = [round(step, 9) for step in steps if low <= step <= high]
        if len(steps) <= most_steps:
            break
    if len(steps) > most_steps:
        steps = steps[:: math.ceil(len(steps) / most_steps)]
    return Scale(low, high, start, end, True, tuple(steps))


def tick(value: float) -> str:
    return f"{value:,.10g}"


# --- a plot


@dataclass(frozen=True, slots=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def distance(self, x: float, y: float) -> float:
        return math.hypot(max(self.left - x, 0.0, x - self.right), max(self.top - y, 0.0, y - self.bottom))


@dataclass(slots=True)
class Plot:
    """A drawing under way, and the areas where no label may go any more."""

    width: float
    height: float
    label: str
    """What is drawn, in words, for who does not see it."""
    parts: list[str] = field(default_factory=list)
    taken: list[Box] = field(default_factory=list)
    marks: list[tuple[float, float]] = field(default_factory=list)

    def add(self, tag: str, *children: str, **attributes: object) -> None:
        self.parts.append(element(tag, attributes, *children))

    def text(self, x: float, y: float, text: str, class_: str | None = None, anchor: str | None = None) -> None:
        self.parts.append(element("text", {"x": x, "y": y, "class": class_, "text-anchor": anchor}, escape(text)))

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)

    def path(self, points: Sequence[tuple[float, float]], class_: str) -> None:
        """Labels keep off it, as they do off `whisker`."""
        if points:
            drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.add("path", d=f"M{drawn}", class_=class_)
        for start, end in pairwise(points):
            self._take_line(*start, *end)

    def whisker(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.line(x1, y1, x2, y2, class_)
        self._take_line(x1, y1, x2, y2)

    def _take_line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        pieces = max(1, math.ceil(max(abs(x2 - x1), abs(y2 - y1)) / _PIECE_PX))
        for piece in range(pieces):
            ends = [(x1 + (x2 - x1) * at / pieces, y1 + (y2 - y1) * at / pieces) for at in (piece, piece + 1)]
            (left, top), (right, bottom) = ends
            self.taken.append(
                Box(min(left, right) - 1, min(top, bottom) - 1, max(left, right) + 1, max(top, bottom) + 1)
            )

    def mark(self, x: float, y: float, class_: str, told: str, *, shape: str = "circle", radius: float = 5.0) -> None:
        """A point that says what it is to a pointer that rests on it."""
        title = element("title", {}, escape(told))
        if shape == "diamond":
            r = radius * 1.25
            drawn = f"M{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}L{x - r:.1f} {y:.1f}Z"
            self.add("path", title, d=drawn, class_=class_)
        else:
            self.add("circle", title, cx=x, cy=y, r=radius, class_=class_)
        self.taken.append(Box(x - radius, y - radius, x + radius, y + radius))
        self.marks.append((x, y))

    def bar(self, x: float, y: float, width: float, height: float, class_: str, told: str) -> None:
        self.add(
            "rect", element("title", {}, escape(told)), x=x, y=y, width=max(0.0, width), height=height, class_=class_
        )

    def x_axis(self, scale: Scale, top: float, bottom: float, format_: Callable[[float], str] = tick) -> None:
        last_end = -math.inf
        for step in scale.steps:
            x = scale.at(step)
            self.line(x, top, x, bottom, "grid")
            shown = format_(step)
            half = text_width(shown) / 2
            middle = min(max(x, half), self.width - half)
            if middle - half > last_end + 4:
                self.text(middle, bottom + 15, shown, anchor="middle")
                self.taken.append(Box(middle - half, bottom + 5, middle + half, bottom + 18))
                last_end = middle + half

    def y_axis(self, scale: Scale, left: float, right: float, format_: Callable[[float], str] = tick) -> None:
        for step in scale.steps:
            y = scale.at(step)
            self.line(left, y, right, y, "grid")
            self.text(left - 6, y + 4, format_(step), anchor="end")
            self.taken.append(Box(0, y - 7, left - 6, y + 5))

    def try_label(self, x: float, y: float, text: str, class_: str = "name", gap: float = 8.0) -> bool:
        """Beside a point, where there is room; left out where there is none, since the table has it."""
        width = text_width(text)
        for left, base in (
            (x + gap, y + 4),
            (x - gap - width, y + 4),
            (x - width / 2, y - gap),
            (x - width / 2, y + gap + 9),
            (x + gap * 0.7, y - gap * 0.9),
            (x + gap * 0.7, y + gap * 0.9 + 9),
            (x - gap * 0.7 - width, y - gap * 0.9),
            (x - gap * 0.7 - width, y + gap * 0.9 + 9),
        ):
            box = Box(left, base - 10, left + width, base + 3)
            inside = box.left >= 0 and box.right <= self.width and box.top >= 0 and box.bottom <= self.height
            # Nearer to another point than to its own, a label would name the wrong one.
            mine = all(box.distance(x, y) <= box.distance(*mark) for mark in self.marks)
            if inside and mine and not any(box.overlaps(other) for other in self.taken):
                self.taken.append(box)
                self.text(left, base, text, class_)
                return True
        return False

    def render(self, class_: str) -> str:
        return element(
            "svg",
            {
                "class": class_,
                "role": "img",
                "aria-label": self.label,
                "viewBox": f"0 0 {self.width:.0f} {self.height:.0f}",
            },
            *self.parts,
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Of a bar."""

    value: float
    class_: str
    told: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    parts: tuple[Part, ...]
    """Beside each other from 0."""
    shown: str
    """At its end."""
    marker: float | None = None
    """A line across the bar."""


def bar_plot(bars: Sequence[Bar], width: float, label: str, title: str = "", high: float | None = None) -> Plot:
    """Horizontal bars, one under the other, from 0; what does not fit of a name is cut."""
    row, thick, top = 19.0, 12.0, 20.0 if title else 6.0
    plot = Plot(width, top + row * len(bars) + 22, label)
    left = min(max(text_width(bar.name) for bar in bars) + 10, width * 0.34)
    room = max(text_width(bar.shown) for bar in bars) + 8
    totals = [sum(part.value for part in bar.parts) for bar in bars]
    values = [*totals, *(bar.marker for bar in bars if bar.marker is not None)]
    most_steps = max(2, int((width - left - room) / 70))
    if high is None:
        scale = zero_scale(values, left, width - room, most_steps)
    else:
        scale = fixed_scale(0, high, left, width - room, most_steps)
    if title:
        plot.text(0, 12, title, "title")
    bottom = top + row * len(bars)
    plot.x_axis(scale, top - 2, bottom)
    for index, (bar, total) in enumerate(zip(bars, totals, strict=True)):
        y = top + index * row + (row - thick) / 2
        plot.text(left - 6, y + thick - 2, shorten(bar.name, left - 10), "name", anchor="end")
        at = 0.0
        for part in bar.parts:
            x = scale.at(at)
            plot.bar(x, y, scale.at(at + part.value) - x, thick, part.class_, part.told)
            at += part.value
        end = scale.at(total)
        if bar.marker is not None:
            x = scale.at(bar.marker)
            plot.line(x, y - 2, x, y + thick + 2, "marker")
            end = max(end, x)
        plot.text(end + 5, y + thick - 2, bar.shown)
    return plot
