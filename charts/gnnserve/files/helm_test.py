"""What `helm test` runs, in a pod of the operator's image: does the operator answer through its Service?

It prints one sentence and exits with 0 or 1. Standard library only.
"""

from __future__ import annotations

import http.client
import sys
import time

METRIC_PREFIX = "gnnserve_operator_"


def problem_of(host: str, port: int) -> str | None:
    """What keeps the operator from being ready, as a sentence."""
    try:
        status, text = get(host, port, "/readyz")
        if status != http.client.OK:
            return f"/readyz answered {status}, 200 was expected: {text.strip()}"
        status, text = get(host, port, "/metrics")
    except (OSError, http.client.HTTPException) as error:
        return f"it cannot be reached: {error}"
    if status != http.client.OK:
        return f"/metrics answered {status}, 200 was expected"
    if not any(line.startswith(METRIC_PREFIX) for line in text.splitlines()):
        return f"/metrics has no metric that begins with {METRIC_PREFIX}"
    return None


def get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


def main(host: str, port: str, patience_s: str = "60") -> int:
    """A Service follows its pods after a moment, and the operator may be starting: ask again for a while."""
    give_up_at = time.monotonic() + float(patience_s)
    while (problem := problem_of(host, int(port))) is not None:
        if time.monotonic() >= give_up_at:
            print(f"The operator at {host}:{port} is not ready: {problem}. Its log says more.")
            return 1
        time.sleep(1)
    print(f"The operator at {host}:{port} is ready and reports its metrics.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
