"""The operator in simulated trouble: scenes of a service's life, disturbed at every moment and in every way.

Everything of the operator is real but kopf and sockets; see `tests/control/campaign`. A point is one run of a scene
with one trouble; its end, its history and every moment of it are held against the same scene in peace. A sequence is a
random life, held against a fresh apply of its last spec. A guard is a line of the operator without which a test fails.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.table import Column, Table
from tests.control.campaign.play import play
from tests.control.campaign.points import pairs, points
from tests.control.campaign.scenarios import SCENES
from tests.control.campaign.sequences import Life, live, lives
from tests.control.campaign.sweep import sweep
from tests.control.mutation import GUARDS, judge_all

from benchmarks.results import write_result

STRIDE, QUICK_STRIDE = 5, 150
"""Every so many-th point of a scene, beginning with another one in each."""
SEQUENCES, QUICK_SEQUENCES = 1000, 20
QUICK_GUARDS = 1
_BATCH = 50
"""Sequences that one process draws from one seed."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Found:
    """What the campaign found while it was written."""

    scene: str
    what: str
    mended: str
    """Where; empty: a false alarm, and `what` says why."""


FOUND = (
    Found("image_during_generation", "a Job whose pod had succeeded and that did not say so yet was thrown away for "
          "another image", "decide/generation.py"),
    Found("new_recipe", "a succeeded Job was deleted and made again while the watch of pods was behind that of Jobs",
          "decide/published.py"),
    Found("(sequences)", "status.baseVariant of a service that nobody answers was the one of long ago", "plan.py"),
    Found("delete_and_apply_with_slow_collection", "a Job was made before its claim, which the old one still held up, "
          "and then taken for one of a claim that is lost", "apply.py"),
    Found("image_during_generation", "a Job whose pod had not been told of yet was thrown away for another image",
          "decide/generation.py"),
    Found("job_and_table_deleted", "of two deletions told in the other order, the table is made again from the "
          "Job, and none is needed", ""),
    Found("children_edited", "more pods than in peace: a Deployment edited by hand stays so until the operator is told",
          ""),
    Found("lost_claim_at_once", "the Job is made again when the claim comes back a second later than it was made", ""),
    Found("lost_claim_and_another_model", "workers stayed with a claim that had been taken away under them, and waited "
          "for a revision that lies in its successor", "decide/workers.py"),
    Found("delete_at_the_first_child", "a pod more than in peace: where its Job comes to be before the service is "
          "deleted, as there, its pod may be made too", ""),
    Found("(sequences)", "what a suspended service has depends on what it had when it was suspended", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SceneResult:
    name: str
    points: int
    reached: int
    """Points at which the trouble did strike."""
    violations: dict[str, list[str]]
    """By point."""
    by_kind: dict[str, int]
    seconds: float
    """Of one core."""


def _prepare_process() -> None:
    """No log records, and no search for garbage among modules and histories, which takes a twelfth of the time."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)


def run_scene(index: int, stride: int) -> SceneResult:
    _prepare_process()
    scene, began = SCENES[index], time.perf_counter()
    peaceful = asyncio.run(play(scene))
    violations = {"in peace": list(peaceful.violations)} if peaceful.violations else {}
    every = [*points(peaceful), *pairs(peaceful, 2)]
    chosen = every[index * 7 % stride :: stride]
    reached, by_kind = 0, Counter(point.kind for point in chosen)
    for point, outcome in sweep(scene, chosen, peaceful).items():
        reached += outcome.reached > 0
        if outcome.violations:
            violations[str(point)] = list(outcome.violations)
    return SceneResult(
        scene.__name__, len(chosen), reached, violations, dict(by_kind), time.perf_counter() - began
    )  # fmt: skip


def run_lives(number: int, count: int) -> dict[str, list[str]]:
    """What was violated, by the life."""
    _prepare_process()
    violated: dict[str, list[str]] = {}

    @seed(number)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(lives)
    def draw(life: Life) -> None:
        if found := asyncio.run(live(life)):
            violated[str(life)] = found

    draw()
    return violated


def _batches(sequences: int) -> Iterator[tuple[int, int]]:
    """Seed and number of sequences."""
    for number, first in enumerate(range(0, sequences, _BATCH)):
        yield number, min(_BATCH, sequences - first)


def show(scenes: Sequence[SceneResult], sequences: int, lives_violated: int, lives_s: float) -> None:
    names = ("Points", "Struck", "Violations now", "Found and mended", "False alarms", "Seconds")
    table = Table(Column("Scene", no_wrap=True), *names, title="The operator in trouble")
    for result in scenes:
        table.add_row(
            result.name, str(result.points), str(result.reached), str(len(result.violations)),
            *_found(result.name), f"{result.seconds:.1f}",
        )  # fmt: skip
    table.add_row("(sequences)", str(sequences), "", str(lives_violated), *_found("(sequences)"), f"{lives_s:.1f}")
    Console().print(table)


def _found(scene: str) -> tuple[str, str]:
    of_scene = [found for found in FOUND if found.scene == scene]
    mended = sum(bool(found.mended) for found in of_scene)
    return str(mended), str(len(of_scene) - mended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few points of each scene; under a minute")
    parser.add_argument("--full", action="store_true", help="every point of every scene")
    arguments = parser.parse_args()
    stride = QUICK_STRIDE if arguments.quick else 1 if arguments.full else STRIDE
    sequences = QUICK_SEQUENCES if arguments.quick else SEQUENCES
    guards = GUARDS[:QUICK_GUARDS] if arguments.quick else GUARDS
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        scenes = list(pool.map(run_scene, range(len(SCENES)), [stride] * len(SCENES)))
        began = time.perf_counter()
        drawn = pool.map(run_lives, *zip(*_batches(sequences), strict=True))
        lives_violated = {life: words for found in drawn for life, words in found.items()}
        lives_s = time.perf_counter() - began
    show(scenes, sequences, len(lives_violated), lives_s)
    for where, violated in [*((s.name, s.violations) for s in scenes), ("sequences", lives_violated)]:
        for what, words in list(violated.items())[:_SHOWN]:
            print(f"{where}, {what}:\n    " + "\n    ".join(words))
    verdicts = list(judge_all(guards))
    missed = [verdict.guard.name for verdict in verdicts if not verdict.is_caught]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} guards are missed by a test when they are taken away; "
          f"not: {', '.join(missed) or 'none'}")  # fmt: skip
    body: dict[str, Any] = {
        "points": sum(s.points for s in scenes),
        "sequences": sequences,
        "violations": sum(len(s.violations) for s in scenes) + len(lives_violated),
        "guards": {verdict.guard.name: verdict.is_caught for verdict in verdicts},
        "caughtBy": {verdict.guard.name: verdict.by for verdict in verdicts},
        "pointsByKind": dict(sum((Counter(s.by_kind) for s in scenes), Counter[str]())),
        "scenes": [asdict(s) for s in scenes],
        "sequencesSeconds": round(lives_s, 1),
        "sequencesViolated": lives_violated,
        "found": [asdict(found) for found in FOUND],
    }
    write_result("faults", arguments.quick, body)


if __name__ == "__main__":
    main()
