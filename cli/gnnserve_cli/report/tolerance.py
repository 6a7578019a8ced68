"""How much latency a loss of accuracy buys, and the other way round; the tiers are in `gnnserve_api/tiers.py`.

The method is that of Dynamic GNN inference as-a-service, sections 4.2 and 4.3. Pure functions of points and widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gnnserve_api.tiers import ROUNDING, Point, Within, answer_within, most_accurate


def fastest_within(points: Sequence[Point], tolerance: float) -> Within:
    """Latency under accuracy tolerance: the fastest variant whose accuracy is at most `tolerance`, inclusive, below the
    best (Dynamic GNN inference as-a-service, section 4.3). Of equally fast ones the most accurate."""
    best = most_accurate(points)
    allowed = [point for point in points if best.accuracy - point.accuracy <= tolerance + ROUNDING]
    return answer_within(min(allowed, key=lambda p: (p.latency_ms, -p.accuracy)), best, tolerance)


# --- from a latency to columns


@dataclass(frozen=True, slots=True)
class Width:
    """A measured variant: how many columns it reads, and what it takes."""

    columns: int
    latency_ms: float


@dataclass(frozen=True, slots=True)
class Affine:
    """latency ≈ fixed_ms + per_column_ms · columns (Dynamic GNN inference as-a-service, section 4.2:
    nearly linear in what is kept)."""

    fixed_ms: float
    per_column_ms: float
    """Milliseconds per column, never negative: fewer columns do not cost more."""

    def at(self, columns: float) -> float:
        return self.fixed_ms + self.per_column_ms * columns


@dataclass(frozen=True, slots=True)
class ColumnsWithin:
    """The most columns that meet a latency."""

    columns: int
    extrapolated: bool
    """Whether it is fewer columns than any measured variant reads."""
    capped: bool
    """Whether it is as many columns as the widest measured variant reads: more may fit."""


class WidthCurve:
    """Latency by kept columns, over the measured variants of one storage: linear between them, never falling with
    columns; below the narrowest by the slope of the affine fit."""

    def __init__(self, measured: Sequence[Width]) -> None:
        if len({width.columns for width in measured}) < 2:
            raise ValueError("a curve needs two measured widths")
        self.measured = tuple(measured)
        self.affine = fit_affine(measured)
        self.widths = tuple(_rising(measured))

    def at(self, columns: float) -> float:
        """Milliseconds; beyond the widest by the slope of the affine fit too."""
        first, last = self.widths[0], self.widths[-1]
        if columns <= first.columns:
            return max(0.0, first.latency_ms - self.affine.per_column_ms * (first.columns - columns))
        for low, high in pairwise(self.widths):
            if columns <= high.columns:
                slope = (high.latency_ms - low.latency_ms) / (high.columns - low.columns)
                return low.latency_ms + slope * (columns - low.columns)
        return last.latency_ms + self.affine.per_column_ms * (columns - last.columns)

    def columns_within(self, latency_ms: float) -> ColumnsWithin | None:
        """The most columns, no more than the widest variant's, that are predicted to take `latency_ms` at most; None:
        even one column would take longer."""
        low, high = 0, self.widths[-1].columns
        while low < high:  # the largest that fits: `at` never falls
            middle = (low + high + 1) // 2
            if self.at(middle) <= latency_ms + ROUNDING:
                low = middle
            else:
                high = middle - 1
        first, last = self.widths[0], self.widths[-1]
        return ColumnsWithin(low, extrapolated=low < first.columns, capped=low == last.columns) if low else None

    def left_out_errors(self) -> Iterator[tuple[int, float]]:
        """Columns of each measured width but the outermost, and by what share its latency is missed when it is
        predicted from the others: how far the curve can be trusted between measured widths. From what was measured, and
        against it: `widths` are pooled, so they know something of each other."""
        first, last = self.widths[0].columns, self.widths[-1].columns
        for width in sorted(self.measured, key=lambda w: w.columns):
            if first < width.columns < last and width.latency_ms > 0:
                rest = WidthCurve([other for other in self.measured if other.columns != width.columns])
                yield width.columns, rest.at(width.columns) / width.latency_ms - 1


def factor_for(features: int, columns: int) -> int:
    """The smallest k with ⌊features/k⌋ ≤ columns: the widest variant that reads no more than so many."""
    return features // (columns + 1) + 1


def fit_affine(measured: Sequence[Width]) -> Affine:
    """Least squares, over two different widths at least."""
    count = len(measured)
    mean_columns = sum(width.columns for width in measured) / count
    mean_ms = sum(width.latency_ms for width in measured) / count
    spread = sum((width.columns - mean_columns) ** 2 for width in measured)
    both = sum((width.columns - mean_columns) * (width.latency_ms - mean_ms) for width in measured)
    slope = max(0.0, both / spread)
    return Affine(mean_ms - slope * mean_columns, slope)


def _rising(measured: Sequence[Width]) -> Iterator[Width]:
    """The points ascending in columns and never falling in latency, by pooling neighbours that are out of order
    (isotonic regression): noise may make a wider variant look faster."""
    blocks: list[list[Width]] = []
    for width in sorted(measured, key=lambda w: (w.columns, w.latency_ms)):
        blocks.append([width])
        while len(blocks) > 1 and (blocks[-2][-1].columns == width.columns or _mean(blocks[-2]) > _mean(blocks[-1])):
            last = blocks.pop()
            blocks[-1].extend(last)
    for block in blocks:
        latency_ms = _mean(block)
        yield from (Width(columns, latency_ms) for columns in dict.fromkeys(width.columns for width in block))


def _mean(block: Sequence[Width]) -> float:
    return sum(width.latency_ms for width in block) / len(block)
