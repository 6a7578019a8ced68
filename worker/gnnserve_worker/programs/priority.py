"""Priorities of threads: what is made ready, and runs that take long, leave the cores to what is answered quickly.

On Linux each thread has a priority of its own. It can be lowered, and not raised again without a privilege.

Niceness shares a core out, and does not hand it over at once: beside a busy thread of niceness 10 one that wakes up
waits for up to a tick of 4 ms (Linux 6.18, traced), beside one of the idle class for 0.06 ms at most. That class gets
next to nothing while others want all cores.
"""

from __future__ import annotations

import os

_LOWER = 10
"""Steps of niceness, 19 being the most. It leaves a tenth of a core that others want, and all of one that is free."""


def yield_to_others(thread: int) -> None:
    """Lower the priority of a thread, of any process of this user. OSError: it is gone."""
    os.setpriority(os.PRIO_PROCESS, thread, min(19, _usual() + _LOWER))


def yield_always(thread: int) -> None:
    """Let a thread run only where a core has nothing else to do. OSError: it is gone, or there is no such class."""
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def is_lowered(thread: int) -> bool:
    """Whether a thread of this process was lowered beneath the first one."""
    return os.sched_getscheduler(thread) == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, thread) > _usual()


def _usual() -> int:
    """Priority of this process's first thread."""
    return os.getpriority(os.PRIO_PROCESS, os.getpid())
