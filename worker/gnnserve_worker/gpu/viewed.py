"""Chunks in which requests see the graph otherwise than it is stored, or draw by a seed of their own.

The CPU samples them, since its sampler knows such views, and makes rows of the features that they bring: in pieces,
side by side on all processors. The GPU then gathers and computes as ever: what a node draws depends on key, depth and
node alone, on either device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.gpu.behind import RoomBehind
from gnnserve_worker.inference.batch import StageTimes, count_parts, cut_evenly, draw_sample, join_times, make_rows
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.sampling.padded import PadScratch, TreeArrays, pad_sample
from gnnserve_worker.tables.table import RowsBehind


class UnsampledError(Exception):
    """The CPU failed at its part of a batch: it could not sample a chunk, make its rows or compute it. The GPU has seen
    nothing of that chunk."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows that a chunk gathers."""

    own: int
    """The table's, for themselves: seeds, and the neighbours that draw some in turn."""
    neighbours: int
    """The table's, as neighbours."""
    behind: int = 0
    """Rows of either kind that stand behind the table's."""
    by_cpu: int = 0
    """Rows that the CPU gathered, which computed the chunk."""
    repeated: int = 0
    """Number of the table's rows that were read from the chunk's own copies."""

    @property
    def all(self) -> int:
        return self.own + self.neighbours + self.behind + self.by_cpu


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """A part of a chunk's seeds."""

    first_seed: int
    """Place of its first seed in the chunk."""
    sample: NeighbourSample
    """Its rows are not shared. Ids from the number of nodes on are those of the piece's rows behind the table's."""
    behind: RowsBehind | None
    """Rows that the sample reads; None: all of them are the table's."""
    times: StageTimes
    scratch: PadScratch

    @property
    def rows_behind(self) -> int:
        return 0 if self.behind is None or self.behind.values is None else len(self.behind.values)


@dataclass(frozen=True, slots=True)
class ViewedChunk:
    """Valid until the sampler's next one."""

    seeds: int
    nodes: int
    """Nodes of the graph; of one that changes, those that it has room for."""
    pieces: list[ChunkPiece]
    times: StageTimes

    @property
    def rows_behind(self) -> int:
        """Rows behind the table's, those of each piece apart."""
        return sum(piece.rows_behind for piece in self.pieces)

    def write(self, tree: TreeArrays, room: RoomBehind | None, table_rows: int) -> RowsRead:
        """Lay out the samples as one tree, and put its rows where there is room for all of them. `table_rows`: behind
        which they stand there; fewer than nodes where the graph has more room for new ones than the GPU."""
        tree.clear()
        own, neighbours, own_behind, neighbours_behind, shift = 0, 0, 0, 0, 0
        moved = table_rows - self.nodes
        for piece in self.pieces:
            counts = pad_sample(
                piece.sample, tree, piece.scratch, first_seed=piece.first_seed, nodes=self.nodes, shift=shift + moved
            )
            own_behind, neighbours_behind = own_behind + counts[0], neighbours_behind + counts[1]
            own, neighbours = own + len(piece.sample.nodes), neighbours + len(piece.sample.neighbours)
            if room is not None and piece.behind is not None:
                room.write(piece.behind, shift)
            shift += piece.rows_behind
        return RowsRead(own - own_behind, neighbours - neighbours_behind, own_behind + neighbours_behind)


class _Workspace:
    """Scratch memory that a piece is sampled in."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.padding = PadScratch()


class ViewSampler:
    """Samples one chunk at a time."""

    def __init__(self, loaded: LoadedRevision) -> None:
        self._loaded = loaded
        self._workspaces: list[_Workspace] = []

    def sample(self, name: str, seeds: np.ndarray, key: int, view: BatchView) -> ViewedChunk:
        """`view`: that of these seeds. Raises UnsampledError."""
        loaded, variant, started = self._loaded, self._loaded.variants[name], time.perf_counter()
        count = count_parts(len(seeds), thread_count())
        while len(self._workspaces) < count:
            self._workspaces.append(_Workspace())
        slices = cut_evenly(len(seeds), count)

        def sample_piece(number: int) -> ChunkPiece:
            part, workspace = slices[number], self._workspaces[number]
            seen, begun = view.of_seeds(part), time.perf_counter()
            sample = draw_sample(loaded, variant, seeds[part], key, seen.sampling, workspace.scratch, share=False)
            sampled = time.perf_counter()
            # Its tree has one number for each node, whichever way it is read.
            behind = make_rows(variant, seen, sample, apart=False)
            made = time.perf_counter()
            times = StageTimes((sampled - begun) * 1e3, 0.0, 0.0, (made - sampled) * 1e3)
            return ChunkPiece(part.start, sample, behind, times, workspace.padding)

        try:
            pieces = map_parallel(sample_piece, count)
        except Exception as error:
            raise UnsampledError from error
        times = join_times([piece.times for piece in pieces], (time.perf_counter() - started) * 1e3)
        return ViewedChunk(len(seeds), loaded.graph.nodes, pieces, times)
