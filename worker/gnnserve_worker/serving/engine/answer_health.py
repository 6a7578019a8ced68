"""Whether a model's answers fail: what readiness says beyond that a revision is loaded.

A revision whose tables were written over in place may be loaded, answer some requests, and fail at others with 500.
Then no requests should be sent here, and its files are to be verified (`following/repository_watch.py`). Failures are
rare, so only they are noted; how many answers there were between them is counted elsewhere already.

It is pure: time and counts are arguments.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
"""How long a failure counts. After that long without another one requests are welcome again: whether they would be
answered cannot be known without any."""
LEAST_FAILURES = 10
"""Fewer, within the window, say nothing: single requests can meet an error of ours."""
FAILED_SHARE = 0.5
"""Part of what was answered since the first of these failures, from which on answers count as failing."""
_MOST_NOTED = 1000


class AnswerHealth:
    def __init__(self) -> None:
        self._failures: deque[tuple[float, int]] = deque(maxlen=_MOST_NOTED)
        """When each was, and how many answers there were by then."""

    def note_failure(self, now_s: float, answered: int) -> None:
        """Note a request that failed by an error of the worker. `answered`: requests answered so far, failures left
        out."""
        self._failures.append((now_s, answered))

    def forget(self) -> None:
        self._failures.clear()

    def why_failing(self, now_s: float, answered: int) -> str:
        """What of the answers fails, as a sentence; empty: they do not, or too few to say."""
        failures = self._failures
        while failures and failures[0][0] <= now_s - WINDOW_S:
            failures.popleft()
        if len(failures) < LEAST_FAILURES:
            return ""
        of = len(failures) + answered - failures[0][1]
        if len(failures) < FAILED_SHARE * of:
            return ""
        return (
            f"{len(failures):,} of its last {of:,} answers failed by errors of the worker, within {WINDOW_S:g} s; its "
            "log has the details"
        )
