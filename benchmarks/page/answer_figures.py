"""Tables about single answers: over HTTP, beside other listeners, of typed graphs, beside a commit before."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.page.figure_blocks import figures, number, paragraphs, table
from benchmarks.page.peers_figures import HEAD, ratio_row, server_row
from benchmarks.regression.regression_counts import count_rows
from benchmarks.regression.regression_steps import step_rows


@figures("serving")
def serving(found: Any) -> str:
    return table(
        ("", "connections", "p50 / p99, ms", "answers/s", "nodes/s", "p50 over the echo's", "answers/s of the echo's"),
        (
            (
                case["name"],
                str(case["prediction"]["connections"]),
                " / ".join(number(case["prediction"]["latencyMs"][which]) for which in ("p50", "p99")),
                f"{case['prediction']['answersPerSecond']:,.0f}",
                f"{case['prediction']['seedsPerSecond']:,.0f}",
                f"{case['p50OverEcho']:.1f}",
                f"{case['throughputOfEcho']:.0%}",
            )
            for case in found["cases"]
        ),
    )


@figures("listener")
def listener(found: Any) -> str:
    """Time over that of our connections at the commit before, which were uvicorn's classes."""
    words = {"ours": "gnnserve's own listener", "uvicorn": "plain uvicorn (ASGI)", "granian": "granian (RSGI)"}
    costs = ("one seed, p50 ms", "32 connections, ms per request", "32 connections, processor µs per request")
    return table(
        ("time over that of the listener before", "one seed, p50", "32 connections, per request",
         "32 connections, processor time per request"),
        ((words[name], *(f"{of_one[cost][0]:.2f} ({of_one[cost][1]:.2f} to {of_one[cost][2]:.2f})" for cost in costs))
         for name, of_one in found["ratios"].items()),
    )  # fmt: skip


@figures("regression")
def regression(found: Any) -> str:
    """Costs of both commits, in the middle of the pairs; their ratios are the verdicts. Then the steps of a
    generation, and what is counted."""
    costs = table(
        ("cost, median", "over", "there", f"at {found['head'][:7]}"),
        (
            (
                cost,
                found["bases"][cost][:7],
                *(number(statistics.median(of_one)) for of_one in zip(*pairs, strict=True)),
            )
            for cost, pairs in found.get("costs", {}).items()
        ),
    )
    blocks = [costs]
    if "steps" in found:
        blocks.append(table(("step of a generation, median", "at the base", "now"), step_rows(found["steps"])))
    if "counts" in found:
        head = ("counted", f"at {found['counted_base'][:7]}", f"at {found['head'][:7]}")
        blocks.append(table(head, count_rows(found["counts"])))
    return paragraphs(*blocks)


@figures("malformed")
def malformed(found: Any) -> str:
    """Each part where it was run."""
    return paragraphs(
        *(_malformed_requests(found) if "requests" in found else ()),
        *(_hostile_overlays(found["overlays"]) if "overlays" in found else ()),
    )


def _malformed_requests(found: Any) -> Iterator[str]:
    yield _counts("requests", found["requests"])
    statuses = {f"HTTP {status}": count for status, count in found["statuses"].items()}
    yield _counts("answers", statuses | {f"gRPC {code}": count for code, count in found["calls"].items()})
    yield _moments(found)


def _hostile_overlays(found: Any) -> Iterator[str]:
    yield _counts("overlays", found["forms"])
    yield _counts("each changed in one way", found["kinds"])
    yield _counts("answers to overlays", {f"HTTP {status}": count for status, count in found["statuses"].items()})
    yield (
        f"Accepted and compared with the oracle: {found['accepted']:,}. Requests of others meanwhile: "
        f"{found['ofOthers']:,}. Attempts that were postponed for want of room: {found['postponed']:,}."
    )
    for graph in found["graphs"]:
        yield f"{graph['rules']}:"
        yield _moments(graph)


def _counts(words: str, counts: Mapping[str, int]) -> str:
    return table((words, "times"), ((name, f"{count:,}") for name, count in counts.items()))


def _moments(seen: Any) -> str:
    words = {"anonymous_mib": "anonymous memory, MiB", "descriptors": "descriptors", "threads": "threads"}
    moments = seen["before"], seen["after"]
    return table(
        ("", "after the warm-up", "at the end"),
        ((told, *(f"{moment[key]:g}" for moment in moments)) for key, told in words.items()),
    )


@figures("relations")
def relations(found: Any) -> str:
    return paragraphs(_typed_rows(found), _typed_answers(found), _typed_accuracies(found))


def _typed_rows(found: Any) -> str:
    if "rows" not in found:
        return ""
    costs, rows = found["rows"]["nanosecondsPerRow"], found["rows"]["rowsPerSeed"]
    words = {"oneType": "one type", "threeTypes": "three types"}
    return table(
        ("graph", "rows gathered for a seed", "ns a row"),
        ((words[kind], f"{rows[kind]:.0f}", f"{costs[kind]:.1f}") for kind in costs),
    )


def _typed_answers(found: Any) -> str:
    if "peers" not in found:
        return ""
    peers = found["peers"]
    graph = peers["graph"]
    nodes = sum(graph["types"].values())
    size = f"{nodes:,} nodes, {graph['edges'] / 1e6:.1f} million edges, {graph['features']} features"
    words = {"wholeFirstLayer": "best PyG over gnnserve", "products": "best PyG over products, over gnnserve"}
    return table(
        HEAD,
        (
            [f"*{size}*", "", "", "", ""],
            *(server_row(server) for server in peers["servers"].values()),
            *(ratio_row(words[kind], of_kind["ratios"]) for kind, of_kind in peers["ratios"].items()),
        ),
    )


def _typed_accuracies(found: Any) -> str:
    return table(
        ("graph", "architecture", "macro F1", "published", "by"),
        (
            (
                one["graph"], one["architecture"], f"{one['macroF1']:.4f} ± {one['deviation']:.4f}",
                f"{one['published']:.4f}", one["publishedBy"],
            )
            for one in found.get("accuracies", ())
        ),
    )  # fmt: skip
