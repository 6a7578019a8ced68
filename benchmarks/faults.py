"""The operator in simulated trouble: scenes of a service's life, disturbed at every moment and in every way.

Everything of the operator is real but kopf and sockets; see `tests/control/campaign`. A point is one run of a scene
with one trouble; its end, its history and every moment of it are held against the same scene in peace. A sequence is a
random life, held against a fresh apply of its last spec. A guard is a line of the operator without which a test fails.

Every point of every scene takes hours of processor time. With a limit of minutes, the scenes that are due (those not
played in full first, then the oldest) are played for as long, one result after another goes into the committed file,
and all else in it stays. Each scene says at which commit it was played.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table
from tests.control.campaign.play import play
from tests.control.campaign.points import pairs, points
from tests.control.campaign.scenarios import SCENES
from tests.control.campaign.sequences import Life, live, lives
from tests.control.campaign.sweep import sweep
from tests.control.mutation import GUARDS, judge_all

from benchmarks.results import FOLDER, commit, write_result

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
    """The place where it was mended; empty for a false alarm, of which `what` gives the reason."""


FOUND = (
    Found("image_during_generation", "a Job whose pod had succeeded and that did not say so yet was thrown away for "
          "another image", "decide/generation.py"),
    Found("new_recipe", "a succeeded Job was deleted and made again while the watch of pods was behind that of Jobs",
          "decide/published.py"),
    Found("(sequences)", "status.baseVariant of a service without workers was an outdated one", "plan.py"),
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
    Found("first_apply", "a Job was made though its claim was refused, and made again once there was one", "apply.py"),
    Found("recipe_and_back", "a Job of an earlier recipe, made by the late write of a leader that was overtaken, is "
          "deleted by the next one, as it should be", ""),
    Found("claim_deleted", "a Job that computes was deleted where the watch of claims went back to before a deletion",
          "reconcile.py"),
    Found("claim_deleted_and_another_model", "a Job was made for a claim whose deletion the watch had not told of: its "
          "pod cannot start, and the Job is deleted once it is known", ""),
    Found("claim_deleted_and_suspended", "a worker that is wanted again gets its pod while the deletion of its claim "
          "is not known: it cannot start, and is replaced once it is", ""),
    Found("claim_deleted_at_the_first_generation", "a pod more: the deletion of its claim is not known", ""),
    Found("claim_deleted_at_the_first_generation", "a claim that an overtaken leader made late is left: the operator "
          "deletes none", ""),
    Found("claim_deleted_at_the_first_generation", "where the next claim is refused once, the first one's name is "
          "free by then, and taken again", ""),
    Found("damaged_and_claim_deleted", "a Job that had generated into the next claim was deleted and made again, three "
          "times over: the watch of the table still told of a repair in the deleted claim", "decide/repair.py"),
    Found("damaged_again_and_again", "a scene waits while the operator is down, and went on right before its restart: "
          "mended in the campaign", ""),
    Found("damaged_and_claim_deleted", "a repair is done and counted before the deletion of its claim is known", ""),
    Found("damaged_again_and_again", "of two deletions told in the other order, the table is made again from the Job, "
          "and its damage found and repaired once more", ""),
    Found("damaged_again_and_again", "a Job more: a list of long ago has a repair begin that was done", ""),
    Found("damaged_and_another_model", "a Job more: where the operator is restarted twice, the repair has begun by the "
          "time another model is asked for", ""),
    Found("claim_deleted_while_suspended", "where the next claim is refused once, the first one's name is free by "
          "then, and taken again", ""),
    Found("claim_deleted_while_suspended", "a claim that is gone was called kept while the next one was refused",
          "decide/readiness.py"),
    Found("claim_deleted_while_suspended", "a worker pod more: the deletion of its claim is not known", ""),
    Found("claims_deleted_one_after_the_other", "the last claim has another number: an earlier one had not gone by "
          "then, or gone sooner", ""),
    Found("claims_deleted_one_after_the_other", "a worker pod more: the deletion of its claim is not known", ""),
    Found("claims_deleted_one_after_the_other", "the scene waited for a claim by its name, where another name was "
          "free: mended in the campaign", ""),
    Found("deployment_held_by_a_finalizer", "a Deployment that was being deleted was called a rolling update",
          "decide/readiness.py"),
    Found("deployment_held_by_a_finalizer", "an operator that crashes right before it calls a service stalled does so "
          "15 minutes after its restart: it does not know how long it has waited", ""),
    Found("(sequences)", "what a suspended service has depends on what it had when it was suspended", ""),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SceneResult:
    name: str
    points: int
    reached: int
    """Points at which the trouble did strike."""
    violations: dict[str, list[str]]
    """Violations by point."""
    by_kind: dict[str, int]
    seconds: float
    """Processor time of one core."""
    stride: int
    """Every so many-th point was played; 1: all."""
    commit: str
    date: str
    """When it was played (RFC 3339)."""


def _prepare_process() -> None:
    """No log records, and no search for garbage among modules and histories, which takes a twelfth of the time."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)


