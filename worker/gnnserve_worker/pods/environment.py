"""The environment of a pod: its required variables, and the exit codes that its errors map to."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.errors import DeviceLostError, InputError, RepositoryError, ResourceError, lack_of_memory
from gnnserve_api.extras import lack_of_package
from gnnserve_api.pods.interface import PodExit


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
    lacks = lack_of_memory(error) or lack_of_package(error)
    return PodExit.FAILURE if lacks is None else PodExit.RESOURCE
