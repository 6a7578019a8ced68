"""A generation Job's program: a manifest from the environment becomes a published revision.

Its result, or the one sentence why there is none, is the container's termination message, which the operator reads;
progress is plain lines on standard error, for `kubectl logs`.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType

from gnnserve_api.errors import GnnserveError, lack_of_memory, words_in_cluster
from gnnserve_api.extras import lack_of_package
from gnnserve_api.pods.generation import MAX_TERMINATION_MESSAGE_BYTES, encode_message
from gnnserve_api.pods.interface import TERMINATION_MESSAGE_PATH, PodExit
from gnnserve_worker.pods.environment import exit_of

TERMINATION_MESSAGE_VARIABLE = "GNNSERVE_TERMINATION_MESSAGE"
"""Variable that names another file for the message, for use outside a container."""
TERMINATED = 143


def main(environ: Mapping[str, str] = os.environ) -> int:
    # The first process of a container has no default handler for it, and an orderly exit removes what is half-written.
    signal.signal(signal.SIGTERM, stop_in_order)
    try:
        # It takes seconds to import, and a signal must find its handler before.
        from gnnserve_worker.pods.generation_job import carry_out  # noqa: PLC0415

        code, message = PodExit.OK, encode_message(carry_out(environ, partial(_say, environ)))
    except Exception as error:  # noqa: BLE001  (whatever it was, the operator must be told)
        code, message = exit_of(error), sentence_of(error)
        if not isinstance(error, GnnserveError) and lack_of_memory(error) is None:
            traceback.print_exc()
        print(f"error: {message}", file=sys.stderr, flush=True)
    if not leave_message(environ, message):
        # Without the message the operator does not learn of the revision; another attempt finds it published.
        return code or PodExit.RESOURCE
    return code


def _say(environ: Mapping[str, str], words: str) -> None:
    print(f"error: {words}", file=sys.stderr, flush=True)
    leave_message(environ, words)


def leave_message(environ: Mapping[str, str], message: str) -> bool:
    path = Path(environ.get(TERMINATION_MESSAGE_VARIABLE, TERMINATION_MESSAGE_PATH))
    try:
        path.write_bytes(cut(message))
    except OSError as error:
        print(f"error: {path}: the termination message cannot be written: {error}", file=sys.stderr, flush=True)
        return False
    return True


def cut(message: str) -> bytes:
    """The message, cut to as many whole characters as Kubernetes keeps."""
    encoded = message.encode(errors="backslashreplace")
    if len(encoded) <= MAX_TERMINATION_MESSAGE_BYTES:
        return encoded
    mark = "…".encode()
    kept = encoded[: MAX_TERMINATION_MESSAGE_BYTES - len(mark)]
    return kept.decode(errors="ignore").encode() + mark


def sentence_of(error: Exception) -> str:
    if isinstance(error, GnnserveError):
        return words_in_cluster(error)
    if (found := lack_of_memory(error)) is not None:
        return (
            f"generation needs more memory than it has ({found}); raise spec.generation.resources.limits.memory, lower "
            "spec.model.training.batchSize (over several types with batches: Sampled beside it), or leave out "
            "spec.variants.channels, if it is given: finding them keeps the hidden rows of all nodes"
        )
    if (package := lack_of_package(error)) is not None:
        return f"generation needs {package}"
    if isinstance(error, OSError):
        return f"the pod lacks something: {error}; its log has the details"
    return f"unexpected {type(error).__name__}: {error}; the pod's log has the details"


def stop_in_order(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    print("stopped by SIGTERM: nothing was published", file=sys.stderr, flush=True)
    sys.exit(TERMINATED)


if __name__ == "__main__":
    sys.exit(main())
