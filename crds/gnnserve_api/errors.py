"""Errors that people read.

    GnnserveError
    ├── InputError         the user must fix it: a manifest, a graph file, a request
    ├── RepositoryError    files of a repository cannot be read, or are of a newer schema
    │   ├── DamagedError   they are missing or altered: generating again brings them back
    │   └── OutdatedError  they are of an older schema: generating again makes new ones beside them
    └── ResourceError      the machine lacks something: disk space, a free port, a network
        └── DeviceError    a GPU that was asked for cannot be computed on: none is seen, it is lost, its memory is short
            └── DeviceLostError  it failed this process, which has to be started anew

Each names the object, what was found, what was expected and the next step. Command line and HTTP turn them
into exit codes and status codes at the edge; nothing else catches them.
"""

from __future__ import annotations


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
        super().__init__(f"{path}: {problem}; {remedy}")


class DamagedError(RepositoryError):
    pass


class OutdatedError(RepositoryError):
    pass


class ResourceError(GnnserveError):
    pass


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
