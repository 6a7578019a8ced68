"""What `gnnserve cache simulate` found, as data, as a table, and as a page with a plot per trace and capacity."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich import box
from rich.table import Table

from gnnserve_cli.render import count
from gnnserve_cli.report import page
from gnnserve_cli.report.svg import Plot, fixed_scale, zero_scale
from gnnserve_cli.report.tables import Cells

BELADY = "Belady"
_LEFT, _TOP, _RIGHT, _BOTTOM = 40.0, 10.0, 76.0, 38.0
_COLOURS = {
    "Frequency": "float32", "Degree": "float16", "Presampled": "warn", "FIFO": "int8", "LFU": "bad", "None": "soft",
    BELADY: "soft",
}  # fmt: skip
_STYLE = (
    "".join(
        f".p-{policy} {{ stroke: var(--{colour}); color: var(--{colour}); }} " for policy, colour in _COLOURS.items()
    )
    + f".p-Frequency {{ stroke-width: 2.5; }} .p-{BELADY} {{ stroke-dasharray: 4 3; }}\n"
)


class PolicyFound(msgspec.Struct, frozen=True, rename="camel"):
    policy: str
    hit_rate_percent: float
    """Of the reads after the warm-up."""
    admissions_per_read: float | None
    """None: the upper bound, which says nothing of them."""
    recovery_requests: int | None
    """After a move, until nine tenths of the way back; None: nothing moved, or it did not fall."""
    timeline_percent: list[float]
    """Hit rate of each window of requests, from the first one on."""


class CapacityFound(msgspec.Struct, frozen=True, rename="camel"):
    capacity_percent: float
    capacity_nodes: int
    policies: list[PolicyFound]


class TraceFound(msgspec.Struct, frozen=True, rename="camel"):
    trace: str
    moving: bool
    moves: list[int]
    """Requests before which the hot set moved."""
    requests: int
    seeds: int
    reads: int
    """Rows that the requests gather, each once per request."""
    warm_up_requests: int
    window_requests: int
    capacities: list[CapacityFound]


class SimulationFound(msgspec.Struct, frozen=True, rename="camel"):
    source: str
    nodes: int
    edges: int
    fanouts: list[int]
    seed: int
    round_requests: int
    written_by: str
    traces: list[TraceFound]


def facts_of(found: SimulationFound) -> list[tuple[str, str]]:
    facts = [
        ("graph", f"{found.source}: {count(found.nodes, 'node')}, {count(found.edges, 'edge')}"),
        ("sampling", f"fan-outs {', '.join(map(str, found.fanouts))}; seed {found.seed}"),
        ("rounds", f"of {count(found.round_requests, 'request')}"),
    ]
    for trace in found.traces:
        moved = f"; moves {len(trace.moves)} times" if trace.moves else ""
        facts.append(
            (
                trace.trace,
                f"{count(trace.requests, 'request')}, {count(trace.seeds, 'seed')}, {trace.reads:,} reads{moved}; "
                f"the first {count(trace.warm_up_requests, 'request')} not counted",
            )
        )
    return facts


def headers_of(found: SimulationFound) -> list[str]:
    policies = [one.policy for one in found.traces[0].capacities[0].policies]
    return ["Trace", "Capacity", "Nodes", *policies]


def rows_of(found: SimulationFound) -> list[list[str]]:
    return [
        [
            trace.trace, f"{one.capacity_percent:g} %", f"{one.capacity_nodes:,}",
            *(f"{policy.hit_rate_percent:.2f}" for policy in one.policies),
        ]
        for trace in found.traces for one in trace.capacities
    ]  # fmt: skip


def table_of(found: SimulationFound) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for header in headers_of(found):
        table.add_column(header, justify="left" if header == "Trace" else "right", no_wrap=True)
    for row in rows_of(found):
        table.add_row(*row)
    return table


def says_of(trace: TraceFound, at: CapacityFound) -> str:
    """Who is best, by how much, and what nobody could do."""
    real = sorted((one for one in at.policies if one.policy != BELADY), key=lambda one: -one.hit_rate_percent)
    bound = next((one for one in at.policies if one.policy == BELADY), None)
    text = ""
    if real:
        text = f"{real[0].policy} hits {real[0].hit_rate_percent:.2f} %"
        if len(real) > 1:
            ahead = real[0].hit_rate_percent - real[1].hit_rate_percent
            text += f", {ahead:.2f} points more than {real[1].policy}"
        text += "."
    if bound is not None:
        text += f" Who knew all requests to come would hit {bound.hit_rate_percent:.2f} %."
    recovered = [one for one in real if one.recovery_requests is not None]
    if trace.moves and recovered:
        told = ", ".join(f"{one.policy} {one.recovery_requests:,}" for one in recovered)
        text += f" Requests after a move until nine tenths of what it cost are back: {told}."
    return text.strip()


def build_page(found: SimulationFound) -> str:
    sections: list[tuple[str, str, str]] = []
    for trace in found.traces:
        content = "".join(
            f"<h3>{one.capacity_percent:g} % of the nodes</h3>{page.says(says_of(trace, one))}{_figure(trace, one)}"
            for one in trace.capacities
        )
        # A user's trace is called as its file, which is no name for a section.
        sections.append((f"trace-{len(sections) + 1}", f"Trace: {trace.trace}", content))
    rows = tuple((f"{trace}, {percent}", nodes, *rates) for trace, percent, nodes, *rates in rows_of(found))
    cells = Cells("Hit rates", ("Trace", *headers_of(found)[2:]), rows)
    sections.append(("figures", "All hit rates, %", page.table(cells)))
    sections.append(("made", "How it was made", page.facts(facts_of(found))))
    return page.build_frame(
        "Cache policies in simulation",
        found.source,
        "",
        sections,
        f"Written by {found.written_by}. Hit rates are shares of the rows that requests gather.",
        _STYLE,
    )


def _figure(trace: TraceFound, at: CapacityFound) -> str:
    keys = page.keys((f"p-{one.policy} stroke", one.policy) for one in _drawn(at))
    caption = "Hit rate over the requests, %."
    if trace.moves:
        caption += " Where the hot set moves, a line is drawn across."
    return page.figure(lambda width: draw_timeline(trace, at, width), caption, keys)


def _drawn(at: CapacityFound) -> list[PolicyFound]:
    return [one for one in at.policies if one.policy != "None"]


def draw_timeline(trace: TraceFound, at: CapacityFound, width: float) -> Plot | None:
    drawn = _drawn(at)
    values = [value for one in drawn for value in one.timeline_percent]
    if not values:
        return None
    told = "; ".join(f"{one.policy} {one.hit_rate_percent:.2f} %" for one in drawn)
    plot = Plot(width, min(320.0, 0.45 * width + 70), f"Hit rate over the requests of {trace.trace}: {told}.")
    right, bottom = width - _RIGHT, plot.height - _BOTTOM
    x = fixed_scale(0, trace.requests, _LEFT, right, int(width / 100))
    y = zero_scale([1.03 * max(values)], bottom, _TOP)
    plot.x_axis(x, _TOP, bottom)
    plot.y_axis(y, _LEFT, right)
    plot.text((_LEFT + right) / 2, plot.height - 5, "requests; hit rate in %", anchor="middle")
    for move in trace.moves:
        plot.line(x.at(move), _TOP, x.at(move), bottom, "limit")
    for one in drawn:
        points = [
            (x.at((window + 0.5) * trace.window_requests), y.at(value))
            for window, value in enumerate(one.timeline_percent)
        ]
        plot.path(points, f"series p-{one.policy}")
    _name_lines(plot, drawn, right, [y.at(one.timeline_percent[-1]) for one in drawn])
    return plot


def _name_lines(plot: Plot, drawn: Sequence[PolicyFound], right: float, heights: Sequence[float]) -> None:
    """Beside where lines end, moved down where two names would lie over each other."""
    last = 0.0
    for height, one in sorted(zip(heights, drawn, strict=True), key=lambda pair: pair[0]):
        last = max(height + 4, last + 12)
        plot.text(right + 6, last, one.policy, "name")
