"""Consecutive batches of changes as one: joined, with their nodes found together, so that a log of small batches costs
little more than one of large ones.

What becomes of each batch is what would if they came one after the other. A batch may name nodes that one before it
brought or took away; so nodes are found as they are when their batch comes. Where one of the batches may be refused,
that is all that is said here: those before it are joined anew, and it comes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts

_KINDS = 6
"""Kinds of changes, in the order in which a batch has them."""
_EDGES = (3, 4)
"""Those that are edges."""


@dataclass(frozen=True, slots=True)
class EdgeRecords:
    """Which of several batches each edge is of, that comes or leaves: int64, ascending."""

    count: int
    """Batches."""
    added: np.ndarray
    removed: np.ndarray


@dataclass(frozen=True, slots=True)
class ChangeRun:
    """Batches with ids of one form."""

    batch: ChangeBatch
    """All of them as one. Its overrides may name a node several times, or one that is new."""
    count: int
    """Batches."""
    records: np.ndarray
    """Which of them each id is of, int64 [ids]."""
    row_records: np.ndarray
    """Which of them each row of features is of, int64 [rows]."""

    @property
    def bounds(self) -> list[int]:
        """Where ids of each kind of changes begin, and where all end."""
        counts, per_edge = msgspec.structs.astuple(self.batch.counts), self.batch.per_edge
        lengths = [count * (per_edge if kind in _EDGES else 1) for kind, count in enumerate(counts)]
        return [*accumulate(lengths, initial=0)]

    def edge_records(self) -> EdgeRecords:
        bounds, per_edge = self.bounds, self.batch.per_edge
        added, removed = (self.records[bounds[kind] : bounds[kind + 1] : per_edge] for kind in _EDGES)
        return EdgeRecords(self.count, added, removed)


@dataclass(frozen=True, slots=True)
class NamedIds:
    """Ids of a run as the graph knows them before it. A relation, where edges name one, is no node: code -1."""

    codes: np.ndarray
    """Equal for ids that name one node, int64 [ids]."""
    positions: np.ndarray
    """Where each node is, int64 [ids]; -1: there is none of that name."""
    types: np.ndarray
    """Type of each node, int64 [ids]."""
    next_positions: np.ndarray
    """The position that the next node of each type gets, int64 [types]."""
    room: np.ndarray
    """How many more nodes of each type there may be, int64 [types]."""
    wrong: np.ndarray
    """Places of ids that are wrong whatever nodes there are, int64."""
    relations: np.ndarray
    """Place of the relation that each text names, where there are several: int64 [ids]."""
    values: Mapping[int, int | str]
    """Ids without their types by place, where there are several."""


def join(batches: Sequence[ChangeBatch]) -> ChangeRun:
    """`batches`: at least one, with ids of one form; those with rows of features have equally wide ones."""
    first = batches[0]
    counts = np.array([msgspec.structs.astuple(batch.counts) for batch in batches], np.int64)
    lengths = counts.copy()
    lengths[:, _EDGES] *= first.per_edge
    records, order = _by_kind(lengths)
    row_records, row_order = _by_kind(counts[:, :2])
    rows = [batch.features for batch in batches if len(batch.features)]
    features = np.concatenate(rows)[row_order] if rows else first.features
    batch = ChangeBatch(
        ChangeCounts(*counts.sum(axis=0).tolist()), first.ids.joined([batch.ids for batch in batches], order), features,
        _joined_labels(batches), *_joined_payload(batches),
    )  # fmt: skip
    return ChangeRun(batch, len(batches), records, row_records)


def _by_kind(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Items of batches, kind after kind: which batch each is of, and its place where they stand batch after batch.
    `lengths`: int64 [batches, kinds]."""
    count, kinds = lengths.shape
    flat = lengths.ravel()
    order = np.argsort(np.repeat(np.tile(np.arange(kinds), count), flat), kind="stable")
    return np.repeat(np.repeat(np.arange(count), kinds), flat)[order], order


