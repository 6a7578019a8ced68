"""A program that people bring, as a network: rows of all nodes of a sample go in, scores of the seeds come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.models.network import Activations
from gnnserve_worker.programs.answers import Runner, run_program
from gnnserve_worker.programs.contract import LaidOut, lay_out
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Rows, RowsBehind, Table


@dataclass(frozen=True, slots=True)
class ProgramNetwork:
    """A `models.network.VariantNetwork`: a program, computed by another process, or listed layers, by this one.

    It reads a table of features, with a row of each node under its name in samples: of one type, or of several.
    """

    program: ProgramManifest
    schema: GraphSchema
    runner: Runner
    columns: tuple[int, ...]
    """Columns of the table that a node of each type has: the first ones of its row."""
    layers: tuple[Any, ...] = ()
    """None that anything could look into."""
    classes: int = field(init=False)
    hidden: int = field(init=False)
    """Width of the embeddings; 0: the program gives none."""
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False)
    """Whether samples must have weights (`sampling/normalised.py`)."""
    names_leaves: bool = True
    """A leaf that is a row too is one node, and found by its name."""
    reads_payload: bool = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        object.__setattr__(self, "classes", program.scores.columns)
        object.__setattr__(self, "hidden", program.embedding_columns)
        object.__setattr__(self, "bytes_per_row", 4 * max(self.columns))
        object.__setattr__(self, "weighs_neighbours", program.weighs_neighbours)
        object.__setattr__(self, "reads_payload", program.reads_payload)

    def gather(
        self,
        table: Table,
        sample: NeighbourSample,
        scratch: Activations,
        behind: RowsBehind | None = None,
    ) -> LaidOut:
        """Lay out all inputs, rows of the table's nodes among them."""
        del scratch

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            rows = table.own if own else table.rows
            return _decoded(rows, names, self.columns[kind], *_behind(behind, own=own and table.own is not table.rows))

        return lay_out(self.program, self.schema, sample, read)

    def infer(
        self,
        aggregated: LaidOut,
        sample: NeighbourSample,
        scratch: Activations,
        scores: np.ndarray,
        embeddings: np.ndarray | None = None,
    ) -> None:
        """Compute `scores`, and `embeddings` if wanted, as `Network.infer`. ProgramFailedError."""
        del sample, scratch
        run_program(self.runner, self.program, self.schema, aggregated, scores, embeddings)


def _behind(behind: RowsBehind | None, *, own: bool) -> tuple[np.ndarray | None, np.ndarray | None]:
    if behind is None:
        return None, None
    return (behind.own_values, behind.own_scales) if own else (behind.values, behind.scales)


def _decoded(
    rows: Rows, names: np.ndarray, columns: int, more: np.ndarray | None, more_scales: np.ndarray | None
) -> np.ndarray:
    """Rows of nodes as float32 [nodes, columns]; those of names behind the table's from `more`."""
    stored = len(rows.values)
    is_stored = names < stored
    if is_stored.all():
        return _of(rows, rows.values, rows.scales, names, columns)
    if more is None:
        raise ValueError(f"node {names.max()} has no row in a table of {stored}")
    found = np.empty((len(names), columns), np.float32)
    found[is_stored] = _of(rows, rows.values, rows.scales, names[is_stored], columns)
    found[~is_stored] = _of(rows, more, more_scales, names[~is_stored] - stored, columns)
    return found


def _of(rows: Rows, values: np.ndarray, scales: np.ndarray | None, places: np.ndarray, columns: int) -> np.ndarray:
    own_scales = scales[places] if rows.format.has_scales and scales is not None else None
    return rows.format.decode(values[places, :columns], own_scales)
