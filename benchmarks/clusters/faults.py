"""The operator in simulated trouble: scenes of a service's life, disturbed at every moment and in every way.

Everything of the operator is real but kopf and sockets; see `tests/control/campaign`. A point is one run of a scene
with one trouble; its end, its history and every moment of it are held against the same scene in peace. A sequence is a
random life, held against a fresh apply of its last spec. A guard is a line of the operator without which a test fails.

A run that has come back to what it is in peace is not played on, but for some of them, which show that nothing is
missed by it. Each scene is a part, and so are the guards of one file; `--full --minutes` goes on with those that were
run longest ago.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from multiprocessing import get_context
from pathlib import Path
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

from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, exactly

STRIDE, QUICK_STRIDE = 5, 150
"""Every so many-th point of a scene, beginning with another one in each."""
SEQUENCES, QUICK_SEQUENCES = 1000, 20
QUICK_GUARDS = 1
GUARDED = tuple(dict.fromkeys(guard.file for guard in GUARDS))
"""Files of the operator that have guards."""
_BATCH = 50
"""Sequences that one process draws from one seed."""
_SHOWN = 3
WHOLE_EVERY = 50
"""One of so many points is played to its end, even if it comes back to peace."""


@dataclass(frozen=True, slots=True)
class Found:
    """Faults that the campaign found while it was written."""

    scene: str
    what: str
    mended: str
    """The place where it was mended; empty for a false alarm, of which `what` gives the reason."""


FOUND = (
    Found("image_during_generation", "a Job whose pod had succeeded and that did not say so yet was thrown away for "
          "another image", "decide/jobs.py"),
    Found("new_recipe", "a succeeded Job was deleted and made again while the watch of pods was behind that of Jobs",
          "decide/repository.py"),
    Found("(sequences)", "status.baseVariant of a service without workers was an outdated one", "plan.py"),
    Found("delete_and_apply_with_slow_collection", "a Job was made before its claim, which the old one still held up, "
          "and then taken for one of a claim that is lost", "apply.py"),
    Found("image_during_generation", "a Job whose pod had not been told of yet was thrown away for another image",
          "decide/jobs.py"),
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
          "times over: the watch of the table still told of a repair in the deleted claim", "decide/repository.py"),
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
    Found("compaction_and_another_model", "a Job that compacted was deleted and made again where the watch of the "
          "table went back to before its model", "reconcile.py"),
    Found("compacted_and_damaged", "a Job that repaired was deleted and made again where the watch of the table went "
          "back to before the damage", "reconcile.py"),
    Found("worker_lost_while_an_edit_is_wrong", "the scene did not wait until a watch that had lost a change was "
          "noticed: mended in the campaign", ""),
    Found("deployment_scaled_by_an_autoscaler", "an event that the API server refuses is logged alone, and the next "
          "one of the same fight comes ten minutes later", ""),
    Found("(sequences)", "what a suspended service has depends on what it had when it was suspended", ""),
)  # fmt: skip


@dataclass(slots=True)
class SceneResult:
    name: str
    points: int
    reached: int
    """Points at which the trouble did strike."""
    violations: dict[str, list[str]]
    """Violations by point."""
    by_kind: dict[str, int]
    seconds: float
    """Processor time."""
    stride: int
    """Every so many-th point was played; 1: all."""
    came_back: int = 0
    """Points after which the run came back to what it is in peace, from where on it was not played."""
    played_on: int = 0
    """Points after which it came back, and was played on."""
    untold: dict[str, list[str]] = field(default_factory=dict)
    """Violations of these that only playing on told, by point."""

    def and_more(self, other: SceneResult) -> SceneResult:
        """Results of the same scene, of other points."""
        return SceneResult(
            self.name, self.points + other.points, self.reached + other.reached, self.violations | other.violations,
            dict(Counter(self.by_kind) + Counter(other.by_kind)), round(self.seconds + other.seconds, 1), self.stride,
            self.came_back + other.came_back, self.played_on + other.played_on, self.untold | other.untold,
        )  # fmt: skip


def _prepare_process() -> None:
    """No log records, and no search for garbage among modules and histories, which takes a twelfth of the time."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000)


def run_points(index: int, stride: int, first: int, step: int) -> SceneResult:
    """Play every `step`-th of the chosen points of a scene, beginning with the `first`."""
    _prepare_process()
    scene, began_s = SCENES[index], _used_s()
    peaceful = asyncio.run(play(scene))
    violations = {"in peace": list(peaceful.violations)} if peaceful.violations else {}
    every = [*points(peaceful), *pairs(peaceful, 2)]
    chosen = every[index * 7 % stride :: stride][first::step]
    by_kind, whole = Counter(point.kind for point in chosen), frozenset(chosen[::WHOLE_EVERY])
    result = SceneResult(scene.__name__, len(chosen), 0, violations, dict(by_kind), 0.0, stride)
    for point, outcome in sweep(scene, chosen, peaceful, whole).items():
        result.reached += outcome.reached > 0
        if outcome.violations:
            violations[str(point)] = list(outcome.violations)
        if outcome.came_back is None:
            continue
        result.came_back += point not in whole
        result.played_on += point in whole
        if untold := [words for words in outcome.violations if words not in outcome.came_back and point in whole]:
            result.untold[str(point)] = untold
    result.seconds = round(_used_s() - began_s, 1)
    return result


