"""The protocol of cache policies: what a cache keeps, apart from where the rows lie and how they get there.

A cache item is one block of columns of one node: item = block · nodes + node. A policy is told what was read and says
what to keep; it belongs to one thread. `policies/` has a file per policy, and `policies/build.py` makes one by its
name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.device import CachePolicy


@dataclass(frozen=True, slots=True)
class ResidencyChanges:
    """Changes of residency since the last round. No item is in both arrays, and evicting first never exceeds the
    capacity."""

    evicted: np.ndarray
    """Items, int64."""
    admitted: np.ndarray
    """Items, int64."""


NO_ITEMS = np.empty(0, dtype=np.int64)
NO_CHANGES = ResidencyChanges(NO_ITEMS, NO_ITEMS)


class Policy(Protocol):
    @property
    def name(self) -> CachePolicy: ...

    @property
    def capacity(self) -> int:
        """Most items that are resident at a time."""
        ...

    @property
    def resident(self) -> np.ndarray:
        """bool [items]: what the policy keeps now. Callers only read it."""
        ...

    def begin(self) -> np.ndarray:
        """Items (int64) that are resident from the start, most wanted first; none for policies that wait for misses.

        Called once, before anything else.
        """
        ...

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        """Record reads: items (int64, in order), each `times` (int32) in a row, or once. Returns the number of hits.

        A read hits where its item is resident at that moment: policies that admit every miss do it within the call.
        """
        ...

    def end_round(self) -> ResidencyChanges:
        """End the round: decide, and return what changed in `resident` since the last call (or since `begin`)."""
        ...


def spread_over_blocks(node_weights: np.ndarray, block_shares: Sequence[float]) -> np.ndarray:
    """float32 [blocks · nodes]: the weight of each item, where `block_shares[b]` of all reads touch block b.

    Every read touches block 0, so shares begin with 1 and never rise.
    """
    shares = np.asarray(block_shares, dtype=np.float32)
    return np.multiply.outer(shares, node_weights.astype(np.float32)).ravel()
