"""The caches of a revision's tables that stayed in the host's memory: how large each is, and which rows it keeps first.

Several variants may read one table, and share its cache. Where tables lie and how much memory they leave for caches is
decided in `placement.py`; how a cache reads and writes its rows is `cache.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.policy import spread_over_blocks
from gnnserve_worker.caching.sharding import CachePlan, plan_cache
from gnnserve_worker.caching.weights import degree_weights, expected_weights, presampled_weights
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceRows
from gnnserve_worker.gpu.cache import FeatureCache
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.tables.table import Rows


def readers_of(loaded: LoadedRevision, rows: Rows) -> list[LoadedVariant]:
    """The variants that gather neighbours from these rows."""
    return [variant for variant in loaded.variants.values() if variant.table.rows is rows]


def plan_caches(
    loaded: LoadedRevision, tables: Mapping[str, Rows], budgets_bytes: Mapping[str, int], lent_bytes: Sequence[int]
) -> dict[str, CachePlan]:
    """A cache for each table of `budgets_bytes` (bytes on the computing GPU, by table) that has room for a slot.

    `lent_bytes`: bytes available on each other GPU; tables share them in proportion to their budgets.
    """
    total = sum(budgets_bytes.values())
    plans: dict[str, CachePlan] = {}
    for name, budget in budgets_bytes.items():
        readers = readers_of(loaded, tables[name])
        plan = plan_cache(
            nodes=readers[0].table.nodes,
            columns=readers[0].table.columns,
            widths=[variant.columns for variant in readers],
            item_bytes=tables[name].values.itemsize,
            budgets_bytes=[budget, *(int(size * budget / total) for size in lent_bytes)],
        )
        if plan is not None:
            plans[name] = plan
    return plans


def make_cache(
    plan: CachePlan,
    rows: DeviceRows,
    loaded: LoadedRevision,
    readers: Sequence[LoadedVariant],
    policy_name: CachePolicy,
    accelerator: Accelerator,
) -> FeatureCache:
    """The cache of `rows`, allocated as `plan` says; `readers` are the variants that read through it."""
    shares = [
        sum(variant.columns > block * plan.block_columns for variant in readers) / len(readers)
        for block in range(plan.blocks)
    ]
    weights = _expected_reads(policy_name, loaded, readers)
    if weights is not None:
        # Nodes that are yet to come.
        weights = np.pad(weights, (0, plan.nodes - len(weights)))
    policy = build_policy(
        policy_name, plan.items, plan.capacity, None if weights is None else spread_over_blocks(weights, shares)
    )
    return FeatureCache(rows, plan, policy, [accelerator.device, *accelerator.lenders])


def _expected_reads(
    policy_name: CachePolicy, loaded: LoadedRevision, readers: Sequence[LoadedVariant]
) -> np.ndarray | None:
    """Expected reads of each node, mean over `readers`; None for policies that begin without."""
    readers_by_fanouts = Counter(variant.fanouts for variant in readers)
    match policy_name:
        case CachePolicy.FREQUENCY:
            graph = _lists_of(loaded)
            found = [expected_weights(graph.indptr, graph.indices, fanouts) for fanouts in readers_by_fanouts]
        case CachePolicy.DEGREE:
            graph = _lists_of(loaded)
            return degree_weights(graph.indices, graph.nodes)
        case CachePolicy.PRESAMPLED:
            graph, seeds = _lists_of(loaded), loaded.labels.splits.train
            found = [
                presampled_weights(graph.indptr, graph.indices, seeds, fanouts, key=0) for fanouts in readers_by_fanouts
            ]
        case CachePolicy.FIFO | CachePolicy.LFU | CachePolicy.NONE:
            return None
    return np.average(found, axis=0, weights=list(readers_by_fanouts.values())).astype(np.float32)


def _lists_of(loaded: LoadedRevision) -> Graph:
    """The graph with one list behind the other; of one that changes, a copy as it is now."""
    if loaded.changes is None:
        return loaded.graph
    living = loaded.changes.graph
    return living.lists.of_these(np.arange(living.ids.count))
