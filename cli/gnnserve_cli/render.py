"""Tables and figures for people: how each result looks on a terminal.

Values in, rich renderables out; commands decide what to print, this module how.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gnnserve_api.files.profile import LatencyProfile, Metric, Profile, VariantProfile
from gnnserve_cli.printable import printable, printable_line

METRIC_NAMES: Mapping[Metric, str] = {
    "accuracy": "accuracy",
    "f1Micro": "micro-averaged F1",
    "f1Macro": "macro-averaged F1",
    "averagePrecision": "average precision",
    "rocAuc": "ROC-AUC",
    "mrr": "mean reciprocal rank",
    "recallAtK": "recall@k",
}
_OWN_HEADERS = ("Variant", "Storage", "Columns", "Validation", "Test", "Size", "Memory")
_TIMING_HEADERS = ("Seeds", "p50 ms", "p99 ms", "Sample", "Gather", "Compute", "Bytes")


def metric_name(metric: Metric) -> str:
    """Name for people; of a task that is not known here the name that it has."""
    return METRIC_NAMES.get(metric, metric)


_OBEYED = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What JSON does not escape: control characters above ASCII's, and those that turn the direction of text."""
_UNLIMITED = 10_000
"""Columns of a file or a pipe: lines there are as long as what they say."""


class Output(Console):
    """Leaves a closed pipe to `main.py`, where every failure becomes an exit code."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output() -> Console:
    console = Output(highlight=False, markup=False, emoji=False)  # names and paths may look like either
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNLIMITED
    return console


def put(console: Console, *renderables: RenderableType) -> None:
    for given in renderables:
        renderable = printable(given) if isinstance(given, str) else given
        with _wide_enough(console, renderable):
            if console.is_terminal:
                console.print(renderable)
                continue
            # Trailing padding of table lines is removed: it disturbs comparing and searching lines.
            with console.capture() as captured:
                console.print(renderable)
        console.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


@contextmanager
def _wide_enough(console: Console, renderable: RenderableType) -> Iterator[None]:
    """Let a table whose columns do not wrap have the width that it needs: rich would cut its numbers, and a terminal
    only goes on with them in the next line."""
    if isinstance(renderable, Table) and all(column.no_wrap for column in renderable.columns):
        needed = console.measure(renderable, options=console.options.update(max_width=_UNLIMITED)).maximum
        if needed > console.width:
            before, console.width = console.width, needed
            try:
                yield
            finally:
                console.width = before
            return
    yield


def print_json(value: object) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # Valid as they are, and a terminal might obey them: escaped they mean the same.
    sys.stdout.write(_OBEYED.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n")


def round_floats(value: Any, digits: int = 6) -> Any:
    """Significant digits, through dicts and lists: what was measured has no more than that."""
    match value:
        case float():
            return float(f"{value:.{digits}g}")
        case dict():
            return {key: round_floats(item, digits) for key, item in value.items()}
        case list():
            return [round_floats(item, digits) for item in value]
    return value


def count(number: int, noun: str) -> str:
    """`1 layer`, `1,797 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_bytes(size: float) -> str:
    """Three digits and a binary unit: `17.3 KiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1023.5 or unit == "GiB":
            break
    return f"{size:.{_decimals(size, 3)}f} {unit}"


def format_ms(milliseconds: float) -> str:
    """Four digits, and never finer than a microsecond: `0.213`, `12.35`, `1,234`."""
    return f"{milliseconds:,.{min(3, _decimals(milliseconds, 4))}f}"


def _decimals(value: float, digits: int) -> int:
    whole_digits = len(str(int(value)))
    return max(0, digits - whole_digits)


