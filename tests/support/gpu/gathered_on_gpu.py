"""Tables, samples and caches for kernels that gather on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.support.graphs.graphs import dense_features, table_of
from torch import Tensor

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.arrays import CacheView, DeviceRows
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own, Rows, Table

Put = Callable[..., Tensor]
NODES, WIDEST = 80, 300
KEY = 3
NO_BIAS = np.zeros(0, dtype=np.float32)
MEAN = Aggregation(Aggregator.MEAN, Own.BESIDE, own_factor=1.0, bias=NO_BIAS, relu=False)
SUM = Aggregation(Aggregator.SUM, Own.ADDED, own_factor=1.25, bias=NO_BIAS, relu=False)
STORAGES = pytest.mark.parametrize("storage", list(Storage), ids=str)


def put_on_device(rows: Rows, put: Put, device: torch.device) -> DeviceRows:
    scales = torch.tensor(rows.scales, device=device) if len(rows.scales) else None
    return DeviceRows(put(rows.values, rows.format), scales)


def rows_of(table: Table, put: Put, device: torch.device) -> tuple[DeviceRows, DeviceRows]:
    rows = put_on_device(table.rows, put, device)
    return rows, rows if table.own is table.rows else put_on_device(table.own, put, device)


@dataclass(frozen=True)
class Made:
    """A cache with made-up contents, and a table that holds nonsense wherever the cache must be read instead."""

    view: CacheView
    table: Table
    poisoned: Table
    pools: list[Tensor]
    cached: np.ndarray
    """bool [blocks, nodes]."""


def made_cache(
    storage: Storage, block_columns: int, share: float, devices: int, device: torch.device, seed: int = 0
) -> Made:
    """`share` of all blocks are there; a tenth of them are masked, and their slots hold nonsense."""
    draw = np.random.default_rng(seed)
    table = table_of(dense_features(NODES, WIDEST, 2), storage)
    values, stride = table.rows.values, table.rows.values.shape[1]
    blocks = -(-WIDEST // block_columns)
    chosen = draw.random((blocks, NODES)) < share
    cached = chosen & (draw.random((blocks, NODES)) < 0.9)
    nonsense = np.array(99).astype(values.dtype)
    directory = np.full((blocks, NODES), -1, dtype=np.int32)
    slots_per_device = blocks * NODES
    pools = [np.full((slots_per_device, block_columns), nonsense) for _ in range(devices)]
    free = [iter(draw.permutation(slots_per_device).tolist()) for _ in range(devices)]
    poisoned = values.copy()
    padded = np.pad(values, ((0, 0), (0, max(0, blocks * block_columns - stride))))
    for block, node in np.argwhere(chosen):
        row = next(free[node % devices])
        if not cached[block, node]:
            continue
        columns = slice(block * block_columns, (block + 1) * block_columns)
        pools[node % devices][row] = padded[node, columns]
        poisoned[node, columns] = nonsense
        directory[block, node] = node % devices * slots_per_device + row
    # Where no memory aligns by itself as a GPU's does.
    room = [torch.zeros(pool.nbytes + 128, dtype=torch.uint8, device=device) for pool in pools]
    on_device = []
    for bytes_of, pool in zip(room, pools, strict=True):
        start = -bytes_of.data_ptr() % 128
        place = bytes_of[start : start + pool.nbytes]
        place.copy_(torch.tensor(pool.view(np.uint8).reshape(-1)))
        on_device.append(place)
    view = CacheView(
        directory=torch.tensor(directory, device=device),
        pools=torch.tensor([place.data_ptr() for place in on_device], dtype=torch.int64, device=device),
        slots_per_device=slots_per_device,
        block_columns=block_columns,
        accesses=torch.zeros((blocks, NODES), dtype=torch.int32, device=device),
        totals=torch.zeros(2, dtype=torch.int64, device=device),
    )
    hollow = Rows(table.format, poisoned, table.rows.scales)
    return Made(view, table, Table("features", WIDEST, hollow, hollow), on_device, cached)
