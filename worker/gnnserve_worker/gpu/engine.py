"""The engine's function on a GPU: `GpuEngine.infer` means what `inference/batch.infer_batch` means.

A batch is sampled, gathered and computed in chunks, each in a lane of its own: while one chunk's rows come over the
link, another one's neighbours are drawn and a third one's products are made. What is drawn depends on key, depth and
node alone, on either device, so the same key gives the same trees, and answers that agree within rounding.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.gpu.lane import DeviceVariant, FinishedChunk, GpuLane
from gnnserve_worker.gpu.listed.network import listed_network
from gnnserve_worker.gpu.resident import LANES, Resident, make_resident
from gnnserve_worker.gpu.viewed import RowsRead, UnsampledError, ViewSampler
from gnnserve_worker.inference.batch import Inference, infer_distinct, infer_each, join_times
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.inference.written import WrittenSince
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.sampling.distinct import DistinctScratch
from gnnserve_worker.tables.table import Table

_log = logging.getLogger(__name__)


class GpuEngine:
    """The engine of one revision. One thread at a time may call `infer`, beside other revisions' engines; any may call
    `stats`.

    What it holds of the GPU is released when nothing refers to it any more.
    """

    def __init__(self, loaded: LoadedRevision, resident: Resident, written: WrittenSince | None = None) -> None:
        """`written`: what changes have written since before `resident` was made, where the graph changes."""
        self._held = [resident]
        """The one that it has now; none while another is made."""
        # First, so that it is released even where this fails half-way.
        weakref.finalize(self, _release_soon, self._held).atexit = False
        self._written = written
        self._nodes = loaded.graph.nodes
        self._distinct = DistinctScratch()
        self._loaded = loaded
        self._sampler = ViewSampler(loaded)
        self._lanes: list[GpuLane] = []
        self._variants: dict[str, DeviceVariant] = {}
        self._last_stats: DeviceStats | None = None
        self._uncached_link_bytes = 0
        self._repeated_rows = 0
        self._shared_from: dict[str, int] = {}
        """By variant: seeds of the smallest chunk that gathers once what it reads several times."""
        self._build_lanes()

    def infer(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        """Scores of `seeds` (int64 node ids in range) by one variant. Equal keys draw equal neighbours, for every
        variant. With a `view`, seeds are those that `view_of` has numbered, and the variant is one of `viewed`. Raises
        what went wrong on the device; then nothing of this batch runs there any more."""
        if self._written is not None and not self._written.is_empty:
            self._fetch(self._written)
        return infer_distinct(
            self.infer_each, variant, seeds, key, self._distinct, with_embeddings=with_embeddings, view=view
        )

    def infer_each(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        """The GPU's version of the CPU's `infer_each`."""
        known = self._variants[variant]
        cache = self._resident.caches.get(variant)
        classes, hidden = known.network.classes, known.network.embedding_columns
        scores = np.empty((len(seeds), classes), dtype=np.float32)
        embeddings = np.empty((len(seeds), hidden), np.float32) if with_embeddings and hidden else None
        started = time.perf_counter()
        ticket = None if cache is None else cache.enter()
        try:
            parts = self._run(known, seeds, key, view, scores, embeddings)
        finally:
            if cache is not None and ticket is not None:
                cache.leave(ticket)
        times = join_times([part.times for part in parts], (time.perf_counter() - started) * 1e3)
        self._uncached_link_bytes += self._uncached_rows(variant, parts, cache is not None) * known.row_bytes
        self._repeated_rows += sum(part.read.repeated for part in parts)
        return Inference(scores, embeddings, times, sum(part.read.all for part in parts) * known.row_bytes)

    @property
    def variants(self) -> frozenset[str]:
        """Variants that it answers; others are left to the CPU."""
        return frozenset(self._variants)

    @property
    def viewed(self) -> frozenset[str]:
        """Variants that it also answers in a view."""
        return frozenset(name for name, variant in self._variants.items() if variant.behind is not None)

    def warm_up(self, decide: Callable[[GpuEngine], object] = lambda _: None) -> None:
        """Compile, load and capture everything that a batch of any size needs. Only then caches begin to change.
        `decide`: what is to be measured and chosen with caches as they are at first, such as whether rows are shared.
        """
        for cache in set(self._resident.caches.values()):
            cache.begin()
        largest = self._resident.sizes.seeds
        changes = self._loaded.changes
        nodes = self._nodes if changes is None else changes.graph.taken
        seeds = np.resize(np.arange(nodes, dtype=np.int64), LANES * largest)
        for variant in self._variants:
            for bucket in self._resident.sizes.buckets:
                self.infer_each(variant, seeds[:bucket], key=0)
            self.infer_each(variant, seeds, key=0)
        for variant in self.viewed:
            for bucket in self._resident.sizes.buckets:
                self.infer_each(variant, seeds[:bucket], key=0, view=self._with_a_seed(bucket))
            self.infer_each(variant, seeds, key=0, view=self._with_a_seed(len(seeds)))
        if self._resident.copies is not None:
            self._resident.copies.warm_up()
        decide(self)
        for cache in set(self._resident.caches.values()):
            cache.start()

    @property
    def sharing(self) -> frozenset[str]:
        """Variants that can share rows: theirs come over the link, and there is room to share them."""
        resident = self._resident
        return resident.on_host & self._variants.keys() if resident.has_distinct_room else frozenset()

    @property
    def buckets(self) -> tuple[int, ...]:
        """Sizes of chunks, in seeds."""
        return self._resident.sizes.buckets

    def share_rows(self, shared_from: Mapping[str, int]) -> None:
        """Gather once what a chunk reads several times: by variant, in chunks of at least so many seeds. By the
        inferring thread."""
        if unable := shared_from.keys() - self.sharing:
            raise ValueError(f"no room for shared rows, or none over the link: {', '.join(sorted(unable))}")
        self._shared_from = dict(shared_from)
        self._build_variants()

    def give_back_distinct_room(self) -> None:
        """Release the room for shared rows, where none are."""
        self._shared_from = {}
        for lane in self._lanes:
            lane.abandon()
            lane.drop_distinct_room()
        self._resident.release_distinct_room()
        self._build_variants()
        self._resident.accelerator.give_back()

    def _with_a_seed(self, seeds: int) -> BatchView | None:
        """The view of one request about stored nodes, with a seed of its own."""
        return view_of(self._nodes, [Part(seeds, None, 0)], np.zeros(seeds, np.int64))

    def would_gain(self) -> bool:
        """See `Resident.would_gain`."""
        return any(resident.would_gain() for resident in tuple(self._held))

    @property
    def has_cache(self) -> bool:
        return any(resident.caches for resident in tuple(self._held))

    def forget_copies(self) -> None:
        """Drop copies of rows in caches: the table may have been another one for a while. Arrays that lie in the GPU's
        memory as a whole were copied while this was loaded, and stay. Waits for the batch at hand."""
        for cache in self._caches():
            cache.invalidate_all()

    def give_back_cache(self) -> None:
        """Release the cache; to be called by the inferring thread. Rows are then read over the link."""
        for lane in self._lanes:
            lane.abandon()
            lane.forget()
        self._resident.release_caches()
        self._build_variants()
        self._resident.accelerator.give_back()

    def forget_captured(self) -> None:
        """Drop what was captured, and wait for the device; to be called by the inferring thread. Raises the error of a
        device that does not answer any more."""
        for lane in self._lanes:
            lane.abandon()
            lane.forget()
        self._resident.accelerator.settle()

    def stats(self) -> DeviceStats:
        held = tuple(self._held)
        if not held and self._last_stats is not None:
            return self._last_stats
        resident, caches = held[0], self._caches()
        here, *lent = resident.cache_bytes if caches else (0,)
        of_caches = [cache.stats() for cache in caches]
        problems = [*resident.problems, *(cache.problem for cache in caches if cache.problem is not None)]
        return DeviceStats(
            device=resident.accelerator.name,
            problem="; ".join(problems) or None,
            memory_bytes={**resident.taken_bytes, "cache": here} | ({"lent": sum(lent)} if any(lent) else {}),
            variants=len(self._variants),
            memory_budget_bytes=resident.budget_bytes,
            hits=sum(stats.hits for stats in of_caches),
            misses=sum(stats.misses for stats in of_caches),
            link_bytes=sum(stats.link_bytes for stats in of_caches) + self._uncached_link_bytes,
            admissions=sum(stats.admissions for stats in of_caches),
            evictions=sum(stats.evictions for stats in of_caches),
            repeated_rows=self._repeated_rows,
        )

    def _caches(self) -> set[FeatureCache]:
        """The present caches; any thread may call it, while another releases them."""
        return {cache for resident in tuple(self._held) for cache in dict(resident.caches).values()}

    @property
    def _resident(self) -> Resident:
        return self._held[0]

    def _fetch(self, written: WrittenSince) -> None:
        """Bring what the GPU reads up to what changes have written. What fails is to be fetched all the same."""
        copies = self._resident.copies
        if copies is not None and copies.has_room:
            tables = {name: self._loaded.variants[name].table for name in self._resident.caches}
            caches = {id(tables[name]): cache for name, cache in self._resident.caches.items()}
            self._uncached_link_bytes += copies.write(written, caches)
        else:
            self._place_anew()
        written.clear()

    def _place_anew(self) -> None:
        """Release all of the GPU's memory, and place the revision as it is now. Stages are captured as batches come."""
        _log.info("changes have outgrown the room for them on the GPU: all is placed anew")
        self._last_stats = self.stats()
        for lane in self._lanes:
            lane.abandon()
            lane.forget()
        self._lanes.clear()
        self._variants.clear()
        resident = self._held.pop()
        accelerator, means = resident.accelerator, resident.means
        resident.release()
        # The last reference to what it has.
        del resident, lane
        self._held.append(make_resident(self._loaded, accelerator, means))
        self._build_lanes()
        for cache in self._caches():
            cache.begin()
            cache.start()

    def _build_lanes(self) -> None:
        resident = self._resident
        self._lanes = [
            GpuLane(resident.accelerator, resident.graph, resident.sizes, has_distinct_room=resident.has_distinct_room)
            for _ in range(LANES)
        ]
        self._build_variants()
        resident.accelerator.settle()

    def _run(
        self,
        variant: DeviceVariant,
        seeds: np.ndarray,
        key: int,
        view: BatchView | None,
        scores: np.ndarray,
        embeddings: np.ndarray | None,
    ) -> list[FinishedChunk]:
        """Chunk after chunk into lane after lane; a lane's next chunk waits for its last. Fills in both arrays."""
        parts: list[FinishedChunk] = []
        lanes = self._lanes
        running: deque[tuple[GpuLane, slice]] = deque()

        def finish() -> None:
            """The oldest chunk that runs."""
            lane, chunk = running.popleft()
            rows = None if embeddings is None else embeddings[chunk]
            parts.append(lane.finish(scores[chunk], rows))

        try:
            bounds = chunk_bounds(len(seeds), self._resident.sizes.seeds)
            for number, chunk in enumerate(slice(*ends) for ends in pairwise(bounds)):
                lane, viewed = lanes[number % LANES], None
                if view is not None and view.touches(chunk):
                    # While others run; the lane's own chunk too.
                    viewed = self._sampler.sample(variant.name, seeds[chunk], key, view.of_seeds(chunk))
                    if not lane.has_room(variant, viewed):
                        rows = None if embeddings is None else embeddings[chunk]
                        parts.append(
                            self._compute_on_cpu(variant, seeds[chunk], key, view.of_seeds(chunk), scores[chunk], rows)
                        )
                        continue
                while lane.busy:
                    finish()
                if viewed is None:
                    lane.start(variant, seeds[chunk], key)
                else:
                    lane.start_viewed(variant, viewed)
                running.append((lane, chunk))
            while running:
                finish()
        except BaseException:
            for lane in lanes:
                lane.abandon()
            raise
        return parts

    def _compute_on_cpu(
        self,
        variant: DeviceVariant,
        seeds: np.ndarray,
        key: int,
        view: BatchView,
        scores: np.ndarray,
        embeddings: np.ndarray | None,
    ) -> FinishedChunk:
        """A chunk that reads more rows behind the table's than a lane has room for. Fills in both arrays."""
        wants = embeddings is not None
        try:
            answer = infer_each(self._loaded, variant.name, seeds, key, with_embeddings=wants, view=view)
        except Exception as error:
            raise UnsampledError from error
        scores[...] = answer.scores
        if embeddings is not None and answer.embeddings is not None:
            embeddings[...] = answer.embeddings
        return FinishedChunk(answer.times, RowsRead(0, 0, by_cpu=answer.gathered_bytes // variant.row_bytes))

    def _uncached_rows(self, variant: str, parts: list[FinishedChunk], has_cache: bool) -> int:
        """Rows that came over the link, past any cache, which counts its own."""
        resident = self._resident
        own_rows, neighbour_rows = sum(part.read.own for part in parts), sum(part.read.neighbours for part in parts)
        # They are of the table that neighbours are read from, which is on the host then.
        neighbour_rows -= sum(part.read.repeated for part in parts)
        over_link = sum(part.read.behind for part in parts)
        if resident.tables[variant].own is resident.tables[variant].rows:
            return over_link + (own_rows + neighbour_rows if variant in resident.on_host and not has_cache else 0)
        over_link += own_rows if variant in resident.own_on_host else 0
        return over_link + (neighbour_rows if variant in resident.on_host and not has_cache else 0)

    def _build_variants(self) -> None:
        resident = self._resident
        self._variants = {
            name: DeviceVariant(
                name,
                self._loaded.variants[name].fanouts,
                table,
                resident.caches[name].view if name in resident.caches else None,
                resident.networks[name],
                self._loaded.variants[name].row_bytes,
                table_behind(self._loaded.variants[name]),
                self._shared_from.get(name) if resident.has_distinct_room and name in resident.on_host else None,
            )
            for name, table in resident.tables.items()
        }


def table_behind(variant: LoadedVariant) -> Table | None:
    """The table behind which the GPU reads rows that requests bring; None: the CPU answers such requests. A view names
    a node otherwise than a tree does, so that in listed layers a node would not be one."""
    return None if variant.rows is None or listed_network(variant.network) is not None else variant.table


def chunk_bounds(seeds: int, largest: int) -> list[int]:
    """Bounds of the chunks. The first one takes the remainder, so that only the first lane needs every bucket."""
    first = seeds % largest or min(seeds, largest)
    return [0, *range(first, seeds + 1, largest)]


def _release_soon(held: list[Resident]) -> None:
    """Release in a separate thread, since releasing may wait."""

    def release() -> None:
        try:
            for resident in held:
                resident.release()
                resident.accelerator.give_back()
        except Exception:  # noqa: BLE001  (a lost device has nothing to give back)
            _log.warning("a revision's part of the GPU was not released", exc_info=True)

    threading.Thread(target=release, name="gpu-release", daemon=True).start()
