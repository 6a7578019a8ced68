"""Results of `gnnserve cache simulate`, as data and as a table; as a page: `cache_page.py`."""

from __future__ import annotations

import msgspec
from rich import box
from rich.table import Table

from gnnserve_cli.render import count

BELADY = "Belady"


class PolicyFound(msgspec.Struct, frozen=True, rename="camel"):
    policy: str
    hit_rate_percent: float
    """Hit rate of the reads after the warm-up."""
    admissions_per_read: float | None
    """Rows admitted per row read; None for the upper bound, which does not tell."""
    recovery_requests: int | None
    """Requests after a move until the hit rate is nine tenths of the way back; None: nothing moved, or it did not fall.
    """
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
    """Sentence about the best policy, its margin, and the upper bound."""
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
