"""A revision on a GPU: its arrays where `placement.py` wants them, or where they can be.

What does not fit into the GPU's memory is read over the link, in place, through a cache with the memory that is left.
What can be neither is left to the CPU, with the variants that read it, and said.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gnnserve_api.device import CachePolicy
from gnnserve_api.errors import DeviceError
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.policy import spread_over_blocks
from gnnserve_worker.caching.sharding import CachePlan, plan_cache
from gnnserve_worker.caching.weights import degree_weights, expected_weights, presampled_weights
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceGraph, DeviceRows, tensor_over
from gnnserve_worker.gpu.buffers import LaneSizes, plan_lane
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.gpu.memory import Claim, HostMemory, Ledger, lent_bytes
from gnnserve_worker.gpu.network import DeviceNetwork, DeviceTable
from gnnserve_worker.gpu.pinned import Pinned, UnpinnableError, pin
from gnnserve_worker.gpu.placement import (
    INDICES,
    INDPTR,
    Group,
    Placement,
    parts_of,
    plan_placement,
    scales_bytes,
    table_parts,
)
from gnnserve_worker.graph.table import Rows
from gnnserve_worker.repository.loaded import LoadedRevision, LoadedVariant

LANES = 3
"""Side by side: one samples while another gathers and a third computes."""
_MORE_MEMORY = "allow the pod to lock memory (RLIMIT_MEMLOCK), give it more, or use a GPU with more memory"


@dataclass(frozen=True, slots=True)
class Means:
    """What may be taken, and from where."""

    policy: CachePolicy
    limit_bytes: int | None
    """Of the GPU's memory, for all revisions together; None: all that is free."""
    ledger: Ledger
    host: HostMemory


@dataclass(frozen=True, slots=True)
class Resident:
    """Belongs to one engine. Released once, when nothing runs any more."""

    accelerator: Accelerator
    sizes: LaneSizes
    graph: DeviceGraph
    tables: dict[str, DeviceTable]
    """By variant; without those that are left to the CPU."""
    networks: dict[str, DeviceNetwork]
    caches: dict[str, FeatureCache]
    """By variant: of the rows that it reads, where they are on the host. Several may share one."""
    on_host: frozenset[str]
    """Variants whose rows are, so that what is not cached comes over the link."""
    problems: tuple[str, ...]
    """What is not as good as it could be, for people."""
    memory_bytes: Mapping[str, int]
    """Of the GPU's memory, by part; without the cache's."""
    cache_bytes: int
    """Of the computing GPU's, while there are caches."""
    budget_bytes: int
    _pinned: list[Pinned]
    _claim: Claim

    def release_caches(self) -> None:
        """Nothing may be captured that reads them."""
        for cache in _distinct(self.caches):
            cache.stop()
        self.caches.clear()

    def release(self) -> None:
        self.release_caches()
        for pinned in self._pinned:
            pinned.release()
        self._pinned.clear()
        self.tables.clear()
        self.networks.clear()
        self._claim.release()


def make_resident(loaded: LoadedRevision, accelerator: Accelerator, means: Means) -> Resident:
    """DeviceError: not even what nothing goes without fits, or the graph cannot be read by the GPU."""
    accelerator.give_back()
    free_bytes = accelerator.free_bytes()
    budget_bytes = means.ledger.available_bytes(free_bytes[0], means.limit_bytes)
    sizes = plan_lane([variant.network for variant in loaded.variants.values()], loaded.network.fanouts)
    of_weights = sum(weights_bytes(variant) for variant in loaded.variants.values())
    required_bytes = LANES * sizes.device_bytes + of_weights + scales_bytes(loaded)
    others_bytes = means.ledger.claimed_bytes
    builder = _Builder(loaded, accelerator, means)
    with ExitStack() as undo:
        undo.callback(builder.release)
        placement = builder.place(required_bytes, budget_bytes)
        if placement.on_host and others_bytes:
            builder.say(
                f"another revision had {others_bytes:,} bytes of the GPU's memory while this one was loaded, which so "
                "has less of its tables there; start the worker anew to give it all"
            )
        claim = means.ledger.claim(placement.taken_bytes)
        undo.callback(claim.release)
        resident = builder.build(placement, sizes, budget_bytes, of_weights, free_bytes[1:], claim)
        undo.pop_all()
    return resident


