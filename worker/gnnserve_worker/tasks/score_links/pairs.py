"""Pairs of nodes that a request asks about, in whatever form: from their positions to the nodes that are computed.

A node that stands in several pairs is computed once. The pairs are made of the answer's rows when it is encoded.
"""

from __future__ import annotations

import re
import threading

import msgspec
import numpy as np

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.tasks.deciding import SeedPairs


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.distinct = DistinctScratch()


_workspace = _Workspace()
_ASKED = re.compile(r"^nodes\[(\d+)\]$")


class PairForm(msgspec.Struct, frozen=True):
    """Where the nodes of each pair stand among those that are computed."""

    first: np.ndarray
    """Integers [pairs]."""
    second: np.ndarray
    """Integers [pairs]."""

    def __len__(self) -> int:
        return len(self.first)

    def within(self, start: int, stop: int) -> SeedPairs:
        """Pairs among the computed nodes from `start` to `stop` - 1, whose places are counted from there."""
        first, second = self.first - start, self.second - start
        has_first, has_second = ((ends >= 0) & (ends < stop - start) for ends in (first, second))
        both, other = has_first & has_second, has_first ^ has_second
        return SeedPairs(first[both], second[both], np.where(has_first, first, second)[other])


def check_pair_count(count: int, max_nodes: int) -> None:
    if not count:
        raise RequestError(ErrorCode.EMPTY_PAIRS, "pairs", "the list is empty", "name at least one pair of node ids")
    if 2 * count > max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_PAIRS,
            "pairs",
            f"{count:,} pairs, more than the {max_nodes // 2:,} that one request may have",
            "split the list over several requests, or raise spec.worker.batching.maxQueuedSeeds",
        )


def form_pairs(ends: np.ndarray) -> tuple[np.ndarray, PairForm]:
    """The nodes to compute (int64), and how pairs are made of them. `ends`: positions int64 [2 pairs], first, second,
    first, second, … Where next to none repeat, they are the nodes as they are."""
    found = find_distinct(ends, _workspace.distinct)
    if found is None:
        places = np.arange(len(ends))
        return ends, PairForm(places[0::2], places[1::2])
    places = found.places.copy()  # the scratch is the next request's
    return found.seeds.copy(), PairForm(places[0::2], places[1::2])


def told_of_pair(error: RequestError) -> RequestError:
    """The same error, of a node in the list of all pairs' nodes, told by its pair."""
    found = _ASKED.match(error.where)
    if found is None:
        return error
    return RequestError(error.code, place_of(int(found[1])), error.problem, error.remedy)


def place_of(asked: int) -> str:
    return f"pairs[{asked // 2}][{asked % 2}]"
