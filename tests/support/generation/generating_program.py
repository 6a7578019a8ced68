"""A program that has a process generate, as `gnnserve run` does, and the process, which does something else instead.

`python -m tests.support.generation.generating_program DEED`: the deed is a function of this module. Prints the
process's id.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import typer

from gnnserve_api.errors import InputError, RepositoryError
from gnnserve_cli import generation_process
from gnnserve_cli.exits import errors_as_exit_codes, exit_in_order, leave
from gnnserve_cli.generation_process import GenerationAnswer, GenerationRequest, WantedManifest, in_a_process
from gnnserve_cli.progress import showing_progress
from gnnserve_worker.progress import Progress

_DEED = "GNNSERVE_TEST_DEED"


def answer() -> None:
    pass


def wait() -> None:
    try:
        print(os.getpid(), flush=True)
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("interrupted; nothing was published", file=sys.stderr)
        raise typer.Exit(130) from None


def clean_up() -> None:
    """Take half a second to remove what is half-written."""
    try:
        wait()
    finally:
        time.sleep(0.5)
        print("cleaned up", flush=True)


def be_refused() -> None:
    raise InputError("spec.graph", "is none", "give one")


def fail() -> None:
    raise KeyError("a defect")


def find_damage() -> None:
    raise RepositoryError("models/r1", "was altered", "restore it")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train() -> None:
    with showing_progress() as listener:
        listener(Progress("train x1", 1, 2))
        listener(Progress("train x1", 2, 2))


def carry_out(request: GenerationRequest, tell: Callable[[GenerationAnswer], object]) -> None:
    deed = globals()[os.environ[_DEED]]
    if deed not in {wait, clean_up}:
        print(os.getpid(), flush=True)
    try:
        deed()
    except RepositoryError as error:
        tell(GenerationAnswer(path=error.path, problem=error.problem, remedy=error.remedy))
    else:
        tell(GenerationAnswer(revision=request.wanted[0].name))


def main() -> None:
    if sys.argv[1].isdecimal():  # the descriptor that the process answers to
        generation_process.carry_out = carry_out
        generation_process.main()
        return
    os.environ[_DEED] = sys.argv[1]
    # The process does not look for modules in the folder that it was started in.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    generation_process.PROGRAM = "tests.support.generation.generating_program"
    signal.signal(signal.SIGTERM, exit_in_order)
    code = 0
    try:
        with errors_as_exit_codes():
            wanted = WantedManifest("r1", json.dumps({}), "/", None, ())
            for said in in_a_process(GenerationRequest("models", None, (wanted,))):
                print(said.revision or f"{said.path}: {said.problem}; {said.remedy}", flush=True)
    except typer.Exit as end:
        code = end.exit_code
    leave(code)


if __name__ == "__main__":
    main()
