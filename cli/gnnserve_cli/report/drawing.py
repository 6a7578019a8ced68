"""Drawings by matplotlib, as inline SVG in the colours of a page. Knows nothing of reports.

matplotlib draws in placeholder colours, one for each colour of `style.css`; `render` puts the page's variable in their
place, so that one drawing serves light, dark and paper. Styles become attributes of SVG, because the page's policy
allows no style but its own. Texts stay texts, in the font of the page. matplotlib lays them out in DejaVu Sans, which
is wider than the fonts of browsers: what fits here fits there.

The only module of the report that imports matplotlib, which takes a second: only commands that draw a page import it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from io import StringIO
from typing import Any, Self
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Circle, Rectangle, RegularPolygon
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, IdentityTransform

WIDTHS = {"wide": 760.0, "narrow": 360.0}
"""Pixels by class of `style.css`. Every figure is drawn for both, and the style shows the one for the screen: text in a
drawing that was merely made smaller could not be read on a phone."""
_COLOURS = (
    "text", "soft", "grid", "card", "good", "bad", "warn", "c1", "c2", "c3", "float32", "float16", "bfloat16", "int8",
)  # fmt: skip
"""Variables of `style.css`; the placeholder of one is its number."""
_LOG_FROM = 6.0
"""Largest over smallest value from which an axis is logarithmic: below it, a linear one shows proportions better."""
_TEXT_PX = 11.0
_FONT = FontProperties(size=_TEXT_PX)
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": _TEXT_PX,
    "text.parse_math": False,
    "lines.scale_dashes": False,
    "lines.solid_capstyle": "butt",
}
_TOLD = "told:"
"""Marks an artist's id as the text that the browser shows while the pointer rests on it."""
_NO_METADATA: dict[str, Any] = dict.fromkeys(("Creator", "Date", "Format", "Type"))


class MarkShape(StrEnum):
    """Shape of a mark; also the class of its sign in the key of a figure."""

    CIRCLE = "circle"
    DIAMOND = "diamond"
    TRIANGLE = "triangle"
    SQUARE = "square"
    PENTAGON = "pentagon"


_CORNERS: Mapping[MarkShape, int] = {
    MarkShape.CIRCLE: 0,
    MarkShape.DIAMOND: 4,
    MarkShape.TRIANGLE: 3,
    MarkShape.SQUARE: 4,
    MarkShape.PENTAGON: 5,
}
_TURNS: Mapping[MarkShape, float] = {MarkShape.SQUARE: math.pi / 4}
"""Radians by which a shape is turned; 0 where it is absent, with a corner on top."""


def colour(name: str) -> str:
    """The placeholder of a colour of the page."""
    return f"#0000{1 + _COLOURS.index(name):02x}"


def show(draw: Callable[[float], Drawing | None]) -> Markup:
    """The figure for every width; empty where there is nothing to draw."""
    with rc_context(_STYLE):
        drawn = [(class_, draw(width)) for class_, width in WIDTHS.items()]
        return Markup("").join(one.render(class_) for class_, one in drawn if one is not None)


def text_width(text: str) -> float:
    width, _, _ = text_to_path.get_text_width_height_descent(text, _FONT, ismath=False)
    return float(width)


def shorten(text: str, most_px: float) -> str:
    if text_width(text) <= most_px:
        return text
    kept = next((end for end in range(len(text) - 1, 3, -1) if text_width(f"{text[:end]}…") <= most_px), 3)
    return f"{text[:kept]}…"


# --- scales


@dataclass(frozen=True, slots=True)
class Scale:
    low: float
    high: float
    most_steps: int
    log: bool = False


def position_scale(values: Iterable[float], most_steps: int = 6) -> Scale:
    """Linear, and not from 0."""
    found = [value for value in values if math.isfinite(value)]
    low, high = min(found), max(found)
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    return Scale(max(0.0, low - margin) if low >= 0 else low - margin, high + margin, most_steps)


