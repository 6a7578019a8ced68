"""Exit codes: the one place where an error becomes a number that a script can test, and how a process ends with it.

`gnnserve --help` prints the meanings from here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import NoReturn

import typer

from gnnserve_api.errors import (
    DeviceLostError,
    GnnserveError,
    InputError,
    RepositoryError,
    ResourceError,
    lack_of_memory,
    words_on_command_line,
)
from gnnserve_api.extras import lack_of_package
from gnnserve_client.errors import NotTrustedError, RefusedError


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    BAD_INPUT = 2
    REPOSITORY = 3
    RESOURCE = 4
    OBJECTIVE_NOT_MET = 5
    OVERLOADED = 6
    DEVICE = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "unexpected failure, of this program or inside the server",
    ExitCode.BAD_INPUT: "bad input: usage, manifest, graph, or a request refused with another 4xx",
    ExitCode.REPOSITORY: "a repository is unfinished, altered or of a newer version",
    ExitCode.RESOURCE: "something is missing: a free port, disk space, memory, a server that answers",
    ExitCode.OBJECTIVE_NOT_MET: "no variant can meet the objective, and --strict was given (422)",
    ExitCode.OVERLOADED: "refused for load or not ready; try again later (429, 503)",
    ExitCode.DEVICE: "the GPU was lost while it served: start it again",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
    ExitCode.TERMINATED: "terminated before it served",
}


def exit_code_of_status(status: int) -> ExitCode:
    if status == 422:
        return ExitCode.OBJECTIVE_NOT_MET
    if status in {429, 503}:
        return ExitCode.OVERLOADED
    return ExitCode.BAD_INPUT if 400 <= status < 500 else ExitCode.FAILURE


def exit_code_of(error: Exception) -> ExitCode | None:  # noqa: PLR0911 - one a kind
    """The exit code of an error; None: an unexpected error, whose stack trace is worth more than a number."""
    match error:
        case InputError():
            return ExitCode.BAD_INPUT
        case RepositoryError():
            return ExitCode.REPOSITORY
        case RefusedError(status=status):
            return exit_code_of_status(status)
        case DeviceLostError():
            return ExitCode.DEVICE
        case BrokenPipeError():
            return ExitCode.BROKEN_PIPE
        case ResourceError() | OSError():
            # A full disk or a forbidden folder, met where no code had a better sentence for it.
            return ExitCode.RESOURCE
    lacks = lack_of_memory(error) or lack_of_package(error)
    return None if lacks is None else ExitCode.RESOURCE


def sentence_of(error: Exception) -> str:
    """The message of an error that has an exit code, with the options that help."""
    match error:
        case RefusedError(status=401):
            return f"{error}; give one with --token-file, or in the environment variable GNNSERVE_TOKEN"
        case NotTrustedError(url=url, problem=problem):
            return (
                f"{url}: its certificate is not trusted: {problem}; give the certificate of its issuer with --ca-file, "
                "or ask by a name that it is for"
            )
    if (package := lack_of_package(error)) is not None:
        return f"this needs {package}"
    found = None if isinstance(error, GnnserveError) else lack_of_memory(error)
    if found is None:
        return words_on_command_line(error)
    return (
        f"there is not enough memory ({found}); free some, raise the limit of this process (ulimit -v) or "
        "container, or compute on a larger machine"
    )


# Ends of processes


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn an error within it that has an exit code into one line on standard error and typer.Exit."""
    try:
        try:
            yield
        finally:
            # Small outputs wait in the buffer: a reader that left must show here, not at interpreter exit.
            sys.stdout.flush()
    except KeyboardInterrupt:
        _complain("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise
        if code is not ExitCode.BROKEN_PIPE:
            _complain(f"error: {sentence_of(error)}")
        _discard_output_that_fails()
        raise typer.Exit(code) from None


def _complain(message: str) -> None:
    with suppress(OSError):  # standard error may be the full disk; the exit code still says it
        typer.echo(message, err=True)


def _discard_output_that_fails() -> None:
    """The interpreter flushes standard output once more when it exits; that must not complain either."""
    try:
        sys.stdout.flush()
    except OSError:
        pass
    else:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def exit_in_order(_number: int, _frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM: what is half-written is removed on the way out."""
    sys.exit(ExitCode.TERMINATED)


def leave(code: str | int | None) -> NoReturn:
    """End this process, in which all is done."""
    if "torch" in sys.modules and isinstance(code, int):
        # The interpreter would take torch's modules apart for most of a second, and Triton's would complain on standard
        # error of what is referred to still.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
