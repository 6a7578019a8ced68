"""Answers of a run: scores of each seed, from the output of its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput
from gnnserve_worker.programs.contract import LaidOut


class Runner(Protocol):
    """Runs a program, or layers that stand for one."""

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int | Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """As `ProgramRunner.run`."""
        ...  # pragma: no cover

    def close(self) -> None: ...  # pragma: no cover


_Wanted = tuple[ProgramOutput, np.ndarray, np.ndarray | None]
"""An output, where its rows go, and which seeds it has; None: all."""


def run_program(
    runner: Runner, program: ProgramManifest, schema: GraphSchema, laid: LaidOut, scores: np.ndarray,
    embeddings: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Fill in `scores`, float32 [seeds, columns], and `embeddings`, of seeds of the type that scores are of. Seeds of
    a type that the program gives nothing for have 0. ProgramFailedError."""
    wanted = [*_wanted(program, schema, laid, scores)]
    if embeddings is not None and program.embeddings is not None:
        own = None if laid.kinds is None else laid.kinds == schema.place_of(program.scored_type(schema))
        wanted.append((program.embeddings, embeddings, own))
    if not wanted:
        return
    places = [laid.seeds if own is None else laid.seeds[own] for _, _, own in wanted]
    counts = [int(each.max(initial=-1)) + 1 for each in places]
    found = runner.run(laid.arrays, [output for output, _, _ in wanted], counts)
    for rows, place, (_, out, own) in zip(found, places, wanted, strict=True):
        if own is None:
            out[:] = rows[place]
        else:
            out[own] = rows[place]


def _wanted(program: ProgramManifest, schema: GraphSchema, laid: LaidOut, scores: np.ndarray) -> list[_Wanted]:
    if laid.kinds is None:
        return [(program.scores, scores, None)]
    found: list[_Wanted] = []
    for kind in np.unique(laid.kinds).tolist():
        output, own = program.scores_of(schema.types[kind].name, schema), laid.kinds == kind
        if output is None:
            scores[own] = 0
        else:
            found.append((output, scores, own))
    return found
