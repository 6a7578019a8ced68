"""Errors between the operator and the API server.

    OperatorError
    ├── RetryLaterError      the server is away or busy; `after_s` when it said so
    │   ├── ConflictError    409: the object is not what was decided on any more: look again soon
    │   │   └── AlreadyExistsError  one of that name is there
    │   └── GoneError        404: what was to be changed is not there
    ├── RefusedError         the server refused (400, 403, 422): a person must act; `message` is its sentence
    └── LostLeadershipError  another may lead by now: nothing is written any more, and the process ends

The loop backs off on the first two, and says nothing of conflicts unless they last. LostLeadershipError ends the
process. Everything else that is raised is a mistake in the operator, and is logged with its stack.
"""

from __future__ import annotations


class OperatorError(Exception):
    pass


class RetryLaterError(OperatorError):
    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class ConflictError(RetryLaterError):
    pass


class AlreadyExistsError(ConflictError):
    pass


class GoneError(RetryLaterError):
    pass


class RefusedError(OperatorError):
    def __init__(self, what: str, message: str, code: int) -> None:
        super().__init__(f"{what}: the API server refuses it ({code}): {message}")
        self.message = message
        self.code = code


class LostLeadershipError(OperatorError):
    pass
