"""Closed-loop load by `wrk`: one thread in C whose requests are encoded before it starts, so that nearly all of the
machine is left to the server. Each connection is kept alive and asks again once it is answered.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_SCRIPT = Path(__file__).parent / "wrk.lua"
_TIMEOUT_S = 30
_RESULT = "RESULT "


@dataclass(frozen=True, slots=True)
class Load:
    """Result of one run."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    max_ms: float
    errors: dict[str, int]
    """Errors that happened, by kind: connect, read, write, status (400 and above), timeout."""


def encode_post(
    port: int, path: str, content_type: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """`headers`: others, beside those that every request has."""
    others = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {content_type}\r\n{others}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def write_requests(path: Path, requests: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for request in requests:
            file.write(b"%d\n" % len(request) + request)


def generate_load(port: int, requests: Path, connections: int, seconds: int) -> Load:
    """SystemExit where wrk itself fails; a server's errors are part of the result."""
    return finish_load(start_load(port, requests, connections, seconds), seconds)


def start_load(
    port: int, requests: Path, connections: int, seconds: int, before: Iterable[str] = ()
) -> subprocess.Popen[str]:
    """Begin a load. `before`: words of the command line before those of wrk, as `taskset`'s."""
    command = [
        *before, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_S}s", "-s", str(_SCRIPT),
        f"http://127.0.0.1:{port}", "--", str(requests),
    ]  # fmt: skip
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise SystemExit("wrk is not installed: apt-get install wrk") from None


def finish_load(load: subprocess.Popen[str], seconds: int) -> Load:
    """Wait for the end of a load of so many seconds."""
    said, complained = load.communicate(timeout=seconds + 2 * _TIMEOUT_S)
    try:
        return parse_output(said)
    except ValueError as error:
        raise SystemExit(f"wrk ended with {load.returncode}: {error}: {said[-300:]}{complained[-300:]}") from None


def parse_output(output: str) -> Load:
    """ValueError: the line of `wrk.lua` is not there."""
    line = next((line for line in output.splitlines() if line.startswith(_RESULT)), None)
    if line is None:
        raise ValueError("no result in its output")
    found = json.loads(line.removeprefix(_RESULT))
    kinds = ("connect", "read", "write", "status", "timeout")
    return Load(
        requests=found["requests"],
        requests_per_s=round(found["requests"] / found["seconds"], 2),
        p50_ms=found["p50_ms"],
        p90_ms=found["p90_ms"],
        p99_ms=found["p99_ms"],
        mean_ms=found["mean_ms"],
        max_ms=found["max_ms"],
        errors={kind: found[kind] for kind in kinds if found[kind]},
    )
