"""Priorities of requests: which go first, and which are refused first, where not all of them can be answered.

The numbers are those of Triton: 0 is the default, 1 the highest.
"""

from __future__ import annotations

HIGHEST_PRIORITY = 1
DEFAULT_PRIORITY = 2
LOWEST_PRIORITY = 3
