"""A stream of labelled answers with tolerances, while changes come: whether stale rows cost more than is tolerated.

The network of three layers of `costs.py`, a fifth of the edges of whose graph comes in steps. At each step the same
labelled nodes are asked about under several tolerances: a variant is chosen by what its stale rows are expected to cost
then, as a worker does it, and computed within what the request bears. Rows are made anew by requests, for a small
budget, and in turns between them; every eighth turn compares answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from benchmarks.staleness.costs import STORED, WHOLE, Served
from benchmarks.staleness.networks import Edges
from benchmarks.staleness.rules import Scene
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.objective import Objective
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.scheduling.choice import choose
from gnnserve_worker.scheduling.variants import Losses, VariantChooser
from gnnserve_worker.staleness.loss import LossSteps

TOLERANCES_PERMILLE = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
WINDOW = 1000
"""Answers of one tolerance that are looked at together."""
_REQUEST_SEEDS, _TURNS_OF_COMPARISON = 20, 8
_BUDGET = RefreshBudget(rows=16, microseconds=200)
_MAX_SEEDS, _STEP_MS = 1024, 10_000.0


@dataclass(frozen=True, slots=True)
class StreamEffort:
    steps: int
    nodes: int
    """Labelled nodes that are asked about in each step, under each tolerance."""
    turns: int
    """Turns in which rows are made anew, in each step."""


@dataclass(frozen=True, slots=True)
class TolerancesKept:
    """Answers under one tolerance."""

    tolerance_permille: float
    answers: int
    stored: int
    """Answers that were computed from stored rows, which may be stale."""
    rows_made: int
    """Rows that their requests made anew."""
    differing: int
    """Answers that are others than those over the whole graph as it is then."""
    lost: int
    """By how many fewer of the answers are right."""
    windows: int
    exceeded: int
    """Windows of answers whose accuracy is lower, by more than the tolerance, than that of exact ones."""


@dataclass(frozen=True, slots=True)
class Stream:
    graph: str
    changes: int
    sensitivity: float
    """Upper bound of the share of answers that differ for each unit of the mean error of what they read, at the end."""
    kept: tuple[TolerancesKept, ...]


def measure_stream(
    name: str, repository: Repository, revision: str, edges: Edges, scene: Scene, labels: np.ndarray,
    effort: StreamEffort,
) -> Stream:  # fmt: skip
    """`labels`: int64 [nodes]."""
    came = edges.where(~scene.is_old)
    is_once = came.sources < came.targets
    pairs = np.stack((came.sources[is_once], came.targets[is_once]), axis=1)
    rng = np.random.default_rng(17)
    served = Served(repository, revision, pairs[:0])
    served.living.refreshing.budget = _BUDGET
    found = {tolerance: list[_Answers]() for tolerance in TOLERANCES_PERMILLE}
    steps = LossSteps()
    for step, part in enumerate(np.array_split(rng.permutation(pairs), effort.steps)):
        served.apply(part)
        asked = np.sort(rng.choice(scene.asked, min(effort.nodes, len(scene.asked)), replace=False))
        _, exact = served.ask(WHOLE, asked, step)
        for tolerance in TOLERANCES_PERMILLE:
            steps.follow(served.living.expected_losses(), step * _STEP_MS)
            found[tolerance].append(_answer(served, steps, tolerance, asked, exact, labels[asked]))
        for turn in range(effort.turns):
            if turn % _TURNS_OF_COMPARISON:
                served.living.refresh_worst()
            else:
                served.comparison.compare_some()
    (layer,) = served.living.refreshing.layers
    kept = tuple(_kept(tolerance, answers) for tolerance, answers in found.items())
    return Stream(name, len(pairs), round(layer.sensitivity.bound, 4), kept)


@dataclass(frozen=True, slots=True)
class _Answers:
    is_other: np.ndarray
    """bool [answers]"""
    gain: np.ndarray
    """int64 [answers]: 1 where it is right and the exact one is not, -1 the other way round."""
    is_stored: bool
    rows_made: int


def _answer(
    served: Served, steps: LossSteps, tolerance: float, asked: np.ndarray, exact: np.ndarray, labels: np.ndarray
) -> _Answers:
    # Draws of fewer neighbours would make answers differ, too.
    profile = served.manifest.profile
    variants = tuple(one for one in profile.variants if one.name in {STORED, WHOLE})
    stale = {STORED: steps.permille[STORED]}
    chooser = VariantChooser(replace(profile, variants=variants), _MAX_SEEDS, known=Losses(stale=stale))
    choice = choose(chooser, Objective(None, tolerance), _REQUEST_SEEDS)
    answers, rows_made = exact, 0
    if choice.variant == STORED:
        infer = served.infer_within(chooser.bearable_permille(STORED, tolerance))
        parts = np.array_split(asked, max(1, len(asked) // _REQUEST_SEEDS))
        inferred = [infer(STORED, part, 0, with_embeddings=False) for part in parts]
        answers = np.concatenate([one.scores.argmax(1) for one in inferred])
        rows_made = sum(one.stale.made for one in inferred if one.stale is not None)
    gain = (answers == labels).astype(np.int64) - (exact == labels).astype(np.int64)
    return _Answers(answers != exact, gain, choice.variant == STORED, rows_made)


def _kept(tolerance: float, answers: Sequence[_Answers]) -> TolerancesKept:
    gain = np.concatenate([one.gain for one in answers])
    ends = np.arange(0, len(gain), WINDOW)
    losses = -np.add.reduceat(gain, ends) * 1000 / np.diff(np.append(ends, len(gain)))
    return TolerancesKept(
        tolerance, len(gain), sum(len(one.gain) for one in answers if one.is_stored),
        sum(one.rows_made for one in answers), int(sum(one.is_other.sum() for one in answers)), int(-gain.sum()),
        len(ends), int((losses > tolerance + 1e-9).sum()),
    )  # fmt: skip
