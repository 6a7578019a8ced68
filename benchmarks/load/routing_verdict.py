"""Results of the routing benchmark, and the verdict: in time, and as accurate as the best variant that is in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from gnnserve_cli.loadgen.scenario import Scenario

WANTED_PERCENT = 99.0
ACCURACY_ROUNDING = 0.005
"""Points: what two runs of the same variant differ by, since other requests are on time."""

Report = dict[str, Any]
"""What `gnnserve load --json` prints."""


@dataclass(frozen=True, slots=True)
class Result:
    attained: float
    """Percent of the requests that were answered in time; one that was refused was not."""
    accuracy: float | None
    """Percent: mean over the answers in time of the answering variant's test accuracy."""
    p99_ms: float | None
    refused: int
    requests: int
    shares: dict[str, float]
    """Shares of the answers by variant."""
    late: int
    """Requests that the generator itself was late with."""
    bases: tuple[str, ...] = field(default=())
    """What the slow loop said."""

    @staticmethod
    def of(report: Report, bases: Sequence[str] = ()) -> Result:
        latency = report["latencyMs"]
        return Result(
            attained=round(report["attainedPercent"], 3),
            accuracy=None if report["accuracyPercent"] is None else round(report["accuracyPercent"], 3),
            p99_ms=None if latency is None else latency["p99"],
            refused=report["refused"],
            requests=report["requests"],
            shares=report["variants"],
            late=report["late"],
            bases=tuple(bases),
        )

    def describe(self) -> dict[str, Any]:
        more = {"p99Ms": self.p99_ms, "refused": self.refused, "requests": self.requests, "shares": self.shares}
        return {
            "attained": self.attained,
            "accuracy": self.accuracy,
            **more,
            "generatorLate": self.late,
            **({"changes": list(self.bases)} if self.bases else {}),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    text: str


def judge(results: Mapping[str, Result], names: Sequence[str]) -> Verdict:
    """`names`: the variants, the most accurate first."""
    ours, fastest = results["ours"], results[names[-1]]
    attaining = [name for name in names if results[name].attained >= WANTED_PERCENT]
    if not attaining:
        passed = ours.attained >= fastest.attained
        text = f"no variant attains {WANTED_PERCENT:g} %; ours {ours.attained:.2f}, {names[-1]} {fastest.attained:.2f}"
        return Verdict(passed, text)
    best = max(attaining, key=lambda name: results[name].accuracy or 0.0)
    accuracy, rival = ours.accuracy or 0.0, results[best].accuracy or 0.0
    passed = ours.attained >= WANTED_PERCENT and accuracy >= rival - ACCURACY_ROUNDING
    return Verdict(passed, f"ours {ours.attained:.2f} % at {accuracy:.2f}; best static {best} at {rival:.2f}")


def describe(results: Mapping[str, Result], names: Sequence[str], verdict: Verdict | None) -> dict[str, Any]:
    return {
        **{policy: result.describe() for policy, result in results.items() if policy not in names},
        "static": {name: results[name].describe() for name in names if name in results},
        **({} if verdict is None else {"verdict": asdict(verdict)}),
    }


def show(found: Mapping[Scenario, Mapping[str, Result]], verdicts: Mapping[Scenario, Verdict]) -> None:
    table = Table("Scenario", "Policy", title="Answered in time, and how accurately")
    for header in ("Attained %", "Accuracy %", "p99 ms", "Refused", "Shares"):
        table.add_column(header, justify="right")
    for scenario, results in found.items():
        for policy, result in results.items():
            shares = "  ".join(f"{name} {share:.0%}" for name, share in result.shares.items())
            p99 = "" if result.p99_ms is None else f"{result.p99_ms:,.0f}"
            accuracy = "" if result.accuracy is None else f"{result.accuracy:.2f}"
            table.add_row(scenario, policy, f"{result.attained:.2f}", accuracy, p99, f"{result.refused:,}", shares)
        table.add_section()
    Console().print(table)
    for scenario, verdict in verdicts.items():
        print(f"{scenario}: {'passed' if verdict.passed else 'FAILED'}: {verdict.text}")


def brief(result: Result) -> str:
    accuracy = "none" if result.accuracy is None else f"{result.accuracy:.2f}"
    return f"attained {result.attained:.2f} %, accuracy {accuracy}, {result.refused:,} of {result.requests:,} refused"
