"""A revision on a GPU: its arrays where `placement.py` wants them, or where they can be.

What does not fit into the GPU's memory is read over the link, in place, through a cache with the memory that is left.
What can be neither is left to the CPU, with the variants that read it, and said.

During a live switch two revisions share the memory, and the new one may get little. It can say when the old one's has
come free (`would_gain`): loaded again beside itself, it then has what it would have had alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor

from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import DeviceError
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceGraph, DeviceRows, DeviceTable, DeviceWeights, tensor_over
from gnnserve_worker.gpu.buffers import LaneSizes, plan_lane
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.gpu.living import WRITING_BYTES, LivingCopies, cut_to_room
from gnnserve_worker.gpu.memory import Claim, HostMemory, Ledger
from gnnserve_worker.gpu.networks import AnyDeviceNetwork, network_on, weights_bytes
from gnnserve_worker.gpu.pinned import PinnedArray, UnpinnableError, pin, pin_copy
from gnnserve_worker.gpu.placement import (
    INDICES,
    INDPTR,
    Placement,
    PlacementGroup,
    parts_of,
    plan_placement,
    roots_bytes,
    scales_bytes,
    table_parts,
)
from gnnserve_worker.gpu.table_caches import make_cache, plan_caches, readers_of
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.tables.table import Rows

LANES = 3
"""Side by side: one samples while another gathers and a third computes."""
_NOTABLE_SHARE = 0.9
"""Share of the cache that the revision would have alone; with less, it is reported, and worth loading again."""
_MORE_MEMORY = "allow the pod to lock memory (RLIMIT_MEMLOCK), give it more, or use a GPU with more memory"


class CrowdedError(DeviceError):
    """The missing memory is held by another revision, and may be available once that is gone."""


@dataclass(frozen=True, slots=True)
class Means:
    """The memory that may be used, and from where."""

    policy: CachePolicy
    limit_bytes: int | None
    """Limit of the GPU's memory for all revisions together; None: all that is free."""
    ledger: Ledger
    host: HostMemory

    def available_bytes(self, free_bytes: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes available to another revision, on the device and on each lender, where `free_bytes` can be
        allocated."""
        ledgers = (self.ledger, *map(self.ledger.of_lender, range(len(free_bytes) - 1)))
        return tuple(
            ledger.available_bytes(free, self.limit_bytes) for ledger, free in zip(ledgers, free_bytes, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Resident:
    """Belongs to one engine. Released once, when nothing runs any more."""

    accelerator: Accelerator
    sizes: LaneSizes
    graph: DeviceGraph
    tables: dict[str, DeviceTable]
    """Tables by variant, without the variants that are left to the CPU."""
    networks: dict[str, AnyDeviceNetwork]
    caches: dict[str, FeatureCache]
    """Caches by variant, of rows that are on the host. Several variants may share one."""
    on_host: frozenset[str]
    """Variants whose rows are, so that what is not cached comes over the link."""
    own_on_host: frozenset[str]
    """Variants whose own rows are an array apart, which is on the host and never cached."""
    problems: tuple[str, ...]
    """Messages about what is slower than it could be."""
    memory_bytes: Mapping[str, int]
    """GPU memory by part, without the cache and the room for shared rows."""
    cache_bytes: tuple[int, ...]
    """Cache memory on the computing GPU and on each lender, while there are caches."""
    budget_bytes: int
    is_crowded: bool
    """Alone, it would have had more."""
    copies: LivingCopies | None
    """What fetches changes of the graph; None: it stays as it is."""
    means: Means
    _pinned: list[PinnedArray]
    _claims: list[Claim]
    _cache_claims: list[Claim]
    _distinct_claims: list[Claim]
    """The claim on the room for rows that a chunk reads several times, where there is such a room."""

    @property
    def has_distinct_room(self) -> bool:
        return bool(self._distinct_claims)

    @property
    def taken_bytes(self) -> Mapping[str, int]:
        """GPU memory by part, without the cache. Buffers hold the room for shared rows."""
        distinct_bytes = sum(claim.size_bytes for claim in tuple(self._distinct_claims))
        return {**self.memory_bytes, "buffers": self.memory_bytes["buffers"] + distinct_bytes}

    def would_gain(self) -> bool:
        """Whether it would have more, were it loaded again beside itself: others had what it lacks, and are gone. From
        any thread."""
        if not self.is_crowded:
            return False
        own_bytes = sum(claim.size_bytes for claim in (*self._claims, *self._distinct_claims))
        own_bytes += sum(cache.memory_bytes[0] for cache in _distinct(dict(self.caches)))
        if self.means.ledger.claimed_bytes > own_bytes:
            return False
        return self.means.available_bytes(self.accelerator.free_bytes())[0] > self.budget_bytes

    def release_caches(self) -> None:
        """Releases the caches. No captured graph may still read them."""
        for cache in _distinct(self.caches):
            cache.stop()
        self.caches.clear()
        _release(self._cache_claims)

    def release_distinct_room(self) -> None:
        """Releases the room for shared rows. No captured graph may still use it."""
        _release(self._distinct_claims)

    def release(self) -> None:
        self.release_caches()
        self.release_distinct_room()
        for pinned in self._pinned:
            pinned.release()
        self._pinned.clear()
        self.tables.clear()
        self.networks.clear()
        _release(self._claims)


def make_resident(loaded: LoadedRevision, accelerator: Accelerator, means: Means) -> Resident:
    """DeviceError: not even what nothing goes without fits, or the graph cannot be read by the GPU. CrowdedError: for
    another revision's sake."""
    accelerator.give_back()
    available_bytes = means.available_bytes(accelerator.free_bytes())
    sizes = plan_lane(loaded.variants.values())
    of_weights = sum(weights_bytes(variant.network) for variant in loaded.variants.values())
    cut = cut_to_room(loaded)
    required_bytes = _buffer_bytes(loaded, sizes) + of_weights + scales_bytes(cut) + roots_bytes(cut)
    builder = _Builder(cut, loaded, accelerator, means, required_bytes, LANES * sizes.distinct_bytes, available_bytes)
    with ExitStack() as undo:
        undo.callback(builder.release)
        resident = builder.build(builder.place(), sizes, of_weights)
        undo.pop_all()
    return resident


class _Builder:
    """Takes step after step, and can undo all of them."""

    def __init__(
        self,
        loaded: LoadedRevision,
        whole: LoadedRevision,
        accelerator: Accelerator,
        means: Means,
        required_bytes: int,
        distinct_bytes: int,
        available_bytes: tuple[int, ...],
    ) -> None:
        """`loaded`: as `cut_to_room` makes it of the whole. `required_bytes`: what nothing goes without.
        `distinct_bytes`: what sharing rows takes. `available_bytes`: on the device and on each lender."""
        self._loaded = loaded
        self._whole = whole
        # What changes are written to is no file's memory any more.
        self._pin_one = pin if loaded.changes is None else pin_copy
        self._accelerator = accelerator
        self._means = means
        self._required_bytes = required_bytes
        self._wanted_distinct_bytes = distinct_bytes
        self._available_bytes = available_bytes
        self._others_bytes = means.ledger.claimed_bytes
        self._rows = table_parts(loaded)
        self._arrays = {INDPTR: loaded.graph.indptr, INDICES: loaded.graph.indices} | {
            name: rows.values for name, rows in self._rows.items()
        }
        self._parts = {part.name: part for part in parts_of(loaded)}
        self._pinned: dict[str, PinnedArray] = {}
        self._caches: dict[str, FeatureCache] = {}
        self._claims: list[Claim] = []
        self._cache_claims: list[Claim] = []
        self._distinct_claims: list[Claim] = []
        self._distinct_bytes = 0
        self._problems: list[str] = []
        self._is_crowded = False

    def place(self) -> Placement:
        """Pins what stays in the host's memory; what cannot be pinned, the next plan puts first."""
        refusals: dict[str, str] = {}
        budget_bytes, others_bytes = self._available_bytes[0], self._others_bytes
        # Where the other one has more than is left here, this one will be loaded again into that: until then, the less
        # it takes, the more there is for it.
        replaced_bytes = others_bytes if others_bytes < budget_bytes else 0
        while True:
            placement = self._plan(budget_bytes, replaced_bytes, refusals)
            if placement is None:
                raise self._lack()
            left_out = [refusals[name] for name in placement.left_out]
            if any(self._parts[name].group is PlacementGroup.GRAPH for name in placement.left_out):
                raise DeviceError(f"{left_out[0]}, and its memory has no room for it", _MORE_MEMORY)
            if not self._pin(placement, refusals):
                break
        placement = self._with_distinct_room(placement, budget_bytes, replaced_bytes, refusals)
        for name in set(self._pinned) - set(placement.on_host):
            self._pinned.pop(name).release()
        copies = [pinned.message for pinned in self._pinned.values() if pinned.message is not None]
        self._problems = [*left_out, *copies]
        self._is_crowded = self._find_crowded(placement, self._plan(budget_bytes + others_bytes, 0, refusals))
        if self._is_crowded:
            self._problems.append(
                f"another revision had {others_bytes:,} bytes of the GPU's memory while this one was loaded, which so "
                "has less of its tables there: it is loaded once more when they are free; where it stays like this, "
                "start the worker anew"
            )
        return placement

    def _with_distinct_room(
        self, placement: Placement, budget_bytes: int, replaced_bytes: int, refusals: Mapping[str, str]
    ) -> Placement:
        """The placement with room for rows that a chunk reads several times, where any come over the link, and as long
        as the room is taken from caches alone."""
        if not any(self._parts[name].cacheable for name in placement.on_host):
            return placement
        roomy = self._plan(budget_bytes, replaced_bytes, refusals, self._wanted_distinct_bytes)
        if roomy is None or (roomy.on_device, roomy.on_host) != (placement.on_device, placement.on_host):
            return placement
        self._distinct_bytes = self._wanted_distinct_bytes
        return roomy

    def _plan(
        self, budget_bytes: int, replaced_bytes: int, refusals: Mapping[str, str], distinct_bytes: int = 0
    ) -> Placement | None:
        return plan_placement(
            list(self._parts.values()),
            required_bytes=self._required_bytes + distinct_bytes,
            budget_bytes=budget_bytes,
            caches=self._means.policy is not CachePolicy.NONE,
            replaced_bytes=replaced_bytes,
            unpinnable=refusals.keys(),
        )

    def _lack(self) -> DeviceError:
        needed = (
            f"weights and buffers need {self._required_bytes:,} bytes of its memory, of which "
            f"{self._available_bytes[0]:,} are to be had"
        )
        remedy = "give it more by spec.worker.gpuMemory (--gpu-memory), or end what else uses the GPU"
        if not self._others_bytes:
            return DeviceError(needed, remedy)
        return CrowdedError(
            f"{needed}, beside the {self._others_bytes:,} of another revision",
            f"start the worker anew to give it what that one has, {remedy}",
        )

    def _find_crowded(self, placement: Placement, alone: Placement | None) -> bool:
        """Whether it has notably less than it would have had alone."""
        if not self._others_bytes or alone is None:
            return False
        lent_bytes = sum(self._available_bytes[1:])
        others_lent_bytes = sum(
            self._means.ledger.of_lender(place).claimed_bytes for place in range(len(self._available_bytes) - 1)
        )
        return (
            not set(alone.on_device) <= set(placement.on_device)
            or sum(placement.cache_bytes.values()) < _NOTABLE_SHARE * sum(alone.cache_bytes.values())
            or (bool(placement.cache_bytes) and lent_bytes < _NOTABLE_SHARE * (lent_bytes + others_lent_bytes))
        )

    def _pin(self, placement: Placement, refusals: dict[str, str]) -> bool:
        """Whether there was another that cannot be pinned."""
        for name in placement.on_host:
            if name not in self._pinned:
                try:
                    self._pinned[name] = self._pin_one(name, self._arrays[name], self._accelerator, self._means.host)
                except UnpinnableError as error:
                    refusals[name] = str(error)
                    return True
        return False

    def build(self, placement: Placement, sizes: LaneSizes, of_weights: int) -> Resident:
        ledger = self._means.ledger
        taken_bytes = placement.taken_bytes - sum(placement.cache_bytes.values()) - self._distinct_bytes
        self._claims = [ledger.claim(taken_bytes)]
        self._distinct_claims = [ledger.claim(self._distinct_bytes)] if self._distinct_bytes else []
        arrays = {name: self._tensor(name) for name in (*placement.on_device, *placement.on_host)}
        rows = {
            name: DeviceRows(arrays[name], self._scales(known)) for name, known in self._rows.items() if name in arrays
        }
        plans = plan_caches(self._loaded, self._rows, placement.cache_bytes, self._available_bytes[1:])
        cache_bytes = tuple(
            sum(plan.memory_bytes[place] for plan in plans.values()) for place in range(len(self._available_bytes))
        )
        ledgers = (ledger, *map(ledger.of_lender, range(len(cache_bytes) - 1)))
        self._cache_claims = [of.claim(size) for of, size in zip(ledgers, cache_bytes, strict=True) if size]
        for name, plan in plans.items():
            readers = readers_of(self._loaded, self._rows[name])
            self._caches[name] = make_cache(
                plan, rows[name], self._loaded, readers, self._means.policy, self._accelerator
            )
        variants = self._loaded.variants
        served = {name: v for name, v in variants.items() if self._names_of(v) <= rows.keys()}
        if not served:
            raise DeviceError(self._problems[0], _MORE_MEMORY)
        if len(served) < len(variants):
            left = ", ".join(name for name in variants if name not in served)
            self._problems.append(f"{left} is computed on the CPU")
        names = {name: self._name_of(variant.table.rows) for name, variant in served.items()}
        parts = [self._parts[name] for name in placement.on_device]
        graph = DeviceGraph(arrays[INDPTR], arrays[INDICES])
        weights = self._weights_of(graph)
        tables = {
            name: DeviceTable(rows[names[name]], rows[self._name_of(variant.table.own)])
            for name, variant in served.items()
        }
        taken = {group: sum(part.size_bytes for part in parts if part.group is group) for group in PlacementGroup}
        return Resident(
            accelerator=self._accelerator,
            sizes=sizes,
            graph=graph,
            tables=tables,
            networks={
                name: network_on(self._accelerator.device, variant.network, weights) for name, variant in served.items()
            },
            caches={name: self._caches[table] for name, table in names.items() if table in self._caches},
            on_host=frozenset(name for name, table in names.items() if table in placement.on_host),
            own_on_host=frozenset(
                name
                for name, variant in served.items()
                if variant.table.own is not variant.table.rows and self._name_of(variant.table.own) in placement.on_host
            ),
            problems=tuple(self._problems),
            memory_bytes={
                "graph": taken[PlacementGroup.GRAPH] + roots_bytes(self._loaded),
                "tables": taken[PlacementGroup.TABLES] + scales_bytes(self._loaded),
                "weights": of_weights,
                "buffers": _buffer_bytes(self._loaded, sizes),
            },
            cache_bytes=cache_bytes,
            budget_bytes=self._available_bytes[0],
            is_crowded=self._is_crowded,
            copies=self._copies_of(tables, graph, weights),
            means=self._means,
            _pinned=list(self._pinned.values()),
            _claims=self._claims,
            _cache_claims=self._cache_claims,
            _distinct_claims=self._distinct_claims,
        )

    def release(self) -> None:
        for cache in self._caches.values():
            cache.stop()
        for pinned in self._pinned.values():
            pinned.release()
        _release(self._claims)
        _release(self._cache_claims)
        _release(self._distinct_claims)

    def _tensor(self, name: str) -> Tensor:
        rows = self._rows.get(name)
        table_format = None if rows is None else rows.format
        pinned = self._pinned.get(name)
        if pinned is not None:
            return tensor_over(pinned.array, table_format)
        return self._accelerator.upload(tensor_over(self._arrays[name], table_format))

    def _scales(self, rows: Rows) -> Tensor | None:
        return self._accelerator.upload(tensor_over(rows.scales)) if len(rows.scales) else None

    def _weights_of(self, graph: DeviceGraph) -> DeviceWeights | None:
        roots = self._loaded.reading.neighbour_roots
        return None if roots is None else DeviceWeights(self._accelerator.upload(tensor_over(roots)), graph.indptr)

    def _copies_of(
        self, tables: Mapping[str, DeviceTable], graph: DeviceGraph, weights: DeviceWeights | None
    ) -> LivingCopies | None:
        whole = self._whole
        if whole.changes is None:
            return None
        pairs = {name: (whole.variants[name].table, table) for name, table in tables.items()}
        roots = whole.reading.neighbour_roots
        return LivingCopies(whole.changes.graph, pairs, roots, graph, weights, self._accelerator)

    def _name_of(self, rows: Rows) -> str:
        return next(name for name, known in self._rows.items() if known is rows)

    def _names_of(self, variant: LoadedVariant) -> set[str]:
        return {self._name_of(variant.table.rows), self._name_of(variant.table.own)}


def _buffer_bytes(loaded: LoadedRevision, sizes: LaneSizes) -> int:
    return LANES * sizes.device_bytes + (0 if loaded.changes is None else WRITING_BYTES)


def _release(claims: list[Claim]) -> None:
    while claims:
        claims.pop().release()


def _distinct(caches: Mapping[str, FeatureCache]) -> list[FeatureCache]:
    return list({id(cache): cache for cache in caches.values()}.values())
