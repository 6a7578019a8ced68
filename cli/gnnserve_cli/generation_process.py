"""Generation in a process that ends, for programs that serve afterwards.

What training imports and allocates stays with its process: a server that trained by itself kept four times the memory
of one that found its revision published. So `run` has another process do what `gnnserve generate` does, and opens the
revision as at a second start. That process shows its progress and its errors on the same terminal. It ends with the
server's: a signal is handed on, and a server that is killed leaves no orphan. It is suspended and resumed with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import msgspec
import typer

from gnnserve_api.decoding import decode, decoder
from gnnserve_api.device import Device
from gnnserve_api.errors import RepositoryError, ResourceError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.manifest import Document, folder_of, name_of, parse_document
from gnnserve_api.spec.paths import ManifestFolder
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.exits import ExitCode, errors_as_exit_codes, exit_in_order, leave

if TYPE_CHECKING:
    from gnnserve_worker.repository.repository import Repository

PROGRAM = "gnnserve_cli.generation_process"
"""Module that the process runs."""
_ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that wait until the process can be ended by them in order, and is known to the one that started it."""
_ORPHAN_END_S = 10.0
"""Time in which a process whose server is gone ends in order."""


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """A service that is to have a revision, and embeddings where its manifest asks for them."""

    manifest: Path
    service: GNNService
    stored: Repository
    uri_files: Sequence[Path]
    """Files with the addresses of the first sinks of its embeddings."""


class WantedManifest(msgspec.Struct, frozen=True):
    """A `WantedRevision`, for another process."""

    name: str
    """Name of the manifest in messages."""
    document: str
    """The manifest as JSON, with what its author set."""
    folder: str
    """Folder in which its relative paths begin."""
    home: str | None
    uri_files: tuple[str, ...]


class GenerationRequest(msgspec.Struct, frozen=True):
    """Line on the standard input of the process."""

    repository: str
    device: Device | None
    wanted: tuple[WantedManifest, ...]


class GenerationAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line that the process answers with, for each of the wanted manifests in their order."""

    revision: str = ""
    """Name of the revision that is published now; empty: the repository has a problem."""
    path: str = ""
    problem: str = ""
    remedy: str = ""


def published_revisions(
    wanted: Sequence[WantedRevision], repository: Path, device: Device | None
) -> list[RevisionManifest | RepositoryError]:
    """The revision of each service, which is generated where it is not published yet, by another process; or why its
    repository cannot be used. `device`: of an option, in place of the manifests'."""
    outcomes = [_found(of) for of in wanted]
    missing = [place for place, outcome in enumerate(outcomes) if outcome is None]
    if missing:
        request = GenerationRequest(str(repository), device, tuple(_describe(wanted[place]) for place in missing))
        for place, answer in zip(missing, in_a_process(request), strict=True):
            outcomes[place] = _outcome(wanted[place].stored, answer)
    return [outcome for outcome in outcomes if outcome is not None]


def _found(of: WantedRevision) -> RevisionManifest | RepositoryError | None:
    """The revision, where there is nothing to compute; None: there is."""
    from gnnserve_cli.generating import find_published  # noqa: PLC0415 - it brings numpy and numba

    try:
        return find_published(of.service, of.stored)
    except RepositoryError as error:
        return error


def _describe(of: WantedRevision) -> WantedManifest:
    base = folder_of(of.manifest)
    return WantedManifest(
        name_of(of.manifest),
        of.service.model_dump_json(by_alias=True, exclude_unset=True),
        str(base.folder),
        None if base.home is None else str(base.home),
        tuple(str(file) for file in of.uri_files),
    )


def _outcome(stored: Repository, answer: GenerationAnswer) -> RevisionManifest | RepositoryError:
    if not answer.revision:
        return RepositoryError(answer.path, answer.problem, answer.remedy)
    published = stored.find_named(answer.revision)
    if published is None:
        return RepositoryError(
            stored.folder, f"revision {answer.revision} was generated, and is gone", "generate it again"
        )
    return published


# The process, from outside


