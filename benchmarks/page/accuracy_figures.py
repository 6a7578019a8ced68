"""Tables about accuracy: of generated variants, of rankings, and on nodes that requests bring."""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.ranking_findings import judge_findings
from benchmarks.page.figure_blocks import SHAPE_WORDS, figures, paragraphs, table


@figures("generation")
def generation(found: Any) -> str:
    return paragraphs(_masters(found), _rankings(found), _storages(found), _times(found))


def _masters(found: Any) -> str:
    return table(
        ("graph", "split", "scope", "test accuracy of 1x", "full-batch torch_geometric"),
        (
            (
                master["graph"],
                master["split"],
                master["scope"],
                f"{master['accuracy_mean']:.3f} ± {master['accuracy_deviation']:.3f}",
                "" if master["baseline"] is None else f"{master['baseline']:.3f}",
            )
            for master in found["masters"]
        ),
    )


def _rankings(found: Any) -> str:
    by_ranking: dict[tuple[str, str], dict[int, float]] = {}
    for row in found["rankings"]:
        by_ranking.setdefault((row["graph"], row["method"]), {})[row["factor"]] = row["accuracy_mean"]
    factors = sorted({row["factor"] for row in found["rankings"]})
    return table(
        ("graph", "ranking", *(f"{factor}x" for factor in factors)),
        ((*key, *(f"{means[factor]:.3f}" for factor in factors)) for key, means in by_ranking.items()),
    )


def _storages(found: Any) -> str:
    """Differences from float32 by storage; empty where the results are from before they were measured."""
    by_variant: dict[tuple[str, str], dict[str, float]] = {}
    for row in found.get("storages", ()):
        by_variant.setdefault((row["graph"], row["variant"]), {})[row["storage"]] = row["over_float32_mean"]
    names = list(dict.fromkeys(storage for of_one in by_variant.values() for storage in of_one))
    return table(
        ("graph", "variant", *(f"{storage}, points over float32" for storage in names)),
        (
            (*key, *(f"{100 * of_one[name]:+.2f}" if name in of_one else "" for name in names))
            for key, of_one in by_variant.items()
        ),
    )


def _times(found: Any) -> str:
    times = ", ".join(
        f"{row['seconds']:.0f} s for {row['graph']} ({row['variants']} variants)" for row in found.get("generation", ())
    )
    return f"Generation, from the file to the published revision: {times}." if times else ""


@figures("ranking")
def ranking(found: Any) -> str:
    """Each finding of the paper: whether it holds, and the numbers that decide it."""
    return table(
        ("finding of the paper", "here", "because"),
        ((one["finding"], one["verdict"], one["because"]) for one in judge_findings(found["rows"])),
    )


@figures("unseen")
def unseen(found: Any) -> str:
    """Requests about nodes that the graph has not seen: what they cost, and how good their answers are."""
    ratios, intervals, shapes = found["ratios"], found["intervals"], ("arxiv", "reddit")
    costs = table(
        ("time over that of the same request about stored nodes", *(SHAPE_WORDS[shape] for shape in shapes)),
        ((f"{form}, {_new_nodes(figure)}",
          *("{:.2f} ({:.2f} to {:.2f})".format(ratios[name], *intervals[name])
            for name in (f"{shape}, {form}, {figure}" for shape in shapes)))
         for form in ("binary", "JSON")
         for figure in ("1 new: p50 ms", "1 new: 32 connections, ms per request", "32 new: p50 ms", "256 new: p50 ms")),
    )  # fmt: skip
    accuracies = table(
        ("graph", "variant", "stored", "hidden, then asked for as new, each alone", "all together"),
        ((one["graph"], one["variant"], *(f"{one[how]:.4f}" for how in ("stored", "alone", "unseen")))
         for one in found["accuracy"]),
    )  # fmt: skip
    return paragraphs(costs, accuracies)


def _new_nodes(figure: str) -> str:
    nodes, _, cost = figure.partition(" new: ")
    where = "32 connections" if "connections" in cost else "p50"
    return f"{nodes} new node{'s' * (nodes != '1')} a request, {where}"