class _Builder:
    """Takes step after step, and can undo all of them."""

    def __init__(self, loaded: LoadedRevision, accelerator: Accelerator, means: Means) -> None:
        self._loaded = loaded
        self._accelerator = accelerator
        self._means = means
        self._rows = table_parts(loaded)
        self._arrays = {INDPTR: loaded.graph.indptr, INDICES: loaded.graph.indices} | {
            name: rows.values for name, rows in self._rows.items()
        }
        self._parts = {part.name: part for part in parts_of(loaded)}
        self._pinned: dict[str, Pinned] = {}
        self._caches: dict[str, FeatureCache] = {}
        self._problems: list[str] = []

    def place(self, required_bytes: int, budget_bytes: int) -> Placement:
        """Pins what stays in the host's memory; what cannot be pinned, the next plan puts first."""
        refusals: dict[str, str] = {}
        while True:
            placement = plan_placement(
                list(self._parts.values()),
                required_bytes=required_bytes,
                budget_bytes=budget_bytes,
                caches=self._means.policy is not CachePolicy.NONE,
                unpinnable=refusals,
            )
            if placement is None:
                others_bytes = self._means.ledger.claimed_bytes
                beside = f", beside the {others_bytes:,} of another revision" if others_bytes else ""
                anew = "start the worker anew to give it what that one has, " if others_bytes else ""
                raise DeviceError(
                    f"weights and buffers need {required_bytes:,} bytes of its memory, of which {budget_bytes:,} are "
                    f"to be had{beside}",
                    f"{anew}give it more by spec.worker.gpuMemory (--gpu-memory), or end what else uses the GPU",
                )
            left_out = [refusals[name] for name in placement.left_out]
            if any(self._parts[name].group is Group.GRAPH for name in placement.left_out):
                raise DeviceError(f"{left_out[0]}, and its memory has no room for it", _MORE_MEMORY)
            if not self._pin(placement, refusals):
                break
        for name in set(self._pinned) - set(placement.on_host):
            self._pinned.pop(name).release()
        copies = [pinned.message for pinned in self._pinned.values() if pinned.message is not None]
        self._problems = [*left_out, *copies]
        return placement

    def say(self, problem: str) -> None:
        self._problems.append(problem)

    def _pin(self, placement: Placement, refusals: dict[str, str]) -> bool:
        """Whether there was another that cannot be pinned."""
        for name in placement.on_host:
            if name not in self._pinned:
                try:
                    self._pinned[name] = pin(name, self._arrays[name], self._accelerator, self._means.host)
                except UnpinnableError as error:
                    refusals[name] = str(error)
                    return True
        return False

    def build(
        self,
        placement: Placement,
        sizes: LaneSizes,
        budget_bytes: int,
        of_weights: int,
        lenders_free_bytes: tuple[int, ...],
        claim: Claim,
    ) -> Resident:
        arrays = {name: self._tensor(name) for name in (*placement.on_device, *placement.on_host)}
        rows = {
            name: DeviceRows(arrays[name], self._scales(known)) for name, known in self._rows.items() if name in arrays
        }
        plans = self._plan_caches(placement, lenders_free_bytes)
        for name, plan in plans.items():
            self._caches[name] = self._make_cache(name, plan, rows[name])
        variants = self._loaded.variants
        served = {name: v for name, v in variants.items() if self._names_of(v) <= rows.keys()}
        if not served:
            raise DeviceError(self._problems[0], _MORE_MEMORY)
        if len(served) < len(variants):
            left = ", ".join(name for name in variants if name not in served)
            self._problems.append(f"{left} is computed on the CPU")
        names = {name: self._name_of(variant.table.rows) for name, variant in served.items()}
        parts = [self._parts[name] for name in placement.on_device]
        taken = {group: sum(part.size_bytes for part in parts if part.group is group) for group in Group}
        return Resident(
            accelerator=self._accelerator,
            sizes=sizes,
            graph=DeviceGraph(arrays[INDPTR], arrays[INDICES]),
            tables={
                name: DeviceTable(rows[names[name]], rows[self._name_of(variant.table.own)])
                for name, variant in served.items()
            },
            networks={
                name: DeviceNetwork.of(variant.network, self._accelerator.device) for name, variant in served.items()
            },
            caches={name: self._caches[table] for name, table in names.items() if table in self._caches},
            on_host=frozenset(name for name, table in names.items() if table in placement.on_host),
            problems=tuple(self._problems),
            memory_bytes={
                "graph": taken[Group.GRAPH],
                "tables": taken[Group.TABLES] + scales_bytes(self._loaded),
                "weights": of_weights,
                "buffers": LANES * sizes.device_bytes,
            },
            cache_bytes=sum(plan.memory_bytes[0] for plan in plans.values()),
            budget_bytes=budget_bytes,
            _pinned=list(self._pinned.values()),
            _claim=claim,
        )

    def release(self) -> None:
        for cache in self._caches.values():
            cache.stop()
        for pinned in self._pinned.values():
            pinned.release()

    def _tensor(self, name: str) -> Tensor:
        pinned = self._pinned.get(name)
        if pinned is not None:
            return tensor_over(pinned.array)
        return self._accelerator.upload(tensor_over(self._arrays[name]))

    def _scales(self, rows: Rows) -> Tensor | None:
        return self._accelerator.upload(tensor_over(rows.scales)) if len(rows.scales) else None

    def _name_of(self, rows: Rows) -> str:
        return next(name for name, known in self._rows.items() if known is rows)

    def _names_of(self, variant: LoadedVariant) -> set[str]:
        return {self._name_of(variant.table.rows), self._name_of(variant.table.own)}

    def _readers(self, name: str) -> list[LoadedVariant]:
        rows = self._rows[name]
        return [variant for variant in self._loaded.variants.values() if variant.table.rows is rows]

    def _plan_caches(self, placement: Placement, lenders_free_bytes: tuple[int, ...]) -> dict[str, CachePlan]:
        total = sum(placement.cache_bytes.values())
        lent = [lent_bytes(free, self._means.limit_bytes) for free in lenders_free_bytes]
        plans: dict[str, CachePlan] = {}
        for name, share in placement.cache_bytes.items():
            readers = self._readers(name)
            plan = plan_cache(
                nodes=readers[0].table.nodes,
                columns=readers[0].table.columns,
                widths=[variant.columns for variant in readers],
                item_bytes=self._arrays[name].itemsize,
                budgets_bytes=[share, *(int(size * share / total) for size in lent)],
            )
            if plan is not None:
                plans[name] = plan
        return plans

    def _make_cache(self, name: str, plan: CachePlan, rows: DeviceRows) -> FeatureCache:
        readers = self._readers(name)
        shares = [
            sum(variant.columns > block * plan.block_columns for variant in readers) / len(readers)
            for block in range(plan.blocks)
        ]
        weights = self._weights()
        policy = build_policy(
            self._means.policy, plan.items, plan.capacity,
            None if weights is None else spread_over_blocks(weights, shares),
        )  # fmt: skip
        accelerator = self._accelerator
        return FeatureCache(rows, plan, policy, [accelerator.device, *accelerator.lenders])

    def _weights(self) -> np.ndarray | None:
        """Expected reads of each node, for policies that want to know."""
        graph, fanouts = self._loaded.graph, self._loaded.network.fanouts
        match self._means.policy:
            case CachePolicy.FREQUENCY:
                return expected_weights(graph.indptr, graph.indices, fanouts)
            case CachePolicy.DEGREE:
                return degree_weights(graph.indices, graph.nodes)
            case CachePolicy.PRESAMPLED:
                return presampled_weights(graph.indptr, graph.indices, self._loaded.splits.train, fanouts, key=0)
        return None


def weights_bytes(variant: LoadedVariant) -> int:
    """As `network.py` keeps them."""
    layers = variant.network.layers
    return sum(
        product.dense.size * (2 if product.compute == "bfloat16" else 4) + product.bias.nbytes
        for layer in layers
        for product in layer.products
    ) + sum(layer.combination.bias.nbytes for layer in layers)


def _distinct(caches: Mapping[str, FeatureCache]) -> list[FeatureCache]:
    return list({id(cache): cache for cache in caches.values()}.values())
