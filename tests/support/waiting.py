"""How long tests wait for what must come. Never reached where all is well: only a test that fails takes so long."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0
"""Seconds. Long enough for a machine on which both tiers of the tests run at once."""

_POLL_S = 0.005


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds that nothing can be awaited for. `what` is told if it never does."""
    ends_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < ends_s, f"not within {WAIT_S:g} s: {what}"
        time.sleep(_POLL_S)
