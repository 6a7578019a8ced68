"""Reading a program's file in a process of its own, which may take as much memory as the program, and no more time than
it may take to start: a file may be made so that reading it takes gigabytes, or minutes.

The process is a fork of `fork_server.py`, as those that run programs are.
"""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import ProgramLimits
from gnnserve_worker.programs.allowed import check_size, facts_of, import_onnx
from gnnserve_worker.programs.facts import FIELD, ProgramFacts
from gnnserve_worker.programs.forking import ForkServer, fork_server
from gnnserve_worker.programs.messages import MOST_BYTES, NAME, ProcessPurpose, Start, receive, send
from gnnserve_worker.programs.priority import yield_to_others
from gnnserve_worker.programs.providers import came_near_limit, limit_memory

_COPIES = 3
"""Times that a file is in memory while it is read: as bytes, as a message, and while that grows."""


class InspectionRefusal(msgspec.Struct, frozen=True):
    """An InputError on its way from one process to another."""

    where: str
    problem: str
    remedy: str


class InspectionResult(msgspec.Struct, frozen=True):
    """Either of the two."""

    facts: ProgramFacts | None = None
    refusal: InspectionRefusal | None = None


def inspect(file: Path, limits: ProgramLimits, server: ForkServer | None = None) -> ProgramFacts:
    """What the file states of itself. `server`: None: this process's. InputError: it is no program that may be run, or
    takes more to read than the limits allow."""
    check_size(file)
    if file.is_file() and _COPIES * file.stat().st_size > limits.memory_bytes:
        raise _too_large(limits, f"{file.name} has {file.stat().st_size:,} bytes, and ")
    found = _ask(file, limits, fork_server() if server is None else server)
    if found.facts is None:
        assert found.refusal is not None  # noqa: S101 - one of the two is there
        raise InputError(found.refusal.where, found.refusal.problem, found.refusal.remedy)
    return found.facts


def _ask(file: Path, limits: ProgramLimits, server: ForkServer) -> InspectionResult:
    start = Start(str(file), limits.memory_bytes, kept_bytes=0, purpose=ProcessPurpose.INSPECT)
    own, other = socket.socketpair()
    with own:
        try:
            with other:
                fork = server.fork(start, [other.fileno()])
        except OSError as error:
            raise InputError(f"{FIELD}.uri", f"{file.name} is not read: {error}", "generate again") from error
        try:
            own.settimeout(limits.start_seconds)
            return decoding.decode(receive(own), InspectionResult)
        except TimeoutError as error:
            problem = f"{file.name} took longer than {limits.start_seconds:g} s to be read"
            raise InputError(f"{FIELD}.uri", problem, "export the module again") from error
        except (EOFError, OSError) as error:
            fork.kill()
            problem = f"{file.name} ended the process that read it, with status {fork.code()}"
            raise InputError(f"{FIELD}.uri", problem, "export the module again, or give limits.memory more") from error
        finally:
            fork.kill()
            fork.code()


def main(start: Start, descriptors: list[int]) -> None:
    """`descriptors`: the connection that the answer is wanted over."""
    Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    yield_to_others(threading.get_native_id())
    (descriptor,) = descriptors
    send(socket.socket(fileno=descriptor), _inspected(start))


def _inspected(start: Start) -> InspectionResult:
    limits = ProgramLimits(memory_bytes=start.memory_bytes)
    try:
        import_onnx()
        limit_memory(start.device, start.memory_bytes)
        found = InspectionResult(facts_of(Path(start.file)))
    except MemoryError:
        return _refused(_too_large(limits))
    except InputError as error:
        return _refused(_too_large(limits) if came_near_limit(start.memory_bytes) else error)
    if len(msgspec.json.encode(found)) > MOST_BYTES:
        problem = f"the names of inputs and outputs take more than {MOST_BYTES:,} bytes"
        return _refused(InputError(f"{FIELD}.uri", problem, "export the module again"))
    return found


def _refused(error: InputError) -> InspectionResult:
    return InspectionResult(refusal=InspectionRefusal(error.where, error.problem, error.remedy))


def _too_large(limits: ProgramLimits, why: str = "") -> InputError:
    problem = f"is too little: {why}the program cannot be read within {limits.memory_bytes / 2**20:,g} MiB"
    remedy = "give it more, or write the weights into a file beside the program"
    return InputError(f"{FIELD}.limits.memory", problem, remedy)
