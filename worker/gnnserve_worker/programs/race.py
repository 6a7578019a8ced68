"""Runs of a program again and again over the same large inputs: a program that gives others each time is refused.

Sums of many rows into one race where a runtime shares them among threads, and programs may draw numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import ProgramOutput
from gnnserve_worker.programs.answers import Runner

RUNS, LEAST_ROWS = 20, 2000


def check_repeats(
    runner: Runner, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int, lanes: int = 2
) -> tuple[np.ndarray, ...]:
    """The outputs, which are equal in all runs, as many at a time as `lanes`. `inputs`: best of `LEAST_ROWS` rows and
    more. InputError: they are not equal. ProgramFailedError."""
    with ThreadPoolExecutor(lanes) as threads:
        runs = list(threads.map(lambda _: runner.run(inputs, outputs, rows), range(RUNS)))
    first = runs[0]
    for output, place in zip(outputs, range(len(outputs)), strict=True):
        differing = [run[place] for run in runs[1:] if not np.array_equal(run[place], first[place], equal_nan=True)]
        if differing:
            off = max(float(np.nanmax(np.abs(found - first[place]))) for found in differing)
            raise InputError(
                f"spec.model.program.outputs.{output.name}",
                f"{len(differing)} of {RUNS - 1} runs differ from the first one over the same {rows:,} rows, by up to "
                f"{off:.2g}",
                "export the module in evaluation mode (model.eval()), and draw no random numbers in it",
            )
    return first
