"""Comparison of a program that was written with gnnserve's own scores: for a few nodes, for inputs that are longer than
needed, and for batches of thousands of rows.

Programs run on threads, and what threads do wrong shows in large batches only, and not in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from gnnserve_api.files.export import ExportCheck, ExportFormat
from gnnserve_worker.export.inputs import Inputs, draw_inputs, join_inputs, pad_inputs, shuffle_edges
from gnnserve_worker.export.programs import Program
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.programs.layered import ROWS, SCORES

TOLERANCE = 1e-4
LARGE_BATCHES, LEAST_ROWS, MOST_ROWS = 20, 2000, 8000
_NODES, _OTHER_NODES, _PADDING, _KEY = 8, 3, 5, 0
_DRAWN = 16
"""Questions that large batches are made of, over and over: a small graph has no more, and each takes a draw."""


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    inputs: Inputs
    outputs: Inputs
    """gnnserve's own answer."""
    rows: int
    """Rows of the inputs."""

    scored: tuple[str, ...] = (SCORES,)
    """Outputs that are compared, a row for each node that is asked about."""

    @property
    def scores(self) -> np.ndarray:
        return self.outputs[SCORES]

    @property
    def nodes(self) -> int:
        """Nodes that are asked about."""
        return sum(len(self.outputs[name]) for name in self.scored)


def check_program(
    revision: LoadedRevision, variant: LoadedVariant, chosen: ExportFormat, program: Program
) -> list[ExportCheck]:
    """Raises RuntimeError where scores differ by more than the tolerance."""
    nodes = revision.answered_nodes
    few, fewer = (_ask(revision, variant, spread_nodes(nodes, count), _KEY) for count in (_NODES, _OTHER_NODES))
    padded = replace(fewer, inputs=pad_inputs(fewer.inputs, _PADDING), rows=fewer.rows + _PADDING)
    checks = [
        compare(chosen, [few], program),
        compare(chosen, [padded], program, _PADDING),
        compare(chosen, _large_batches(revision, variant), program),
    ]
    require_within(checks, variant.name)
    return checks


def compare(
    chosen: ExportFormat, questions: Iterable[ReferenceCase], program: Program, padding: int = 0
) -> ExportCheck:
    """One check over all questions, each of which is a batch. `padding`: as of `ExportCheck`."""
    batches = nodes = rows = 0
    largest = 0.0
    for one in questions:
        found = program(one.inputs)
        largest = max(largest, *(_difference(found[name], one.outputs[name]) for name in one.scored))
        batches, nodes, rows = batches + 1, max(nodes, one.nodes), max(rows, one.rows)
    return ExportCheck(chosen, batches, nodes, rows, padding, largest)


def require_within(checks: Sequence[ExportCheck], name: str) -> None:
    """Raises RuntimeError where a program of the variant of that name differs by more than the tolerance."""
    worst = max(checks, key=lambda check: check.largest_difference)
    if not worst.largest_difference <= TOLERANCE:
        raise RuntimeError(
            f"{name} as {worst.format} differs from gnnserve's own scores by {worst.largest_difference:.2g}, more "
            f"than {TOLERANCE}, in a batch of up to {worst.rows} rows"
        )


def spread_nodes(nodes: int, count: int) -> np.ndarray:
    """Evenly spread ones of so many nodes, int64, each once."""
    return np.unique(np.linspace(0, nodes - 1, count).astype(np.int64))


def _ask(revision: LoadedRevision, variant: LoadedVariant, nodes: np.ndarray, key: int) -> ReferenceCase:
    inputs = draw_inputs(revision, variant, nodes, key)
    return ReferenceCase(inputs, {SCORES: infer_batch(revision, variant.name, nodes, key).scores}, len(inputs[ROWS]))


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference of a score, relative to the largest one; infinite where one is no number."""
    largest = float(np.abs(found[: len(expected)] - expected).max())
    return largest / max(1.0, float(np.abs(expected).max())) if math.isfinite(largest) else math.inf


def _large_batches(revision: LoadedRevision, variant: LoadedVariant) -> Iterator[ReferenceCase]:
    """Batches of growing sizes. In every other one edges are in no order."""
    random = np.random.default_rng(_KEY)
    drawn = list(islice(_drawn(revision, variant, random), _DRAWN))
    for number, least_rows in enumerate(np.linspace(LEAST_ROWS, MOST_ROWS, LARGE_BATCHES)):
        blocks, rows = [], 0
        for block in islice(cycle(drawn), number % _DRAWN, None):
            blocks.append(block)
            rows += block.rows
            if rows >= least_rows:
                break
        inputs = join_inputs([block.inputs for block in blocks])
        scores = np.concatenate([block.scores for block in blocks])
        yield ReferenceCase(shuffle_edges(inputs, random) if number % 2 else inputs, {SCORES: scores}, rows)


def _drawn(revision: LoadedRevision, variant: LoadedVariant, random: np.random.Generator) -> Iterator[ReferenceCase]:
    """Questions about different nodes and draws, without end; about more nodes as long as they take few rows."""
    nodes, count = revision.answered_nodes, _NODES
    for key in range(1, 1 << 30):
        count = min(count, nodes)
        block = _ask(revision, variant, random.choice(nodes, count, replace=False).astype(np.int64), key)
        yield block
        if block.rows < MOST_ROWS / _DRAWN:
            count *= 2
