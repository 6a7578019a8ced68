"""Running other programs: what they print, kept in a log or carried in the failure's message."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class HarnessError(RuntimeError):
    """What went wrong with the node, in words for the person who runs the tests."""


def say(message: str) -> None:
    print(f"cluster: {message}", file=sys.stderr, flush=True)


def tail(log: Path, lines: int = 25) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


def output_of(
    *command: str | Path, stdin: str | None = None, timeout_s: float = 120, env: Mapping[str, str] | None = None
) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=env, check=False
        )
    except subprocess.TimeoutExpired as slow:
        raise HarnessError(f"`{' '.join(words)}` did not end within {timeout_s:.0f} s: {_text(slow.stderr)}") from slow
    except FileNotFoundError as missing:
        raise HarnessError(f"`{words[0]}` is not installed") from missing
    if done.returncode != 0:
        raise HarnessError(
            f"`{' '.join(words)}` failed with exit status {done.returncode}:\n{done.stderr}{done.stdout}".rstrip()
        )
    return done.stdout


def succeeds(*command: str | Path, timeout_s: float = 20) -> bool:
    try:
        output_of(*command, timeout_s=timeout_s)
    except HarnessError:
        return False
    return True


def run_logged(
    what: str,
    log: Path,
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs a long command: everything goes to the log, and a failure shows the log's end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
    if done.returncode != 0:
        raise HarnessError(f"{what} failed with exit status {done.returncode}; the end of {log}:\n{tail(log)}")


@contextmanager
def only_one(lock: Path, what: str) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when that process ends, however it ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process to {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _text(captured: bytes | str | None) -> str:
    if captured is None:
        return ""
    return captured if isinstance(captured, str) else captured.decode(errors="replace")
