"""One batch through one variant: sample, gather, infer, each stage timed.

The same function serves requests, measures the profile and computes the accuracies in it, so that what is
promised is what is served.

Through a cascade one variant answers, and another one about what the first is not sure of, which the task decides
(`tasks/deciding.py`). A cascade computes nothing itself, so it runs on any device that its stages run on. Either stage
has the neighbours that it would have drawn by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.overlay import Overlay, number_overlay, overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of
from gnnserve_worker.kernels.view import SampleView
from gnnserve_worker.models.network import Activations, copy_rows
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.parallel import limit_blas_to_one_thread, map_parallel, thread_count
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, distinct_share, most_by_hop
from gnnserve_worker.sampling.normalised import weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.staleness.loss import StaleRead
from gnnserve_worker.tables.table import RowsBehind
from gnnserve_worker.tasks.deciding import Decides, SeedPairs, in_turn

_CHUNK_BYTES = 1024 * 1024
"""What one chunk gathers and computes: as much as stays in a core's own cache."""
_FEWEST_SEEDS = 32
"""Below it per part, handing work to another thread costs more than it saves."""
_SHARE_BELOW = 0.95
"""Expected share of distinct nodes among a chunk's draws, below which looking each of them up pays. Measured: at 0.82
sharing is faster for every table, at 0.94 for wide ones by 5 to 10 % while it costs narrow ones as much."""


# What is made per batch is a msgspec struct: it costs a sixth of a frozen dataclass.


class StageTimes(msgspec.Struct, frozen=True):
    sample_ms: float
    gather_ms: float
    compute_ms: float
    overlay_ms: float = 0.0
    """Joining the overlays of a batch's requests into one view, before the other stages, and making rows of what was
    sampled of them."""

    @property
    def total_ms(self) -> float:
        return self.sample_ms + self.gather_ms + self.compute_ms + self.overlay_ms

    def __add__(self, other: StageTimes) -> StageTimes:
        return StageTimes(
            self.sample_ms + other.sample_ms,
            self.gather_ms + other.gather_ms,
            self.compute_ms + other.compute_ms,
            self.overlay_ms + other.overlay_ms,
        )

    def after_overlay(self, overlay_ms: float) -> StageTimes:
        return StageTimes(self.sample_ms, self.gather_ms, self.compute_ms, self.overlay_ms + overlay_ms)


class Inference(msgspec.Struct, frozen=True):
    scores: np.ndarray
    """float32 [seeds, classes], before softmax or sigmoid."""
    embeddings: np.ndarray | None
    """float32 [seeds, hidden], the last hidden layer; None for one-layer networks, and where no request wants them."""
    times: StageTimes
    gathered_bytes: int
    stale: StaleRead | None = None
    """Rows of a stored layer that it read, where some were stale before; None: none were."""

    def repeated(self, places: np.ndarray) -> Inference:
        """The answers of repeated seeds: each takes the answer at its place here (int32)."""
        embeddings = None if self.embeddings is None else _rows_of(self.embeddings, places)
        return Inference(_rows_of(self.scores, places), embeddings, self.times, self.gathered_bytes)


