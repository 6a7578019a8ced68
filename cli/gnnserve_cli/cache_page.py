"""Page of the results of `gnnserve cache simulate`, with a plot per trace and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gnnserve_cli.cache_simulation import (
    BELADY,
    CapacityFound,
    PolicyFound,
    SimulationFound,
    TraceFound,
    facts_of,
    headers_of,
    rows_of,
    says_of,
)
from gnnserve_cli.report.drawing import Drawing, Scale, show, zero_scale
from gnnserve_cli.report.page import render_page
from gnnserve_cli.report.tables import Cells

_COLOURS = {
    "Frequency": "float32", "Degree": "float16", "Presampled": "warn", "FIFO": "int8", "LFU": "bad", BELADY: "soft",
}  # fmt: skip
_STYLE = "".join(f".p-{policy} {{ color: var(--{name}); }}\n" for policy, name in _COLOURS.items())


def build_page(found: SimulationFound) -> str:
    # A user's trace is called as its file, which is no name for a section.
    traces = {f"trace-{number}": trace for number, trace in enumerate(found.traces, start=1)}
    rows = tuple((f"{trace}, {percent}", nodes, *rates) for trace, percent, nodes, *rates in rows_of(found))
    return render_page(
        "cache.html",
        _STYLE,
        title="Cache policies in simulation",
        under=found.source,
        headings={
            **{name: f"Trace: {trace.trace}" for name, trace in traces.items()},
            "figures": "All hit rates, %",
            "made": "How it was made",
        },
        traces={name: [_shown(trace, one) for one in trace.capacities] for name, trace in traces.items()},
        hit_rates=Cells("Hit rates", ("Trace", *headers_of(found)[2:]), rows),
        made=facts_of(found),
        written_by=found.written_by,
    )


def _shown(trace: TraceFound, at: CapacityFound) -> dict[str, object]:
    moved = " Where the hot set moves, a line is drawn across." if trace.moves else ""
    return {
        "percent": f"{at.capacity_percent:g}",
        "says": says_of(trace, at),
        "drawn": show(partial(draw_timeline, trace, at)),
        "signs": [(f"p-{one.policy} stroke", one.policy) for one in _drawn(at)],
        "caption": f"Hit rate over the requests, %.{moved}",
    }


def _drawn(at: CapacityFound) -> list[PolicyFound]:
    return [one for one in at.policies if one.policy != "None"]


def draw_timeline(trace: TraceFound, at: CapacityFound, width: float) -> Drawing | None:
    drawn = _drawn(at)
    values = [value for one in drawn for value in one.timeline_percent]
    if not values:
        return None
    told = "; ".join(f"{one.policy} {one.hit_rate_percent:.2f} %" for one in drawn)
    drawing = Drawing.of_size(
        f"Hit rate over the requests of {trace.trace}: {told}.", width, min(320.0, 0.45 * width + 70), left=40.0,
        right=76.0,
    )  # fmt: skip
    drawing.scale_x(Scale(0.0, trace.requests, int(width / 100)))
    highest = zero_scale([1.03 * max(values)])
    drawing.scale_y(highest)
    drawing.below("requests; hit rate in %")
    for move in trace.moves:
        drawing.curve([(move, 0.0), (move, highest.high)], "bad", width=1, dashes=(5, 4))
    for one in drawn:
        points = [((window + 0.5) * trace.window_requests, value) for window, value in enumerate(one.timeline_percent)]
        width_px, dashes = 2.5 if one.policy == "Frequency" else 1.5, (4.0, 3.0) if one.policy == BELADY else None
        drawing.curve(points, _COLOURS[one.policy], width=width_px, dashes=dashes)
    _name_lines(drawing, drawn)
    return drawing


def _name_lines(drawing: Drawing, drawn: Sequence[PolicyFound]) -> None:
    """Writes names beside the ends of lines, moved down where two names would lie over each other."""
    ends = [(drawing.height_of(one.timeline_percent[-1]), one.policy) for one in drawn]
    last = drawing.height + 12
    for height, policy in sorted(ends, reverse=True):
        last = min(height - 4, last - 12)
        drawing.write(drawing.axes.bbox.x1 + 6, last, policy, "text")