def _joined_payload(batches: Sequence[ChangeBatch]) -> tuple[np.ndarray, np.ndarray]:
    """Features and times of the edges of all batches. Edges of batches without, which are by relations without payload,
    get zeros that nothing reads."""
    columns = max(batch.edge_features.shape[1] for batch in batches)
    has_times = any(len(batch.edge_times) for batch in batches)
    counts = [batch.counts.edges for batch in batches]
    features = np.zeros((sum(counts) if columns else 0, columns), np.float32)
    times = np.zeros(sum(counts) if has_times else 0, np.int64)
    for batch, first in zip(batches, accumulate(counts, initial=0), strict=False):
        own = slice(first, first + batch.counts.edges)
        if columns and batch.edge_features.shape[1]:
            features[own] = batch.edge_features
        if has_times and len(batch.edge_times):
            times[own] = batch.edge_times
    return features, times


def _joined_labels(batches: Sequence[ChangeBatch]) -> bytes:
    if not any(batch.labels for batch in batches):
        return b""
    new: list[object] = []
    labelled: list[object] = []
    for batch in batches:
        count = batch.counts.new_nodes
        labels = msgspec.json.decode(batch.labels) if batch.labels else [None] * count
        new += labels[:count]
        labelled += labels[count:]
    return msgspec.json.encode(new + labelled)


def place_ids(run: ChangeRun, named: NamedIds) -> np.ndarray | int:
    """The position of each id as its batch finds it, int64 [ids], of new nodes the one that they get; or the first of
    the batches that may be refused."""
    records, codes, bounds = run.records, named.codes, run.bounds
    new, removed = slice(0, bounds[1]), slice(bounds[5], bounds[6])
    wrong = [records[named.wrong], _beyond_room(records[new], named.types[new], named.room)]
    # Within a batch new nodes come first, then nodes are named, then they leave.
    times = 3 * records + 1
    times[new] -= 1
    span = 3 * run.count
    positions = _next_positions(named.types[new], named.next_positions)
    keys = np.concatenate((codes[new] * span + times[new], codes[removed] * span + times[removed] + 1))
    order = np.argsort(keys, kind="stable")
    keys, then = keys[order], np.concatenate((positions, np.full(bounds[6] - bounds[5], -1)))[order]
    # Twice in one batch.
    wrong.append(keys[1:][keys[1:] == keys[:-1]] % span // 3)
    found = named.positions.copy()
    last = np.searchsorted(keys, codes * span + times) - 1
    if len(keys):
        # What last happened to the node before.
        happened = (last >= 0) & (keys[last] // span == codes)
        found[happened] = then[last[happened]]
    is_there = found >= 0
    wrong += [records[new][is_there[new]], records[bounds[1] :][~is_there[bounds[1] :]]]
    overridden, count = found[bounds[1] : bounds[2]], int(found.max(initial=0)) + 1
    twice = np.sort(records[bounds[1] : bounds[2]] * count + overridden)
    wrong.append(twice[1:][twice[1:] == twice[:-1]] // count)
    if len(first := np.concatenate(wrong)):
        return int(first.min())
    found[new] = positions
    return found


def _next_positions(types: np.ndarray, next_positions: np.ndarray) -> np.ndarray:
    """Positions of new nodes of these types (int64), in their order."""
    found = next_positions[types]
    for kind in range(len(next_positions)):
        own = np.flatnonzero(types == kind)
        found[own] += np.arange(len(own))
    return np.asarray(found)


def _beyond_room(records: np.ndarray, types: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Batches of new nodes of these types that there is no room for."""
    return np.concatenate([records[types == kind][int(most) :] for kind, most in enumerate(room)])


def fold_rows(new: np.ndarray, overridden: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Overridden nodes of a run, each once and none of them new, and the rows of features (float32) of the new ones and
    then of these: the last number of each column counts. `overridden` is in the order in which overrides came."""
    nodes = np.concatenate((new, overridden))
    distinct, places = np.unique(nodes, return_inverse=True)
    if len(distinct) == len(nodes):
        return overridden, rows
    order = np.argsort(places, kind="stable")
    sizes = np.bincount(places)
    turns = np.empty(len(nodes), np.int64)
    """How many rows of the same node came before each."""
    turns[order] = np.arange(len(nodes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    by_turn = np.argsort(turns, kind="stable")
    folded, begin = np.full((len(distinct), rows.shape[1]), np.nan, np.float32), 0
    for count in np.bincount(turns).tolist():
        part = by_turn[begin : begin + count]
        folded[places[part]] = np.where(np.isnan(rows[part]), folded[places[part]], rows[part])
        begin += count
    is_new = np.zeros(len(distinct), np.bool_)
    is_new[places[: len(new)]] = True
    return distinct[~is_new], np.concatenate((folded[places[: len(new)]], folded[~is_new]))
