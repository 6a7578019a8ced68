"""A sweep of concurrency: closed loops one after the other, each with another number of connections.

It finds the plateau: from some concurrency on, more connections make answers slower, and no more of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from gnnserve_api.errors import InputError
from gnnserve_cli.loadgen.statistics import LoadReport
from gnnserve_cli.render import format_ms

MOST_POINTS = 100
_DOTS = frozenset(("…", "..."))
_HEADERS = (
    "Connections", "Answers/s", "p50 ms", "p99 ms", "Client send", "Network, server", "Wait", "Compute",
    "Client receive", "Sum", "Mean ms", "Refused, failed",
)  # fmt: skip


def parse_sweep(text: str, most: int) -> tuple[int, ...]:
    """`1,2,4` or `1,2,…,64`: numbers of connections, ascending; dots go on by doubling up to the number behind them.

    Raises InputError. `most`: the largest number of connections.
    """
    given = [part.strip() for part in text.split(",")]
    numbers: list[int] = []
    for place, part in enumerate(given):
        if part in _DOTS and numbers and place + 1 < len(given) and given[place + 1].isdecimal():
            last = min(int(given[place + 1][:9]), most)
            while numbers[-1] * 2 < last:
                numbers.append(numbers[-1] * 2)
        elif part.isascii() and part.isdecimal() and (not numbers or int(part[:9]) > numbers[-1]):
            numbers.append(int(part[:9]))
        else:
            raise _wrong(text, f"{part!r} is none of ascending numbers", most)
    if not 1 <= numbers[0] <= numbers[-1] <= most:
        raise _wrong(text, "a number is out of range", most)
    if len(numbers) > MOST_POINTS:
        raise _wrong(text, f"{len(numbers)} are more than {MOST_POINTS} numbers", most)
    return tuple(numbers)


def _wrong(text: str, why: str, most: int) -> InputError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return InputError("--sweep", f"{shown!r}: {why}", f"write connections from 1 to {most:,}, such as 1,2,4,…,64")


def sweep_table(reports: Sequence[LoadReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for header in _HEADERS:
        table.add_column(header, justify="right", no_wrap=True)
    for report in reports:
        latency, parts = report.latency_ms, report.parts
        measured = ["-"] * 2 if latency is None else [format_ms(latency.p50), format_ms(latency.p99)]
        split = ["-"] * 7
        if parts is not None:
            each = (
                parts.client_send_ms, parts.network_ms, parts.wait_ms, parts.compute_ms, parts.client_receive_ms,
                parts.sum_ms, parts.total_ms,
            )  # fmt: skip
            split = [format_ms(ms) for ms in each]
        unanswered = f"{report.requests - report.answers:,}"
        rate = f"{report.answers_per_second:,.1f}"
        table.add_row(f"{report.connections:,}", rate, *measured, *split, unanswered)
    return table