def in_a_process(request: GenerationRequest) -> list[GenerationAnswer]:
    """Have another process generate what is wanted. It has said what went wrong where this raises typer.Exit."""
    reading, writing = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    with open(reading, "rb") as answers:  # noqa: PTH123 - a descriptor
        try:
            # -P: not with modules of the folder that this one was started in, such as a user's random.py. A group of
            # its own: Ctrl-C is for this process, which hands it on once. Not a session, which Linux would give a share
            # of the processors apart from this one's.
            process = subprocess.Popen(  # noqa: S603 - this interpreter, and a name of ours
                [sys.executable, "-P", "-m", PROGRAM, str(writing)],
                stdin=subprocess.PIPE, pass_fds=(writing,), process_group=0,
            )  # fmt: skip
        except BaseException:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise
        finally:
            os.close(writing)
        try:
            with _suspended_together(process):
                code, said = _ask(process, request, answers, before)
        finally:
            _end(process)
    if code > 0:
        raise typer.Exit(code)
    if code < 0:
        raise _killed(-code)
    if len(said) < len(request.wanted):
        raise ResourceError("the process that generates ended without its answer; start it again")
    return said


@contextmanager
def _suspended_together(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Suspend and resume the process with this one, by Ctrl-Z and `fg`: it is not of the group that the terminal
    stops."""

    def suspend(_number: int, _frame: FrameType | None) -> None:
        process.send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)

    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTSTP, suspend)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _ask(
    process: subprocess.Popen[bytes], request: GenerationRequest, answers: BinaryIO, signals: Collection[int]
) -> tuple[int, list[GenerationAnswer]]:
    """Send the request. Returns the exit status of the process, and what it has answered. `signals`: those to be
    blocked from now on."""
    assert process.stdin is not None  # noqa: S101  (it was asked for)
    read = decoder(GenerationAnswer).decode
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        with suppress(BrokenPipeError):  # it ended already, and its exit status says why
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        said = [read(line) for line in answers]
        return process.wait(), said
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        code = process.wait()
        if code == ExitCode.OK:
            raise  # it was done
        return code, []


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process where it still runs, in order, and wait for that."""
    assert process.stdin is not None  # noqa: S101  (as above)
    with suppress(BrokenPipeError):
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
        process.wait()


def _killed(number: int) -> Exception:
    if number == signal.SIGKILL:
        return ResourceError(
            "the process that generates was killed, as the kernel does where memory runs out; free some, or lower "
            "spec.model.training.batchSize (over several types with batches: Sampled beside it); networks that it has "
            "trained will not be trained again"
        )
    return ResourceError(
        f"the process that generates was ended by signal {number} ({signal.strsignal(number)}); start it again"
    )


# The process itself


def main() -> None:
    answers = open(int(sys.argv[1]), "wb", buffering=0)  # noqa: SIM115, PTH123 - until the process ends
    signal.signal(signal.SIGTERM, _end_once)
    # As a group in the background it would be stopped by what it writes to a terminal that is set so (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    code = int(ExitCode.OK)
    try:
        with errors_as_exit_codes():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            request = decode(sys.stdin.buffer.readline(), GenerationRequest)
            threading.Thread(target=_end_with_server, daemon=True).start()
            carry_out(request, lambda answer: answers.write(msgspec.json.encode(answer) + b"\n"))
    except typer.Exit as end:
        code = end.exit_code
    leave(code)


def _end_once(number: int, frame: FrameType | None) -> NoReturn:
    # The server's end is told twice, by a signal and by the end of standard input, which must not interrupt the removal
    # of what is half-written.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exit_in_order(number, frame)


def _end_with_server() -> None:
    # The other end of standard input is open for as long as the server's process is there. Not `sys.stdin`: its lock
    # would be held as the interpreter ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_END_S)
    os._exit(ExitCode.TERMINATED)


def carry_out(request: GenerationRequest, tell: Callable[[GenerationAnswer], object]) -> None:
    """Find or generate the revision of each manifest, and make its embeddings. What a repository lacks is told, and
    does not keep the others from theirs; other errors are raised."""
    from gnnserve_cli.generating import publish  # noqa: PLC0415 - it takes a second, and a signal must find its handler

    for of in request.wanted:
        base = ManifestFolder(Path(of.folder), None if of.home is None else Path(of.home))
        service = parse_document(Document(of.name, json.loads(of.document)), base)
        try:
            published, _ = publish(service, Path(request.repository), list(map(Path, of.uri_files)), request.device)
        except RepositoryError as error:
            tell(GenerationAnswer(path=error.path, problem=error.problem, remedy=error.remedy))
        else:
            tell(GenerationAnswer(revision=published.revision))


if __name__ == "__main__":
    main()
