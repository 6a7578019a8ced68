"""Arrays whose values are positions in other arrays: nodes, offsets, slots of a hash table.

Compiled kernels read memory at these positions without bounds checks, so a value out of range would end the process, or
make a search endless. Digests detect later damage only: a file that was written wrong has a matching digest. So every
value is checked once, part by part, while the file is read for its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.repository import GraphManifest, NodeIdKind
from gnnserve_worker.repository import paths


@dataclass(frozen=True, slots=True)
class Positions:
    """The values that one array may hold."""

    dtype: np.dtype
    least: int
    most: int
    is_rising: bool = False
    """Whether the first value is `least`, and none is less than the one before it."""
    last: int | None = None
    """Required last value of a rising array; None: any."""
    needed: int | None = None
    """A value that must occur at least once; None: no such value."""


def positions_of(folder: Path, graph: GraphManifest) -> dict[Path, Positions]:
    """The positions that a graph's files hold, by path. Tables and weights hold none."""
    asked = graph.schema.target.nodes
    has_ids_of_all = paths.has_ids_of_all(graph.files)
    payload_rows = [one.payload.rows for one in graph.schema.relations if one.payload is not UNSET]
    node = Positions(np.dtype(np.int64), 0, (graph.nodes if has_ids_of_all else asked) - 1)
    found = {
        paths.INDPTR: Positions(np.dtype(np.int64), 0, graph.edges, is_rising=True, last=graph.edges),
        paths.INDICES: Positions(np.dtype(np.int32), 0, graph.nodes - 1),
        paths.TRAIN: node,
        paths.VALIDATION: node,
        paths.TEST: node,
        **_of_ids(graph, graph.node_ids, asked, lambda name: name),
    }
    if payload_rows:
        # Which of them the entries of one relation may have is seen when the graph is opened.
        least = 0 if len(payload_rows) == len(graph.schema.relations) else -1
        found[paths.PAYLOAD_ROWS] = Positions(np.dtype(np.int32), least, max(payload_rows) - 1)
    for kind in graph.schema.types[1:]:
        found |= _of_ids(graph, NodeIdKind(kind.node_ids), kind.nodes, partial(paths.of_type, kind.name))
    if has_ids_of_all:
        found |= _of_ids(graph, NodeIdKind.STRINGS, graph.nodes, paths.of_all)
    return {folder / name: positions for name, positions in found.items()}


def _of_ids(graph: GraphManifest, kind: NodeIdKind, nodes: int, path_of: Callable[[str], str]) -> dict[str, Positions]:
    """Positions in the hash table of so many ids. `path_of`: the path of one of its files."""
    found = {}
    if kind is not NodeIdKind.POSITIONS:
        # A search ends at an empty slot, so there must be one.
        found[path_of(paths.ID_SLOTS)] = Positions(np.dtype(np.int32), -1, nodes - 1, needed=-1)
    if kind is NodeIdKind.STRINGS:
        text_bytes = graph.files[path_of(paths.IDS)].bytes  # and a header: the array's own length is compared later
        found[path_of(paths.ID_OFFSETS)] = Positions(np.dtype(np.int64), 0, text_bytes, is_rising=True)
    return found


NO_POSITIONS: Mapping[Path, Positions] = {}


class PositionSurvey:
    """Checks one array in parts, from the first to the last."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._checked = 0
        self._before = positions.least
        self._has_needed = positions.needed is None
        self._problem: str | None = None

    def add(self, part: np.ndarray) -> None:
        """Check the next values, of which there is at least one."""
        if self._problem is None:
            self._problem = self._check(part)
            self._checked += len(part)
            self._before = int(part[-1])

    def problem(self) -> str | None:
        """What is wrong with all that was added; None: nothing."""
        expected = self._positions
        if self._problem is not None:
            return self._problem
        if not self._has_needed:
            return f"holds no {expected.needed}, expected at least one: where a search ends"
        if self._checked and expected.last is not None and self._before != expected.last:
            return f"ends with {self._before:,}, expected {expected.last:,}"
        return None

    def _check(self, part: np.ndarray) -> str | None:
        expected = self._positions
        # Where the least is 0, as of nearly all, negative ones are large when they are read without their sign.
        unsigned = part.view(part.dtype.str.replace("i", "u"))
        if (expected.least != 0 or unsigned.max() > expected.most) and (
            part.min() < expected.least or part.max() > expected.most
        ):
            at = int(np.argmax((part < expected.least) | (part > expected.most)))
            found = f"{int(part[at]):,} at position {self._checked + at:,}"
            return f"holds {found}, expected {expected.least:,} to {expected.most:,}"
        if expected.is_rising:
            if self._checked == 0 and part[0] != expected.least:
                return f"begins with {int(part[0]):,}, expected {expected.least:,}"
            if part[0] < self._before or bool((part[1:] < part[:-1]).any()):
                return "holds a value that is less than the one before it, expected rising ones"
        if not self._has_needed:
            self._has_needed = bool((part == expected.needed).any())
        return None
