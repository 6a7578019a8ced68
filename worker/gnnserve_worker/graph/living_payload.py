"""Payload of the edges of graphs that change: tables that grow, and what is wrong with that of a batch.

Rows are only ever added, so that one table serves the graph that predictions see and its draft. A row whose edge has
left, or has got other payload, is not used again until the graph is compacted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.payload import EdgePayload


@dataclass(frozen=True, slots=True, eq=False)
class LivingPayload:
    """Features and times of the edges of a relation and of its reverses, with room for more."""

    key: str
    """The relation, for people; empty where there is one."""
    columns: tuple[str, ...]
    features: np.ndarray
    """float32 [room for rows, columns]"""
    time_column: str
    """Its name; empty: edges have no time."""
    times: np.ndarray
    """int64 [room for rows]; [0] where edges have none."""
    state: np.ndarray
    """Rows that are in use, int64 [1]."""

    @property
    def rows(self) -> int:
        """Rows that are in use, those of edges that have left among them."""
        return int(self.state[0])

    @property
    def in_use(self) -> EdgePayload:
        """Payload of these rows, which is no copy."""
        times = self.times[: self.rows] if self.time_column else self.times
        return EdgePayload(self.columns, self.features[: self.rows], self.time_column, times)

    @property
    def row_bytes(self) -> int:
        times = self.times.itemsize if self.time_column else 0
        return len(self.columns) * self.features.itemsize + times

    def add(self, features: np.ndarray, times: np.ndarray, count: int) -> np.ndarray:
        """Append rows of so many edges: which they are, int32 [count]. `features`: float32 [count, at least so many
        columns]; what is behind them is not read."""
        first = self.rows
        rows = slice(first, first + count)
        if self.columns:
            self.features[rows] = features[:, : len(self.columns)]
        if self.time_column:
            self.times[rows] = times
        self.state[0] += count
        return np.arange(first, first + count, dtype=np.int32)


class PayloadProblem(NamedTuple):
    """Why edges of a batch are refused for their payload."""

    edge: int
    """Number of the first such edge."""
    refusal: ChangeRefusal


def payload_of_edges(payloads: Sequence[LivingPayload | None]) -> tuple[int, bool]:
    """Columns of the rows of edge features that batches have, and whether edges have times."""
    having = [one for one in payloads if one is not None]
    return max((len(one.columns) for one in having), default=0), any(one.time_column for one in having)


def fits_payload(payloads: Sequence[LivingPayload | None], batch: ChangeBatch) -> bool:
    """Whether edges of the batch have what any relation's need, and nothing that none has."""
    columns, have_times = payload_of_edges(payloads)
    given = batch.edge_features.shape[1], len(batch.edge_times) > 0
    return given == (columns, have_times) if batch.counts.edges else given[0] in (0, columns)


def payload_problem(
    payloads: Sequence[LivingPayload | None], batch: ChangeBatch, relations: np.ndarray
) -> PayloadProblem | None:
    """What is wrong with the payload of the batch's edges. `payloads`: of each relation; empty: none has any.
    `relations`: place of each edge's, int64; empty: all are of the first."""
    columns, have_times = payload_of_edges(payloads)
    given = batch.edge_features.shape[1]
    if given and given != columns:
        return PayloadProblem(0, _of_other_width(given, columns))
    if len(batch.edge_times) and not have_times:
        return PayloadProblem(
            0, _not_as_the_graph("edgeTimes", "edges of the graph have no times", "leave edgeTimes out")
        )
    found: list[PayloadProblem] = []
    for place, payload in enumerate(payloads):
        own = _edges_by(place, relations, batch.counts.edges)
        if payload is not None:
            found += _problems_of(payload, batch, own)
        found += _surplus_of(payload, batch, own)
    return min(found, key=lambda problem: problem.edge, default=None)


def _edges_by(relation: int, relations: np.ndarray, edges: int) -> np.ndarray:
    """Numbers of the edges by the relation, int64, ascending."""
    if len(relations):
        return np.flatnonzero(relations == relation)
    return np.arange(0 if relation else edges)