def spread_scale(values: Sequence[float], most_steps: int = 6) -> Scale:
    """Logarithmic where values are far apart, otherwise as `position_scale`."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= _LOG_FROM:
        return Scale(low / 1.15, high * 1.15, most_steps, log=True)
    return position_scale(values, most_steps)


def zero_scale(values: Iterable[float], most_steps: int = 5) -> Scale:
    """A scale for lengths: always from 0."""
    high = max((value for value in values if math.isfinite(value)), default=0.0) or 1.0
    return Scale(0.0, high * 1.02, most_steps)


def _log_steps(scale: Scale) -> list[float]:
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    steps: list[float] = []
    for factors in ((1, 2, 5), (1, 3), (1,)):
        steps = [round(factor * 10.0**power, 9) for power in powers for factor in factors]
        steps = [step for step in steps if scale.low <= step <= scale.high]
        if len(steps) <= scale.most_steps:
            return steps
    return steps[:: math.ceil(len(steps) / scale.most_steps)]


def tick(value: float) -> str:
    return f"{value:,.10g}"


# --- a drawing


@dataclass(slots=True)
class Drawing:
    """A figure of one plot, and the areas where no name may go any more. Pixels are counted from the lower left."""

    label: str
    """What is drawn, in words, for those who do not see it."""
    width: float
    height: float
    figure: Figure
    axes: Axes
    _taken: list[Bbox] = field(default_factory=list)
    _curves: list[Path] = field(default_factory=list)
    _marks: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of_size(
        cls, label: str, width: float, height: float, *,
        left: float = 46.0, top: float = 10.0, right: float = 20.0, bottom: float = 38.0,
    ) -> Self:  # fmt: skip
        """The rest are the pixels around the plot."""
        # 72 dots per inch make a point a pixel.
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        )
        axes.set_frame_on(False)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, pad=6, labelcolor=colour("soft"))
        return cls(label, width, height, figure, axes)

    def scale_x(self, scale: Scale, shown: Callable[[float], str] = tick) -> None:
        if scale.log:
            self.axes.set_xscale("log")
            self.axes.xaxis.set_minor_locator(NullLocator())
        self.axes.set_xlim(scale.low, scale.high)
        self._steps(self.axes.xaxis, scale, shown)

    def scale_y(self, scale: Scale) -> None:
        self.axes.set_ylim(scale.low, scale.high)
        self._steps(self.axes.yaxis, scale, tick)
        left = self.axes.bbox.x0 - 6
        for value in self.axes.get_yticks():
            y = self.height_of(value)
            self._taken.append(Bbox.from_extents(0, y - 5, left, y + 7))

    def _steps(self, axis: Any, scale: Scale, shown: Callable[[float], str]) -> None:
        axis.set_major_locator(
            FixedLocator(_log_steps(scale)) if scale.log else MaxNLocator(scale.most_steps, steps=[1, 2, 2.5, 5, 10])
        )
        # Steps are multiples in floating point: rounding makes 0 of 1e-17, and adding 0.0 makes 0 of -0.
        axis.set_major_formatter(FuncFormatter(lambda value, _: shown(round(value, 12) + 0.0)))
        axis.grid(visible=True, color=colour("grid"), linewidth=1)

    def height_of(self, y: float) -> float:
        return float(self.axes.transData.transform((self.axes.get_xlim()[0], y))[1])

    def below(self, text: str) -> None:
        """What the axes show."""
        box = self.axes.bbox
        self.write((box.x0 + box.x1) / 2, 5, text, ha="center")

    def write(self, x: float, y: float, text: str, name: str = "soft", **style: Any) -> None:
        self.figure.text(x, y, text, color=colour(name), transform=IdentityTransform(), **style)

    def curve(
        self, points: Sequence[tuple[float, float]], name: str, *,
        width: float = 1.5, dashes: tuple[float, float] | None = None, alpha: float = 1.0,
    ) -> None:  # fmt: skip
        """A line that names of marks keep off."""
        if not points:
            return
        xs, ys = zip(*points, strict=True)
        self.axes.plot(
            xs, ys, color=colour(name), linewidth=width, linestyle=(0, dashes) if dashes else "-", alpha=alpha
        )
        self._curves.append(self.axes.transData.transform_path(Path(points)))

    def limit(self, y: float, shown: str) -> None:
        """A line across that says what it stands for, at its right end."""
        self.axes.axhline(y, color=colour("bad"), linewidth=1, dashes=(5, 4))
        right, height = self.axes.bbox.x1, self.height_of(y)
        self.write(right, height + 4, shown, ha="right")
        self._taken.append(Bbox.from_extents(right - 60, height, right, height + 15))

    def mark(
        self, x: float, y: float, name: str, told: str, *, shape: MarkShape = MarkShape.CIRCLE, hollow: bool = False,
        radius: float = 5.0,
    ) -> None:  # fmt: skip
        """A point that says what it is to a pointer that rests on it."""
        at_x, at_y = map(float, self.axes.transData.transform((x, y)))
        style: Any = {
            "facecolor": colour("card" if hollow else name),
            "edgecolor": colour(name if hollow else "card"),
            "linewidth": 2 if hollow else 1,
            "transform": IdentityTransform(),
            "zorder": 2,
            "gid": _TOLD + told,
        }
        at, corners, turn = (at_x, at_y), _CORNERS[shape], _TURNS.get(shape, 0.0)
        self.figure.add_artist(
            RegularPolygon(at, corners, radius=1.25 * radius, orientation=turn, **style)
            if corners
            else Circle(at, radius, **style)
        )
        self._taken.append(Bbox.from_extents(at_x - radius, at_y - radius, at_x + radius, at_y + radius))
        self._marks.append(at)

    def bar(self, x: float, row: int, length: float, thick: float, name: str, told: str) -> None:
        self.axes.add_patch(
            Rectangle((x, row - thick / 2), max(0.0, length), thick, facecolor=colour(name), gid=_TOLD + told)
        )

    def try_name(self, x: float, y: float, text: str, gap: float = 8.0) -> bool:
        """Writes a name beside a mark where there is room; left out where there is none, since the table has it."""
        at_x, at_y = map(float, self.axes.transData.transform((x, y)))
        width = text_width(text)
        for left, base in (
            (at_x + gap, at_y - 4),
            (at_x - gap - width, at_y - 4),
            (at_x - width / 2, at_y + gap),
            (at_x - width / 2, at_y - gap - 9),
            (at_x + gap * 0.7, at_y + gap * 0.9),
            (at_x + gap * 0.7, at_y - gap * 0.9 - 9),
            (at_x - gap * 0.7 - width, at_y + gap * 0.9),
            (at_x - gap * 0.7 - width, at_y - gap * 0.9 - 9),
        ):
            box = Bbox.from_extents(left, base - 3, left + width, base + 10)
            if self._has_room(box, (at_x, at_y)):
                self._taken.append(box)
                self.write(left, base, text, "text")
                return True
        return False

    def _has_room(self, box: Bbox, own: tuple[float, float]) -> bool:
        return (
            box.x0 >= 0
            and box.x1 <= self.width
            and box.y0 >= self.axes.bbox.y0
            and box.y1 <= self.height
            and not box.count_overlaps(self._taken)
            and not any(curve.intersects_bbox(box, filled=False) for curve in self._curves)
            # Nearer to another mark than to its own, a name would be taken for that one's.
            and all(_distance(box, own) <= _distance(box, mark) for mark in self._marks)
        )

    def render(self, class_: str) -> Markup:
        written = StringIO()
        self.figure.savefig(written, format="svg", metadata=_NO_METADATA)
        root = ElementTree.fromstring(written.getvalue())  # noqa: S314 - written a line above
        _suit_page(root)
        view = f"0 0 {self.width:.0f} {self.height:.0f}"
        root.attrib = {"class": class_, "role": "img", "aria-label": self.label, "viewBox": view}
        return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - its texts were escaped


def _distance(box: Bbox, point: tuple[float, float]) -> float:
    x, y = point
    return math.hypot(max(box.x0 - x, 0.0, x - box.x1), max(box.y0 - y, 0.0, y - box.y1))


_PLACEHOLDER = re.compile(r"#0000([0-9a-f]{2})")
_LONG_FRACTION = re.compile(r"(\.\d\d)\d+")


def _suit_page(element: ElementTree.Element) -> None:
    """Keep only what a page needs of matplotlib's SVG: no ids, which must be unique on a page, and no clipping."""
    element.tag = element.tag.rpartition("}")[2]
    told = element.attrib.pop("id", "")
    style = dict(part.split(": ", 1) for part in element.attrib.pop("style", "").split("; ") if part)
    kept = {name: value for name, value in style.items() if name not in {"font", "font-size", "font-family"}}
    attributes = {name: element.get(name, "") for name in ("d", "x", "y") if name in element.attrib} | kept
    element.attrib = {name: _LONG_FRACTION.sub(r"\1", " ".join(value.split())) for name, value in attributes.items()}
    for name in ("fill", "stroke"):
        if found := _PLACEHOLDER.fullmatch(element.get(name, "")):
            element.set(name, f"var(--{_COLOURS[int(found.group(1), 16) - 1]})")
    element[:] = [child for child in element if child.tag.rpartition("}")[2] not in {"defs", "metadata"}]
    element.tail = None
    if element.tag != "text":
        element.text = None
    for child in element:
        _suit_page(child)
    if told.startswith(_TOLD):
        title = ElementTree.Element("title")
        title.text = told.removeprefix(_TOLD)
        element.insert(0, title)


