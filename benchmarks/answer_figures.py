"""Tables about single answers: over HTTP, beside other listeners, of typed graphs, beside a commit before."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figure_blocks import figures, number, paragraphs, table


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
    """Costs of both commits, in the middle of the pairs; their ratios are the verdicts."""
    return table(
        ("cost, median", f"at {found['base'][:7]}", f"at {found['head'][:7]}"),
        (
            (cost, *(number(statistics.median(of_one)) for of_one in zip(*pairs, strict=True)))
            for cost, pairs in found["costs"].items()
        ),
    )


@figures("malformed")
def malformed(found: Any) -> str:
    left = found["before"], found["after"]
    return paragraphs(
        table(
            ("requests", "sent"),
            ((kind, f"{count:,}") for kind, count in found["requests"].items()),
        ),
        table(
            ("answered", "times"),
            (
                *((f"HTTP {status}", f"{count:,}") for status, count in found["statuses"].items()),
                *((f"gRPC {code}", f"{count:,}") for code, count in found["calls"].items()),
            ),
        ),
        table(
            ("", "before", "after"),
            (
                (words, *(f"{moment[key]:g}" for moment in left))
                for key, words in (
                    ("anonymous_mib", "anonymous memory, MiB"), ("descriptors", "descriptors"), ("threads", "threads"),
                )
            ),
        ),
        f"Wrong answers: {found['wrong']:,}. Requests without an answer: {found['unanswered']:,}. "
        f"Tracebacks: {found['tracebacks']:,}.",
    )  # fmt: skip


@figures("typed")
def typed(found: Any) -> str:
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
    words = {"one": "1 seed", "one32": "1 seed, 32 connections", "1024": "1,024 seeds"}
    loads = {load: of_one for load, of_one in found.get("http", {}).items() if load in words}
    return table(
        ("over HTTP", "gnnserve, p50 ms", "the peer", "gnnserve, requests/s", "the peer"),
        (
            (
                words[load],
                *(number(of_one["p50Ms"][server]) for server in ("gnnserve", "peer")),
                *(number(of_one["requestsPerS"][server]) for server in ("gnnserve", "peer")),
            )
            for load, of_one in loads.items()
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