def _problems_of(payload: LivingPayload, batch: ChangeBatch, own: np.ndarray) -> Iterator[PayloadProblem]:
    if not len(own):
        return
    columns, by = len(payload.columns), f" by {payload.key}" if payload.key else ""
    first = int(own[0])
    if columns and not batch.edge_features.shape[1]:
        names = ", ".join(payload.columns)
        yield PayloadProblem(first, _not_as_the_graph(
            "edgeFeatures", f"edges[{first}] has no features, and edges{by} have {names}",
            f"give edgeFeatures with a row for each edge, with {columns:,} numbers: {names}",
        ))  # fmt: skip
    elif columns and not (is_finite := np.isfinite(batch.edge_features[own, :columns])).all():
        place, column = divmod(int((~is_finite).argmax()), columns)
        edge = int(own[place])
        yield PayloadProblem(edge, ChangeRefusal(
            ChangeProblem.INVALID_VALUE, f"edgeFeatures[{edge}][{column}]",
            f"{batch.edge_features[edge, column]} is no value of {payload.columns[column]}", "give a finite number",
        ))  # fmt: skip
    if payload.time_column and not len(batch.edge_times):
        yield PayloadProblem(first, _not_as_the_graph(
            "edgeTimes", f"edges[{first}] has no time, and edges{by} have one, {payload.time_column}",
            "give edgeTimes with an integer for each edge",
        ))  # fmt: skip
    room = len(payload.features) - payload.rows
    if len(own) > room:
        yield PayloadProblem(int(own[room]), ChangeRefusal(
            ChangeProblem.NO_ROOM, "edges", f"{payload.rows:,} edges{by} have been there with features or times, and "
            f"there is room for {len(payload.features):,}", "raise spec.updates.maxDelta",
        ))  # fmt: skip


def _surplus_of(payload: LivingPayload | None, batch: ChangeBatch, own: np.ndarray) -> Iterator[PayloadProblem]:
    """Values of edges that their relation has no place for. Rows are as wide as those of the relation that has most."""
    columns = () if payload is None else payload.columns
    if batch.edge_features.shape[1] > len(columns):
        is_surplus = batch.edge_features[own, len(columns) :] != 0
        if is_surplus.any():
            place, behind = divmod(int(is_surplus.argmax()), is_surplus.shape[1])
            edge, column = int(own[place]), len(columns) + behind
            has = ", ".join(columns) if columns else "none"
            yield PayloadProblem(edge, _not_as_the_graph(
                f"edgeFeatures[{edge}][{column}]", f"{batch.edge_features[edge, column]}, where edges[{edge}] is of a "
                f"relation whose edges have features: {has}", "give 0 behind the features of an edge's own relation",
            ))  # fmt: skip
    if len(batch.edge_times) and not (payload and payload.time_column) and batch.edge_times[own].any():
        edge = int(own[np.flatnonzero(batch.edge_times[own])[0]])
        yield PayloadProblem(edge, _not_as_the_graph(
            f"edgeTimes[{edge}]", f"{batch.edge_times[edge]}, where edges[{edge}] is of a relation whose edges have no "
            "time", "give 0 for edges of such a relation",
        ))  # fmt: skip


def _of_other_width(given: int, columns: int) -> ChangeRefusal:
    if not columns:
        return _not_as_the_graph("edgeFeatures", "edges of the graph have no features", "leave edgeFeatures out")
    return _not_as_the_graph(
        "edgeFeatures", f"rows of {given:,} numbers, where edges of the graph have up to {columns:,} features",
        f"give rows of {columns:,} numbers, with zeros behind the columns of an edge's own relation",
    )  # fmt: skip


def _not_as_the_graph(field: str, message: str, remedy: str) -> ChangeRefusal:
    """A revision over other columns may apply the batch, so that it is not passed over."""
    return ChangeRefusal(ChangeProblem.WRONG_LENGTH, field, message, remedy)