def run_scene(index: int, stride: int, at_commit: str) -> SceneResult:
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
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return SceneResult(
        scene.__name__, len(chosen), reached, violations, dict(by_kind), round(time.perf_counter() - began, 1), stride,
        at_commit, now,
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


@dataclass(frozen=True, slots=True)
class Rest:
    """What is found beside the scenes."""

    sequences: int
    sequences_s: float
    violated: dict[str, list[str]]
    """Sequences with violations."""
    guards: dict[str, bool]
    """Whether a test fails without it."""
    caught_by: dict[str, str | None]


def play_rest(pool: ProcessPoolExecutor, *, quick: bool) -> Rest:
    sequences = QUICK_SEQUENCES if quick else SEQUENCES
    began = time.perf_counter()
    drawn = pool.map(run_lives, *zip(*_batches(sequences), strict=True))
    violated = {life: words for found in drawn for life, words in found.items()}
    lives_s = round(time.perf_counter() - began, 1)
    verdicts = list(judge_all(GUARDS[:QUICK_GUARDS] if quick else GUARDS))
    guards = {verdict.guard.name: verdict.is_caught for verdict in verdicts}
    return Rest(sequences, lives_s, violated, guards, {verdict.guard.name: verdict.by for verdict in verdicts})


def play_scenes(
    pool: ProcessPoolExecutor, names: Sequence[str], stride: int, minutes: float | None
) -> Iterator[SceneResult]:
    """Play scenes, one on each processor, and yield each result as it comes. After `minutes` no other scene begins."""
    index_of = {scene.__name__: index for index, scene in enumerate(SCENES)}
    at_commit = str(commit()["id"])
    due, began = list(names), time.monotonic()
    with Progress(transient=True) as shown:
        task = shown.add_task("scenes", total=len(due))
        running = {
            pool.submit(run_scene, index_of[due.pop(0)], stride, at_commit)
            for _ in range(min(os.cpu_count() or 1, len(due)))
        }
        while running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for done in ended:
                if due and (minutes is None or time.monotonic() - began < 60 * minutes):
                    running.add(pool.submit(run_scene, index_of[due.pop(0)], stride, at_commit))
                shown.advance(task)
                yield done.result()


def due_scenes(kept: Mapping[str, SceneResult]) -> list[str]:
    """Names of all scenes: those not played in full first, then those played longest ago."""

    def age(name: str) -> tuple[bool, str]:
        result = kept.get(name)
        return (result is not None and result.stride == 1, "" if result is None else result.date)

    return sorted((scene.__name__ for scene in SCENES), key=age)


def read_result(file: Path) -> tuple[dict[str, SceneResult], Rest] | None:
    """The committed result; None: there is none."""
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    before = {"stride": STRIDE, "commit": found["commit"]["id"], "date": found["date"]}
    scenes = {raw["name"]: SceneResult(**{**before, **raw}) for raw in found["scenes"]}
    rest = Rest(
        found["sequences"], found["sequencesSeconds"], found["sequencesViolated"], found["guards"], found["caughtBy"]
    )
    return scenes, rest


def build_body(scenes: Mapping[str, SceneResult], rest: Rest) -> dict[str, Any]:
    """The result file's; scenes that exist no more are left out."""
    played = [scenes[scene.__name__] for scene in SCENES if scene.__name__ in scenes]
    violations = sum(len(s.violations) for s in played) + len(rest.violated)
    in_full = sum(s.stride == 1 for s in played)
    missed = sum(not is_caught for is_caught in rest.guards.values())
    return {
        "points": sum(s.points for s in played),
        "sequences": rest.sequences,
        "violations": violations,
        "guards": rest.guards,
        "caughtBy": rest.caught_by,
        "pointsByKind": dict(sum((Counter(s.by_kind) for s in played), Counter[str]())),
        "scenes": [asdict(s) for s in played],
        "sequencesSeconds": rest.sequences_s,
        "sequencesViolated": rest.violated,
        "found": [asdict(found) for found in FOUND],
        "verdicts": {
            "violations": {"wanted": 0, "measured": violations, "passed": violations == 0},
            "scenes played at every point": {
                "wanted": len(SCENES), "measured": in_full, "passed": in_full == len(SCENES)
            },
            "guards that no test misses": {"wanted": 0, "measured": missed, "passed": missed == 0},
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few points of each scene; under a minute")
    parser.add_argument("--full", action="store_true", help="every point of every scene")
    parser.add_argument("--minutes", type=float, help="with --full: go on with the scenes that are due, for so long")
    arguments = parser.parse_args()
    stride = QUICK_STRIDE if arguments.quick else 1 if arguments.full else STRIDE
    before = read_result(FOLDER / "faults.json") if arguments.full and arguments.minutes is not None else None
    scenes: dict[str, SceneResult] = {} if before is None else before[0]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        rest = None if before is None else before[1]
        for result in play_scenes(pool, due_scenes(scenes), stride, arguments.minutes):
            scenes[result.name] = result
            if rest is not None:
                write_result("faults", False, build_body(scenes, rest))
        if rest is None:
            rest = play_rest(pool, quick=arguments.quick)
            write_result("faults", arguments.quick, build_body(scenes, rest))
    show(list(scenes.values()), rest.sequences, len(rest.violated), rest.sequences_s)
    for where, violated in [*((s.name, s.violations) for s in scenes.values()), ("sequences", rest.violated)]:
        for what, words in list(violated.items())[:_SHOWN]:
            print(f"{where}, {what}:\n    " + "\n    ".join(words))
    missed = [name for name, is_caught in rest.guards.items() if not is_caught]
    caught = len(rest.guards) - len(missed)
    print(f"{caught} of {len(rest.guards)} guards are noticed by a test when they are taken away")
    print(f"not noticed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
