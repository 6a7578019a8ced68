"""Failures of a program, which its service answers with 503, and others do not feel."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gnnserve_api.errors import GnnserveError


class ProgramFailure(StrEnum):
    """Why a program gave no answer."""

    CRASH = "Crash"
    """its process ended"""
    TIME_OUT = "TimeOut"
    MEMORY = "Memory"
    """it wanted more than it may have"""
    REFUSED = "Refused"
    """ONNX Runtime could not read or run it, or it gave something else than the contract says"""


_REMEDIES: Mapping[ProgramFailure, str] = {
    ProgramFailure.CRASH: "a new process is started; if it happens again, run the program by ONNX Runtime alone",
    ProgramFailure.TIME_OUT: "a new process is started; ask for fewer nodes at once, or give the program more time",
    ProgramFailure.MEMORY: "a new process is started; ask for fewer nodes at once, or give the program more memory",
    ProgramFailure.REFUSED: "describe the model again, and compare the contract with the program",
}


class ProgramFailedError(GnnserveError):
    """The program of one service gave no answer; asked again, it may."""

    def __init__(self, failure: ProgramFailure, problem: str, retry_after_s: float = 0.0) -> None:
        self.failure = failure
        self.problem = problem
        """Continues a sentence about the program; without what a server does next."""
        self.retry_after_s = retry_after_s
        """Earliest time at which asking again can help, from now on."""
        super().__init__(f"the program of this service {problem}; {_REMEDIES[failure]}")

    @property
    def is_too_large(self) -> bool:
        """Whether it may answer where it is asked for less."""
        return self.failure in (ProgramFailure.TIME_OUT, ProgramFailure.MEMORY)


class NotReadyError(ProgramFailedError):
    """Its process did not get so far that it could be asked, whatever it would have been asked."""

    @property
    def is_too_large(self) -> bool:
        return False