def _used_s() -> float:
    """Processor time of this process and of those that it forked."""
    return sum(os.times()[:4])


def run_scene(index: int, run: Run) -> dict[str, Any]:
    """Play a scene, its points divided among the processes."""
    stride = QUICK_STRIDE if run.quick else 1 if run.options.full else STRIDE
    step = _processors()
    played = [run.context.submit(run_points, index, stride, first, step) for first in range(step)]
    results: list[SceneResult] = [each.result() for each in played]
    scene = reduce(SceneResult.and_more, results)
    _tell(scene.name, scene.violations)
    return {"scenes": [asdict(scene)]}


def _tell(where: str, violated: Mapping[str, Sequence[str]]) -> None:
    for what, words in list(violated.items())[:_SHOWN]:
        print(f"{where}, {what}:\n    " + "\n    ".join(words))


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


def show(found: Mapping[str, Any]) -> None:
    names = ("Points", "Struck", "Violations now", "Found and mended", "False alarms", "Seconds")
    table = Table(Column("Scene", no_wrap=True), *names, title="The operator in trouble")
    for scene in found.get("scenes", ()):
        table.add_row(
            scene["name"], str(scene["points"]), str(scene["reached"]), str(len(scene["violations"])),
            *_found(scene["name"]), f"{scene['seconds']:.1f}",
        )  # fmt: skip
    if "sequences" in found:
        table.add_row(
            "(sequences)", str(found["sequences"]), "", str(len(found["sequencesViolated"])), *_found("(sequences)"),
            f"{found['sequencesSeconds']:.1f}",
        )  # fmt: skip
    Console().print(table)
    missed = [name for name, is_caught in found.get("guards", {}).items() if not is_caught]
    if missed:
        print(f"not noticed when they are taken away: {', '.join(missed)}")


def _found(scene: str) -> tuple[str, str]:
    of_scene = [found for found in FOUND if found.scene == scene]
    mended = sum(bool(found.mended) for found in of_scene)
    return str(mended), str(len(of_scene) - mended)


def run_sequences(run: Run) -> dict[str, Any]:
    sequences = QUICK_SEQUENCES if run.quick else SEQUENCES
    began = time.perf_counter()
    drawn = run.context.map(run_lives, *zip(*_batches(sequences), strict=True))
    violated = {life: words for found in drawn for life, words in found.items()}
    _tell("sequences", violated)
    took_s = round(time.perf_counter() - began, 1)
    return {"sequences": sequences, "sequencesSeconds": took_s, "sequencesViolated": violated}


def run_guards(file: str, run: Run) -> dict[str, Any]:
    """Take the guards of one file of the operator away, one at a time."""
    guards = [guard for guard in GUARDS if guard.file == file]
    verdicts = list(judge_all(guards[:QUICK_GUARDS] if run.quick else guards))
    return {
        "guards": {verdict.guard.name: verdict.is_caught for verdict in verdicts},
        "caughtBy": {verdict.guard.name: verdict.by for verdict in verdicts},
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="every point of every scene")


def _processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def processes(_: Run) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(_processors(), mp_context=get_context("spawn")) as pool:
        yield pool


def count_violations(found: Any) -> int:
    scenes = sum(len(scene["violations"]) for scene in found["scenes"])
    return scenes + len(found["sequencesViolated"])


def count_untold(found: Any) -> int | None:
    """None: every run was played to its end."""
    untold = [len(scene["untold"]) for scene in found["scenes"] if "untold" in scene]
    return sum(untold) if untold else None


VERDICTS = (
    Verdict("points and sequences with violations", exactly(0), count_violations),
    Verdict("violations that only playing on after peace has come back shows", exactly(0), count_untold),
    Verdict(
        "scenes played at every point", exactly(len(SCENES)),
        lambda found: sum(scene["stride"] == 1 for scene in found["scenes"]),
        "scenes that have not been played anew",
    ),
    Verdict(
        "guards without which a test fails", exactly(len(GUARDS)), lambda found: sum(found["guards"].values()),
        "guards that came since have not been taken away",
    ),
)  # fmt: skip

LIVES = (
    *(Part(scene.__name__, partial(run_scene, index)) for index, scene in enumerate(SCENES)),
    Part("sequences", run_sequences),
)
WITHOUT_GUARDS = tuple(Part(f"guards-{Path(file).stem}", partial(run_guards, file)) for file in GUARDED)

BENCHMARK = Benchmark(
    "faults",
    (*LIVES, *WITHOUT_GUARDS),
    VERDICTS,
    about=__doc__,
    quick=tuple(part.name for part in (*LIVES, *WITHOUT_GUARDS[:1])),
    show=show,
    around=processes,
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