def profile_tables(profile: Profile, console: Console) -> list[RenderableType]:
    """One table where it fits, else two: what variants give, and what they cost."""
    caption = (
        f"\nValidation and test: {metric_name(profile.metric)}. Sample, gather and compute: medians in ms."
        "\nBytes: of the table, read per batch."
        f"\nMeasured on {printable_line(profile.machine)}."
    )
    timing_headers = [*_TIMING_HEADERS]
    if any(variant.new_nodes for variant in profile.variants):
        timing_headers.append("New nodes ms")
        caption += "\nNew nodes: as many, brought by a request with features and edges (an overlay)."
    whole = _table(*_OWN_HEADERS, *timing_headers)
    gives, costs = _table(*_OWN_HEADERS), _table("Variant", *timing_headers)
    for variant in profile.variants:
        own = _own_figures(variant)
        gives.add_row(*own)
        for row, latency in enumerate(variant.latency):
            timings = [*_timings(latency), _new_nodes_p50(variant, latency.seeds)][: len(timing_headers)]
            is_last = row == len(variant.latency) - 1
            shown = own if row == 0 else [""] * len(own)
            whole.add_row(*shown, *timings, end_section=is_last)
            costs.add_row(shown[0], *timings, end_section=is_last)
    unlimited = console.options.update(max_width=_UNLIMITED)  # otherwise a table is never wider than the console
    if console.measure(whole, options=unlimited).maximum <= console.width:
        return [whole, caption]
    return [gives, "", costs, caption]


def search_lines(profile: Profile) -> list[RenderableType]:
    """Why each variant that a search looked at is kept, or is not; nothing where the manifest lists the variants."""
    if profile.search is None:
        return []
    lines = profile.search.lines()
    kept = sum(one.is_kept for one in profile.search.variants)
    heading = f"\nThe search kept {kept} (+) of {count(len(lines), 'variant')}, in {profile.search.seconds:,.0f} s:"
    return [heading, *(Text(printable_line(line)) for line in lines)]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column(first, style="bold", no_wrap=True)
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _own_figures(variant: VariantProfile) -> list[str]:
    test = "-" if variant.test_accuracy is None else f"{variant.test_accuracy:.4f}"
    return [
        printable_line(variant.name), variant.storage, f"{variant.columns:,}", f"{variant.validation_accuracy:.4f}",
        test, format_bytes(variant.size_bytes), format_bytes(variant.memory_bytes),
    ]  # fmt: skip


def _timings(latency: LatencyProfile) -> list[str]:
    times = (latency.p50_ms, latency.p99_ms, latency.sample_ms, latency.gather_ms, latency.compute_ms)
    return [f"{latency.seeds:,}", *(format_ms(time) for time in times), format_bytes(latency.gathered_bytes)]


def _new_nodes_p50(variant: VariantProfile, seeds: int) -> str:
    return next((format_ms(point.p50_ms) for point in variant.new_nodes if point.seeds == seeds), "-")


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Names on the left, what they are on the right."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        # As rich's own texts: a path may look like markup.
        table.add_row(Text(printable_line(name)), Text(printable(value)))
    return table


def nodes_table(nodes: Sequence[int | str], columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    are_texts = any(isinstance(node, str) for node in nodes)
    table.add_column("Node", justify="left" if are_texts else "right", no_wrap=not are_texts, overflow="fold")
    for header, _ in columns:
        table.add_column(header, justify="right", overflow="fold")
    for row, node in enumerate(nodes):
        # As rich's own texts: what comes from a graph may look like markup.
        table.add_row(Text(format_name(node)), *(Text(values[row]) for _, values in columns))
    return table


def pairs_table(pairs: Sequence[tuple[int | str, int | str]], columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for header in ("First", "Second"):
        table.add_column(header, overflow="fold")
    for header, _ in columns:
        table.add_column(header, justify="right", overflow="fold")
    for row, (first, second) in enumerate(pairs):
        table.add_row(
            Text(format_name(first)), Text(format_name(second)), *(Text(values[row]) for _, values in columns)
        )
    return table


def format_name(name: int | str) -> str:
    """Name of a node or a class as its graph has it; as JSON if it has control or invisible characters."""
    if isinstance(name, int) or (name.isprintable() and name.strip() == name != ""):
        return str(name)
    return json.dumps(name)


def print_profile(profile: Profile) -> None:
    console = output()
    put(console, *profile_tables(profile, console), *search_lines(profile))
