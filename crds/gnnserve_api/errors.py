"""Errors that people read.

    GnnserveError
    ├── InputError         the user must fix it: a manifest, a graph file, a request
    ├── RepositoryError    files of a repository cannot be read, or are of a newer schema
    │   ├── DamagedError   they are missing or altered: generating again brings them back
    │   └── OutdatedError  they are of an older schema: generating again makes new ones beside them
    └── ResourceError      the machine lacks something: disk space, a free port, a network
        ├── StorageError   a repository's folder cannot be written: it is full, or forbidden
        └── DeviceError    a GPU that was asked for cannot be computed on: none is seen, it is lost, its memory is short
            └── DeviceLostError  it failed this process, which has to be started anew

Each names the object, what was found, what was expected and the next step. Command line and HTTP turn them
into exit codes and status codes at the edge; nothing else catches them.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class GnnserveError(Exception):
    """Root of the tree; its text is a message for a person, without a stack trace."""


class InputError(GnnserveError):
    """`where` is the field, file or flag: `spec.variants.pruning.factors[2]`, `nodes[1]`, `--rate`."""

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class RepositoryError(GnnserveError):
    def __init__(self, path: object, problem: str, remedy: str) -> None:
        self.path = str(path)
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}; {remedy}")


class DamagedError(RepositoryError):
    pass


class OutdatedError(RepositoryError):
    pass


class ResourceError(GnnserveError):
    pass


class StorageError(ResourceError):
    """Its text holds anywhere; the edge that knows where the program runs adds what can be done there."""

    def __init__(self, path: object, problem: str, remedy: str, *, on_command_line: str, in_cluster: str) -> None:
        self.on_command_line = on_command_line
        self.in_cluster = in_cluster
        super().__init__(f"{path}: {problem}; {remedy}")


def words_on_command_line(error: Exception) -> str:
    return f"{error}, or {error.on_command_line}" if isinstance(error, StorageError) else str(error)


def words_in_cluster(error: Exception) -> str:
    return f"{error}, or {error.in_cluster}" if isinstance(error, StorageError) else str(error)


def remedy_of(error: OSError, otherwise: str) -> str:
    """What to do about a file that the system does not give; `otherwise`: where it is not for its permissions."""
    return permission_remedy(error.filename) if error.errno in {errno.EACCES, errno.EPERM} else otherwise


def permission_remedy(path: object) -> str:
    """Remedy for a path that this process may not use: as whom the process runs, and whose the path is."""
    others = sorted({*os.getgroups()} - {os.getegid()})
    also = f" (and {', '.join(map(str, others))})" if others else ""
    return (
        f"this program runs as user {os.geteuid()} and group {os.getegid()}{also}{_owner_words(path)}: give one of "
        "them the right to it and to the folders above it, by chmod or chown (in a cluster, fsGroup does so, but not "
        "on NFS and host paths)"
    )


def _owner_words(path: object) -> str:
    """Owner of the path, or of the nearest folder above that can be looked at; empty where none can."""
    if not isinstance(path, str | os.PathLike):
        return ""
    for found in (Path(path), *Path(path).parents):
        try:
            status = found.stat()
        except OSError:
            # It is missing, or in a folder that is closed, whose own owner is the one to know.
            continue
        owner = f"user {status.st_uid} and group {status.st_gid}"
        return f", and {found} belongs to {owner} with mode {status.st_mode & 0o7777:o}"
    return ""


_MEMORY_WORDS = (
    "out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "failed to map segment",
)  # fmt: skip
"""torch says it in a RuntimeError, each allocator in its own words, and the loader of libraries in an ImportError."""


def lack_of_memory(error: BaseException) -> str | None:
    """What the allocator said, in one line; None: the error is another one.

    Its words tell the processor's memory from a GPU's.
    """
    text = str(error).strip()
    says_so = isinstance(error, RuntimeError | ImportError | OSError) and any(
        words in text.lower() for words in _MEMORY_WORDS
    )
    if not says_so and not isinstance(error, MemoryError):
        return None
    return text.splitlines()[0] if text else "out of memory"


NO_GPU = "no GPU can be used"
"""How a DeviceError begins: the operator knows it by that in what a worker says of itself."""


NO_USABLE_CREDENTIALS = "no usable credentials"
"""How a worker that waits for its certificate or tokens begins to say so: the operator knows it by that."""


class DeviceError(ResourceError):
    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        super().__init__(f"{NO_GPU}: {problem}; {remedy}")


class DeviceLostError(DeviceError):
    pass
