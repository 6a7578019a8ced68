"""Report of the roofline's figures: beside the paper, as headlines, and as tables in the terminal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table as Page

from benchmarks.shapes import Shape
from gnnserve_cli.render import format_ms

PAPER_MS = {
    "arxiv": (4.42, 3.07, 2.23, 1.93),
    "reddit": (51.86, 28.03, 15.69, 9.50),
    "products": (12.40, 6.31, 4.59, 3.60),
}
"""Dynamic GNN inference as-a-service, table 3: GraphSAGE at 1x, 2x, 4x and 8x: transfer and GPU compute of 1024 seeds
on an RTX A6000, without sampling."""


def compare_with_paper(shape: str, variants: Mapping[str, Any]) -> list[dict[str, Any]]:
    """p50 of 1x over kx at 1024 seeds, beside the paper's; every step should be visible."""
    rows = []
    for storage in dict.fromkeys(variant["storage"] for variant in variants.values()):
        p50_ms = [
            variant["seeds"][1024]["p50_ms"]
            for variant in variants.values()
            if variant["storage"] == storage and not variant["projected"]
        ]
        rows.append(
            {
                "storage": storage,
                "p50_ms": p50_ms,
                "ratios": [round(p50_ms[0] / other, 2) for other in p50_ms[1:]],
                "each_faster": all(after < before for before, after in itertools.pairwise(p50_ms)),
            }
        )
    paper = PAPER_MS[shape]
    return [{"paper_ms": paper, "paper_ratios": [round(paper[0] / other, 2) for other in paper[1:]]}, *rows]


def headlines(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """What is looked at first, by shape: unpruned answers of 1024 seeds by variant, and how near to the bounds."""
    found = {}
    for name, shape in shapes.items():
        unpruned = {
            variant: values["seeds"][1024]
            for variant, values in shape["variants"].items()
            if values["projected"] or variant.partition("-")[0] == "x1"
        }
        fastest = min(unpruned, key=lambda variant: unpruned[variant]["p50_ms"])
        found[name] = {
            "unpruned_1024_ms": {variant: timing["p50_ms"] for variant, timing in unpruned.items()},
            "paper_1024_ms": PAPER_MS[name][0],
            "fastest": fastest,
            "over_bound": {variant: timing["over_bound"] for variant, timing in unpruned.items()},
            "faster_than_bound": faults_of_bound(shape["variants"]),
            "gather_of_fetch": {variant: timing["gather_of_fetch"] for variant, timing in unpruned.items()},
            "gather_of_read": {variant: timing["gather_of_read"] for variant, timing in unpruned.items()},
            "sampling_us_per_seed": shape["samplingUsPerSeed"],
        }
    return found


def faults_of_bound(variants: Mapping[str, Any]) -> dict[str, list[str]]:
    """For each variant, with its seeds: stages that were faster than their bound; empty if the bound is one."""
    return {
        f"{name}, {seeds} seeds": timing["faster_than_bound"]
        for name, values in variants.items()
        for seeds, timing in values["seeds"].items()
        if timing["faster_than_bound"]
    }


def show_memory(memory: Mapping[str, Any]) -> None:
    page = Page("Memory, 10^9 bytes/s")
    threads = list(memory["sequential"])
    for count in threads:
        page.add_column(f"{count} thread{'s' if count > 1 else ''}", justify="right")
    page.add_row("sequential", *(f"{memory['sequential'][count]:.1f}" for count in threads))
    for row_bytes, rates in memory["randomRows"].items():
        cells = (f"{rates[count]['fetch']:.1f} / {rates[count]['read']:.1f}" for count in threads)
        page.add_row(f"random rows of {row_bytes} B, fetch / read", *cells)
    Console().print(page)


def show_shape(shape: Shape, result: Mapping[str, Any]) -> None:
    page = Page("Variant", title=f"{shape.name} shape, in process: one seed, and 1024 with their stages and bound, ms")
    for header in (
        "1 seed",
        "1024",
        "p99",
        "Sample",
        "Gather",
        "Compute",
        "Bound",
        "Ratio",
        "GB/s",
        "of fetch",
        "of read",
    ):
        page.add_column(header, justify="right")
    for name, variant in result["variants"].items():
        one, many = variant["seeds"][1], variant["seeds"][1024]
        times = [one["p50_ms"], many["p50_ms"], many["p99_ms"], many["sample_ms"], many["gather_ms"]]
        times += [many["compute_ms"], many["bound_ms"]["total_ms"]]
        page.add_row(
            name, *(format_ms(time) for time in times), f"{many['over_bound']:.2f}",
            f"{many['gather_gb_per_s']:.1f}", f"{many['gather_of_fetch']:.0%}",
            f"{many['gather_of_read']:.0%}",
        )  # fmt: skip
    Console(width=120).print(page)
    print(f"sampling alone on one core, µs per seed by batch size: {result['samplingUsPerSeed']}", flush=True)
    for row in result["pruning"]:
        print(row, flush=True)
    if faults := faults_of_bound(result["variants"]):
        print(f"the bound is at fault where these were faster than it: {faults}", flush=True)