# --- bars


@dataclass(frozen=True, slots=True)
class BarPart:
    """A stretch of a bar."""

    value: float
    colour: str
    told: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    parts: tuple[BarPart, ...]
    """Parts of the bar, side by side from 0."""
    shown: str
    """Text at the end of the bar."""
    marker: float | None = None
    """A line across the bar."""


def draw_bars(bars: Sequence[Bar], width: float, label: str, title: str = "", high: float | None = None) -> Drawing:
    """Horizontal bars, one under the other, from 0; what does not fit of a name is cut."""
    row_px, thick, top = 19.0, 12 / 19, 20.0 if title else 6.0
    left = min(max(text_width(bar.name) for bar in bars) + 10, width * 0.34)
    room = max(text_width(bar.shown) for bar in bars) + 8
    drawing = Drawing.of_size(label, width, top + row_px * len(bars) + 22, left=left, top=top, right=room, bottom=22.0)
    ends = [max(sum(part.value for part in bar.parts), bar.marker or 0.0) for bar in bars]
    most_steps = max(2, int((width - left - room) / 70))
    drawing.scale_x(zero_scale(ends, most_steps) if high is None else Scale(0.0, high, most_steps))
    if title:
        drawing.write(0, drawing.height - 12, title, "text", fontweight="bold")
    name_rows(drawing, [bar.name for bar in bars])
    for row, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        at = 0.0
        for part in bar.parts:
            drawing.bar(at, row, part.value, thick, part.colour, part.told)
            at += part.value
        if bar.marker is not None:
            drawing.curve([(bar.marker, row - 0.42), (bar.marker, row + 0.42)], "text", width=2)
        x, y = map(float, drawing.axes.transData.transform((end, row)))
        drawing.write(x + 5, y - 4, bar.shown)
    return drawing


def name_rows(drawing: Drawing, names: Sequence[str]) -> None:
    """Numbers the rows of a plot from the top, and writes the names beside them."""
    drawing.axes.set_ylim(len(names) - 0.5, -0.5)
    drawing.axes.yaxis.set_visible(False)
    left = drawing.axes.bbox.x0 - 6
    for row, name in enumerate(names):
        drawing.write(left, drawing.height_of(row) - 4, shorten(name, left - 2), "text", ha="right")
