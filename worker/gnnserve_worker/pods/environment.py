"""The environment of a pod: which variable was missing, and what errors mean to whoever started it."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.errors import DeviceLostError, InputError, RepositoryError, ResourceError
from gnnserve_api.pods import PodExit

_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")
"""torch says it in a RuntimeError, each allocator in its own words."""


def required(environ: Mapping[str, str], variable: str) -> str:
    value = environ.get(variable, "")
    if not value:
        raise InputError(f"environment variable {variable}", "is not set", "the operator sets it in every pod it makes")
    return value


def exit_of(error: BaseException) -> PodExit:
    match error:
        case InputError():
            return PodExit.BAD_INPUT
        case RepositoryError():
            return PodExit.REPOSITORY
        case DeviceLostError():
            return PodExit.DEVICE
        case ResourceError() | MemoryError() | OSError():
            # An OSError is a full disk or a forbidden folder, met where no code had a better sentence for it.
            return PodExit.RESOURCE
    return PodExit.RESOURCE if is_lack_of_memory(error) else PodExit.FAILURE


def is_lack_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _MEMORY_WORDS)
    )