class Infer(Protocol):
    """`infer_batch` of a revision, on whatever device."""

    def __call__(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference: ...  # pragma: no cover


class _Workspace(threading.local):
    """All that a thread computes in: it is used again from batch to batch, and nothing is allocated but the answer."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.activations = Activations()

    @cached_property
    def distinct(self) -> DistinctScratch:
        """Made for the first batch of several seeds."""
        return DistinctScratch()


_workspace = _Workspace()


def infer_batch(
    revision: LoadedRevision,
    variant: str,
    seeds: np.ndarray,
    key: int,
    *,
    with_embeddings: bool = True,
    view: BatchView | None = None,
) -> Inference:
    """Scores of `seeds` (int64 node ids in range) by one variant. Equal keys draw equal neighbours, for every variant.

    Of seeds that come several times one is computed. Large batches go through in chunks, side by side on all
    processors. From one thread at a time, but for one that warms up another revision. With a `view` seeds are those
    that `view_of` has numbered, and each is answered as its request sees the graph: equal seeds of different views are
    different seeds.
    """
    if len(seeds) == 1:
        return infer_each(revision, variant, seeds, key, with_embeddings=with_embeddings, view=view)
    infer = partial(infer_each, revision)
    return infer_distinct(infer, variant, seeds, key, _workspace.distinct, with_embeddings=with_embeddings, view=view)


def infer_distinct(
    infer: Infer, variant: str, seeds: np.ndarray, key: int, scratch: DistinctScratch, *,
    with_embeddings: bool, view: BatchView | None,
) -> Inference:  # fmt: skip
    """As `infer`, with each of `seeds` computed once where enough of them repeat. `scratch`: the calling thread's."""
    distinct = find_distinct(seeds, scratch, None if view is None else view.sampling)
    if distinct is None:
        return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
    if view is not None and distinct.views is not None:
        view = view.of_distinct(distinct.views)
    inference = infer(variant, distinct.seeds, key, with_embeddings=with_embeddings, view=view)
    return inference.repeated(distinct.places)


def infer_each(
    revision: LoadedRevision,
    variant: str,
    seeds: np.ndarray,
    key: int,
    *,
    with_embeddings: bool = True,
    view: BatchView | None = None,
) -> Inference:
    """As `infer_batch`, without deduplication: the cost of that many different seeds."""
    loaded = revision.variants[variant]
    network, count = loaded.network, len(seeds)
    features = None if view is None else view.features
    chunks = plan_chunks(
        count, loaded.fanouts, network.bytes_per_row, revision.reading.effective_nodes, thread_count(),
        makes_rows=features is not None and 2 * len(features) >= count,
    )  # fmt: skip
    scores = np.empty((count, network.classes), dtype=np.float32)
    embeddings = np.empty((count, network.hidden), dtype=np.float32) if with_embeddings and network.hidden else None
    if chunks.count == 1:
        times, read_bytes = _infer_chunk(revision, loaded, seeds, key, scores, embeddings, view, share=chunks.share)
        return Inference(scores, embeddings, times, read_bytes)
    started = time.perf_counter()
    slices = cut_evenly(count, chunks.count)

    def infer_part(i: int) -> tuple[StageTimes, int]:
        part = slices[i]
        rows = None if embeddings is None else embeddings[part]
        seen = None if view is None else view.of_seeds(part)
        return _infer_chunk(revision, loaded, seeds[part], key, scores[part], rows, seen, share=chunks.share)

    parts = map_parallel(infer_part, chunks.count)
    times = join_times([part for part, _ in parts], (time.perf_counter() - started) * 1e3)
    return Inference(scores, embeddings, times, sum(read_bytes for _, read_bytes in parts))


def warm_up(revision: LoadedRevision) -> None:
    """Compile or load every kernel and touch every variant, so that no request pays for it."""
    limit_blas_to_one_thread()
    # Enough for two chunks, so that the threads are there too.
    seeds = np.arange(2 * _FEWEST_SEEDS, dtype=np.int64) % revision.answered_nodes
    for name, variant in revision.variants.items():
        infer_each(revision, name, seeds, key=0)
        infer_batch(revision, name, seeds[:2], key=0)
        # A variant that cannot answer requests with an overlay answers those with a seed of their own by a view, too.
        overlay = None if variant.rows is None else _smallest_overlay(revision)
        asked = np.full(2, 0 if overlay is None else revision.graph.nodes, np.int64)
        view = view_of(revision.graph.nodes, [Part(2, overlay, seed=0)], asked)
        infer_batch(revision, name, asked, key=0, view=view)


def _smallest_overlay(revision: LoadedRevision) -> Overlay:
    """One new node that reads another one, by each relation of its type."""
    width = revision.new_nodes.width
    # As it is in the body of a request.
    number_overlay(np.array([0, -1]), np.zeros(width, np.float32), 1, 2, revision.graph.nodes)
    return overlay_arranger(revision.graph, places_of(revision.graph.schema)).smallest(width)


def count_parts(seeds: int, threads: int) -> int:
    """Parts in which so many seeds are best computed, side by side on so many threads."""
    return max(1, min(threads, seeds // _FEWEST_SEEDS))


def cut_evenly(seeds: int, parts: int) -> list[slice]:
    """Slices of the seeds, one after the other; their lengths differ by one at most."""
    return [slice(start, end) for start, end in pairwise(seeds * i // parts for i in range(parts + 1))]


class Chunks(msgspec.Struct, frozen=True):
    count: int
    share: bool
    """A node that a chunk meets twice is computed once."""


@lru_cache(4096)
def plan_chunks(
    seeds: int, fanouts: tuple[int, ...], row_bytes: int, effective_nodes: float, threads: int, *,
    makes_rows: bool = False,
) -> Chunks:  # fmt: skip
    """Chunks that stay in a core's cache; or, where nodes are met again and again, as few as there are threads, and
    likewise where rows are made for many seeds: each chunk would read the weights for that anew."""
    fewest = count_parts(seeds, threads)
    if fanouts[0] == FULL_NEIGHBOURHOOD:
        return Chunks(fewest, share=True)
    rows_per_seed = sum(most_by_hop(fanouts)[:-1])
    if distinct_share(seeds * rows_per_seed // fewest, effective_nodes) < _SHARE_BELOW:
        return Chunks(fewest, share=True)
    if makes_rows:
        return Chunks(fewest, share=False)
    most_seeds = max(1, _CHUNK_BYTES // (row_bytes * rows_per_seed))
    return Chunks(max(fewest, -(-seeds // most_seeds)), share=False)


def _infer_chunk(
    revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray, key: int,
    scores: np.ndarray, embeddings: np.ndarray | None, view: BatchView | None, *, share: bool,
) -> tuple[StageTimes, int]:  # fmt: skip
    """Fills in scores and embeddings; what it took, and the bytes that it gathered."""
    network, activations = variant.network, _workspace.activations
    start = time.perf_counter()
    sampling = None if view is None else view.sampling
    sample = draw_sample(revision, variant, seeds, key, sampling, _workspace.scratch, share=share)
    if network.reads_payload:
        payload = gather_payload(revision.graph, revision.reading.payloads, sample, view)
        sample = msgspec.structs.replace(sample, payload=payload)
    drawn = time.perf_counter()
    behind = None if view is None else make_rows(variant, view, sample)
    made = drawn if behind is None else time.perf_counter()
    aggregated = network.gather(variant.table, sample, activations, behind)
    gathered = time.perf_counter()
    network.infer(aggregated, sample, activations, scores, embeddings)
    end = time.perf_counter()
    times = StageTimes((drawn - start) * 1e3, (gathered - made) * 1e3, (end - gathered) * 1e3, (made - drawn) * 1e3)
    return times, (len(sample.neighbours) + len(sample.nodes)) * variant.row_bytes


def draw_sample(
    revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray, key: int, view: SampleView | None,
    scratch: Scratch, *, share: bool,
) -> NeighbourSample:  # fmt: skip
    """What the variant gathers for these seeds, with what neighbours weigh, and where edges stand, where its network
    reads that; in scratch."""
    graph, reading = revision.graph, revision.reading
    # Asked with a view alone: a property is a call.
    names_leaves = view is not None and (
        variant.network.names_leaves or (variant.rows is not None and variant.rows.names_leaves)
    )
    sample = reading.sample(
        graph.indptr, graph.indices, seeds, variant.relation_fanouts or variant.fanouts, key, scratch, share=share,
        view=view, names_leaves=names_leaves, names_positions=variant.network.reads_payload,
    )  # fmt: skip
    if variant.network.weighs_neighbours and reading.neighbour_roots is not None:
        return weigh(sample, graph.indptr, reading.neighbour_roots, scratch, view)
    return sample


def make_rows(
    variant: LoadedVariant, view: BatchView | None, sample: NeighbourSample, *, apart: bool = True
) -> RowsBehind | None:
    """Rows of what the sample reads of the view, which is named in the sample; None: it reads nothing. `apart`: as
    `MakesRows.behind` takes it. ValueError: the variant cannot answer requests with an overlay."""
    if view is None or view.features is None:
        return None
    if variant.rows is None:
        raise ValueError(f"variant {variant.name} cannot answer requests with an overlay")
    return variant.rows.behind(view, sample, variant.columns, apart=apart)


def join_times(parts: Sequence[StageTimes], wall_ms: float) -> StageTimes:
    """Times of chunks that ran side by side: their stages summed, scaled to the elapsed time."""
    busy = parts[0]
    for part in parts[1:]:
        busy = busy + part
    share = wall_ms / max(busy.total_ms, 1e-9)
    return StageTimes(busy.sample_ms * share, busy.gather_ms * share, busy.compute_ms * share, busy.overlay_ms * share)


def _rows_of(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    out = np.empty((len(places), rows.shape[1]), dtype=rows.dtype)
    copy_rows(rows, places, out)
    return out


# --- cascades: two variants for one batch


PairsOf = Callable[[int], SeedPairs]
"""Which of so many seeds of a batch are asked about together."""


def with_cascades(
    infer: Infer, cascades: Sequence[CascadeManifest], decides: Decides, pairs_of: PairsOf = in_turn
) -> Infer:
    """`infer` of a revision's networks, which answers for its cascades as well."""
    return (
        _CascadeInference(infer, {cascade.name: cascade for cascade in cascades}, decides, pairs_of)
        if cascades
        else infer
    )


@dataclass(frozen=True, slots=True)
class _CascadeInference:
    infer: Infer
    cascades: Mapping[str, CascadeManifest]
    decides: Decides
    pairs_of: PairsOf

    def __call__(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        cascade = self.cascades.get(variant)
        if cascade is None:
            return self.infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
        return self._infer_cascade(cascade, seeds, key, view)

    def _infer_cascade(
        self, cascade: CascadeManifest, seeds: np.ndarray, key: int, view: BatchView | None
    ) -> Inference:
        """Without embeddings: the two networks' hidden layers differ."""
        answer = self.infer(cascade.first, seeds, key, with_embeddings=False, view=view)
        started = time.perf_counter()
        places = self.decides.passed_on(cascade, answer.scores, self.pairs_of(len(seeds)))
        seen = None if view is None else view.of_places(places)
        times = answer.times + StageTimes(0.0, 0.0, (time.perf_counter() - started) * 1e3)
        if not len(places):
            scores = self.decides.joined(answer.scores, places, answer.scores[:0])
            return Inference(scores, None, times, answer.gathered_bytes, answer.stale)
        rest = self.infer(cascade.then, seeds[places], key, with_embeddings=False, view=seen)
        scores = self.decides.joined(answer.scores, places, rest.scores)
        read_bytes = answer.gathered_bytes + rest.gathered_bytes
        return Inference(scores, None, times + rest.times, read_bytes, answer.stale or rest.stale)
