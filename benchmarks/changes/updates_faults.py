"""Changes that last while processes are killed, paused and cut off: what is lost or doubled, and how they recover.

In the manner of Jepsen: clients write and read through three workers that share a log in PostgreSQL, all of them real
processes, which are killed with SIGKILL: workers, the database with its whole tree, both at once. What clients sent and
heard is checked against the log in the end (`tests/changes/campaign`). Each round has a log of its own, so that it does
not grow without an end, and another variant answers in the next one.

With a limit of minutes no further round begins after them, and the next call with the same seed, of the same commit,
goes on with the rounds that are due.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table
from tests.changes.campaign.checker import Kind
from tests.changes.campaign.faults import KILLS, Done, Fault
from tests.changes.campaign.history import Absent, Acknowledged, Attempt, Refused, Seen, Unanswered
from tests.changes.campaign.play import Plan, Round, play
from tests.changes.campaign.revision import VARIANTS
from tests.support.changes.postgres import postgres_server

from benchmarks.results import Benchmark, Part, Run, commit, main
from benchmarks.shapes import CACHE
from benchmarks.verdicts import Verdict, given

WANTED_KILLS, QUICK_KILLS = 1000, 12
_ROUND_KILLS = 50
_SEED = "1"
_SHOWN_CHARACTERS = 120
_SHOWN = 5
"""Violations of a round whose words are kept."""
PROMISED = frozenset({Kind.LOST, Kind.DOUBLED, Kind.OUT_OF_ORDER, Kind.GAP, Kind.ELSEWHERE, Kind.TWO_OFFSETS})
"""Violations of what an acknowledgement promises."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """After a fault that was waited for, behind another one that was waited for: seconds since what was away came
    back."""

    fault: str
    acknowledged_s: float
    """Until the next batch is acknowledged, by any worker."""
    followed_s: float
    """Until every worker has applied what was acknowledged by then."""


@dataclass(frozen=True, slots=True)
class RoundFigures:
    seed: str
    variant: str
    seconds: float
    faults: dict[str, int]
    acknowledged: int
    """Batches."""
    refused: int
    unanswered: int
    """Attempts that left open what became of the batch."""
    repeated: int
    """Acknowledgements of batches that were in the log already."""
    reads: int
    behind_a_write: int
    """Reads that were answered, and asked for an offset."""
    longest_silence_s: float
    """Longest time without an acknowledgement."""
    compactions: int
    """Versions of the graph that workers switched to while all of it went on."""
    compactions_killed: int
    compactions_failed: dict[str, int]
    """Jobs that ended otherwise, by what they said: the database was away."""
    recoveries: list[Recovery]
    violations: dict[str, int]
    words: list[str]
    """The first violations, in words."""

    @property
    def kills(self) -> int:
        return sum(self.faults.get(kill, 0) for kill in KILLS)


def figures_of(played: Round) -> RoundFigures:
    attempts, reads = played.history.attempts, played.history.reads
    acknowledged = [one for one in attempts if isinstance(one.answer, Acknowledged)]
    answered = [read for read in reads if isinstance(read.answer, Seen | Absent)]
    times_s = sorted(one.ended_s for one in acknowledged)
    return RoundFigures(
        seed=played.plan.seed,
        variant=played.plan.variant,
        seconds=round(times_s[-1] - times_s[0], 1) if times_s else 0.0,
        faults=dict(Counter(str(done.event.fault) for done in played.done)),
        acknowledged=len({one.key for one in acknowledged}),
        refused=len({one.key for one in attempts if isinstance(one.answer, Refused)}),
        unanswered=sum(isinstance(one.answer, Unanswered) for one in attempts),
        repeated=sum(isinstance(one.answer, Acknowledged) and one.answer.is_repeated for one in attempts),
        reads=len(answered),
        behind_a_write=sum(read.min_offset > 0 for read in answered),
        longest_silence_s=round(max((after - before for before, after in pairwise(times_s)), default=0.0), 3),
        compactions=played.compactions.done,
        compactions_killed=played.compactions.killed,
        compactions_failed=dict(Counter(words[:_SHOWN_CHARACTERS] for words in played.compactions.failed)),
        recoveries=[*recoveries_of(played.done, acknowledged)],
        violations=dict(Counter(violation.kind.name for violation in played.violations)),
        words=[str(violation) for violation in played.violations[:_SHOWN]],
    )


def recoveries_of(done: Sequence[Done], acknowledged: Iterable[Attempt]) -> Iterator[Recovery]:
    times_s = np.array(sorted(one.ended_s for one in acknowledged))
    for before, one in pairwise([None, *done]):
        assert one is not None  # noqa: S101
        if one.followed_s is None or (before is not None and before.followed_s is None):
            continue
        next_s = times_s[np.searchsorted(times_s, one.ended_s) :]
        if len(next_s):
            acknowledged_s = round(float(next_s[0]) - one.ended_s, 4)
            yield Recovery(str(one.event.fault), acknowledged_s, round(one.followed_s - one.ended_s, 4))


def body_of(rounds: Sequence[RoundFigures]) -> dict[str, Any]:
    faults = sum((Counter(one.faults) for one in rounds), Counter[str]())
    violations = sum((Counter(one.violations) for one in rounds), Counter[str]())
    return {
        "faults": {fault: faults[fault] for fault in Fault},
        "violations": dict(violations),
        "recoveries": [*_recovery_rows(rounds)],
        "rounds": [{**asdict(one), "recoveries": len(one.recoveries)} for one in rounds],
    }


def _recovery_rows(rounds: Sequence[RoundFigures]) -> Iterator[dict[str, Any]]:
    for fault in Fault:
        found = [recovery for one in rounds for recovery in one.recoveries if recovery.fault == fault]
        if found:
            yield {
                "fault": str(fault),
                "times": len(found),
                "acknowledged_s": _quantiles([each.acknowledged_s for each in found]),
                "followed_s": _quantiles([each.followed_s for each in found]),
            }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(max(values), 3)}


def verdicts_of(found: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    rounds = found["rounds"]
    kills = sum(one["faults"].get(kill, 0) for one in rounds for kill in KILLS)
    batches = sum(one["acknowledged"] for one in rounds)
    reads, compactions = sum(one["reads"] for one in rounds), sum(one["compactions"] for one in rounds)
    promised = {kind.name for kind in PROMISED}
    broken = sum(count for name, count in found["violations"].items() if name in promised)
    others = sum(found["violations"].values()) - broken
    enough = kills >= WANTED_KILLS
    yield (
        "acknowledged changes lost, doubled or out of order",
        {
            "wanted": f"0 over {WANTED_KILLS:,} kills of workers, database and both",
            "measured": f"{broken} over {kills:,} kills, of {batches:,} batches that were acknowledged",
            "passed": broken == 0 and enough,
        },
    )
    yield (
        "answers that are wrong or older than promised, workers that differ",
        {
            "wanted": f"0 over {WANTED_KILLS:,} kills",
            "measured": f"{others} of {reads:,} answers, and of {len(rounds)} ends, over {compactions:,} compactions",
            "passed": others == 0 and enough,
        },
    )


def play_rounds(kills: int, seed: str, done: int, ends_s: float, each: Callable[[Round], None]) -> None:
    """Play the rounds that are due behind those that are `done`; none begins after `ends_s`, by the monotonic clock."""
    with postgres_server() as database:
        for number in range(done, math.ceil(kills / _ROUND_KILLS)):
            if time.monotonic() >= ends_s:
                print(f"{number} rounds are done, others are due: call again to go on")
                return
            left = min(_ROUND_KILLS, kills - number * _ROUND_KILLS)
            plan = Plan(f"{seed}-{number}", left, VARIANTS[number % len(VARIANTS)])
            with tempfile.TemporaryDirectory(prefix="gnnserve-faults-") as folder:
                each(play(plan, Path(folder), database))


def kept_rounds(seed: str, kills: int) -> Path | None:
    """The file in which rounds are kept that a call with a limit of minutes goes on from, a line of JSON each. None:
    the checkout differs from its commit, so that none can be kept."""
    of_checkout = commit()
    if of_checkout["dirty"]:
        return None
    return CACHE / "updates-faults" / f"{of_checkout['id']}-{seed}-{kills}.jsonl"


def read_rounds(file: Path) -> list[RoundFigures]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=RoundFigures) for line in lines]


def keep_round(file: Path, figures: RoundFigures) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as kept:
        kept.write(msgspec.json.encode(figures) + b"\n")


def show(found: Mapping[str, Any]) -> None:
    times = Table("Fault", "Times", "Acknowledged again, p50 / p99 / max s", "All workers follow")
    for row in found["recoveries"]:
        words = [" / ".join(f"{value:.2f}" for value in row[key].values()) for key in ("acknowledged_s", "followed_s")]
        times.add_row(row["fault"], str(row["times"]), *words)
    Console(width=140).print(times)
    for one in found["rounds"]:
        for words in one["words"]:
            print(f"seed {one['seed']}: {words}")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=WANTED_KILLS, help="default: %(default)s")
    parser.add_argument("--seed", default=_SEED, help="what all rounds are drawn from (default: %(default)s)")


def run_all(run: Run) -> dict[str, Any]:
    options = run.options
    kills: int = QUICK_KILLS if run.quick else options.kills
    kept = None if run.quick or options.minutes is None else kept_rounds(options.seed, kills)
    rounds = [] if kept is None else read_rounds(kept)
    ends_s = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes

    def add(played: Round) -> None:
        rounds.append(figures_of(played))
        found = rounds[-1]
        if kept is not None:
            keep_round(kept, found)
        print(
            f"round {len(rounds)}: {found.kills} kills in {found.seconds:.0f} s, {found.acknowledged:,} batches, "
            f"{found.reads:,} reads, {found.compactions} compactions, {sum(found.violations.values())} violations",
            flush=True,
        )

    play_rounds(kills, options.seed, len(rounds), ends_s, add)
    return body_of(rounds)


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    return given(dict(verdicts_of(found)))


BENCHMARK = Benchmark(
    "updates_faults",
    (Part("all", run_all, ("gnnserve_worker.pods.serve", "gnnserve_worker.compaction")),),
    verdicts,
    about=__doc__,
    show=show,
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
