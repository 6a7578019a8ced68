"""Arrays that a lane computes in: allocated once, for its largest batch, and cut to size for every other.

What a batch of s seeds needs follows from fan-outs and widths alone, so that it can be counted before anything is
allocated, and so that a CUDA graph finds everything where it was when it was captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from gnnserve_worker.gpu.arrays import AttentionRoom, DistinctRoom, PaddedTree, Shares, distinct_row_bytes
from gnnserve_worker.gpu.behind import row_bytes_behind
from gnnserve_worker.gpu.listed.network import listed_network, room_bytes
from gnnserve_worker.gpu.room import DeviceRoom
from gnnserve_worker.opening.loaded import LoadedVariant
from gnnserve_worker.sampling.neighbours import most_by_hop

LARGEST_BUCKET = 256
"""Seeds of a chunk at most. Four chunks are a batch of 1024, in which sampling, gathering and computing overlap; one
has 6,656 rows at fan-outs of 25 and 10, more than any GPU works on at once."""
_LANE_BYTES = 512 * 2**20
"""Largest memory of a lane; where fan-outs or rows would need more, chunks are smaller."""
BEHIND_ROWS = 1024
"""Rows behind a table's that a chunk may read: as many as a request may bring by default. The CPU computes a chunk that
reads more."""
_BEHIND_BYTES = 16 * 2**20
"""Largest room of a lane for such rows, in pinned host memory. Wide rows have room for fewer."""
_DISTINCT_BYTES = 16 * 2**20
"""Largest room of a lane for rows that a chunk reads several times. What has no room is read over the link again."""
_KEY_PLACES = 2
"""int64 values before the seeds: the key, and one that aligns the seeds to 16 bytes."""


@dataclass(frozen=True, slots=True)
class LaneSizes:
    """Largest sizes of a lane, over all variants."""

    seeds: int
    """A power of two."""
    aggregated_bytes: int
    hidden_numbers: int
    """float32, of each of the two arrays of hidden states."""
    attention_numbers: int
    """float32, for the scores and shares of a layer's attention."""
    room_bytes: int
    """Memory of listed layers, from rows of all places to scores."""
    share_numbers: int
    """float32, for what neighbours weigh in a chunk that the CPU sampled."""
    behind_bytes: int
    """Pinned host memory for rows behind a table's; 0: no variant makes any."""
    tree_bytes: int
    """Bytes of all buckets' trees, for each of the fan-outs."""
    fanouts: tuple[tuple[int, ...], ...]
    """Fan-outs that variants have, each once."""
    classes: int
    embedding_columns: int
    places: int
    """Places of the largest tree."""
    distinct_value_bytes: int
    """GPU memory for rows that a chunk reads several times, where they are gathered once."""

    @property
    def distinct_bytes(self) -> int:
        """Bytes of a `DistinctRoom`; not within `device_bytes`, since few revisions need one."""
        return DistinctRoom.bytes_for(self.places, self.distinct_value_bytes)

    @property
    def device_bytes(self) -> int:
        inbox = 8 * (_KEY_PLACES + self.seeds)
        numbers = 2 * self.hidden_numbers + self.attention_numbers + self.share_numbers
        return inbox + self.aggregated_bytes + 4 * numbers + self.room_bytes + self.tree_bytes

    @property
    def buckets(self) -> tuple[int, ...]:
        """1, 2, 4, … seeds."""
        return tuple(1 << i for i in range(self.seeds.bit_length()))


def plan_lane(variants: Iterable[LoadedVariant]) -> LaneSizes:
    """Sizes for the largest chunks that a lane may have memory for."""
    every = list(variants)
    seeds = LARGEST_BUCKET
    while seeds > 1 and _sizes(every, seeds).device_bytes > _LANE_BYTES:
        seeds //= 2
    return _sizes(every, seeds)


def bucket_of(seeds: int) -> int:
    """The smallest that holds them."""
    return 1 << (seeds - 1).bit_length()


def _sizes(variants: Sequence[LoadedVariant], seeds: int) -> LaneSizes:
    aggregated_bytes, hidden_numbers, attention_numbers, tree_bytes = 0, 1, 0, 0
    share_numbers, behind_bytes, of_listed_bytes = 0, 0, 0
    for variant in variants:
        ends = _ends(variant.fanouts)
        listed = listed_network(variant.network)
        if listed is not None:
            of_listed_bytes = max(of_listed_bytes, room_bytes(listed, variant.fanouts, seeds))
            continue
        if variant.rows is not None:
            behind_bytes = max(behind_bytes, BEHIND_ROWS * row_bytes_behind(variant.table))
            if variant.network.weighs_neighbours:
                share_numbers = max(share_numbers, seeds * (ends[-1] + ends[-2]))
        for layer, end, below in zip(variant.network.layers, reversed(ends[:-1]), reversed(ends[1:]), strict=True):
            rows = seeds * end
            if layer.aggregation.attention is not None:
                heads = layer.aggregation.attention.heads
                attention_numbers = max(attention_numbers, attention_room(rows, seeds * below, heads))
            if layer.products:
                aggregated_bytes = max(
                    aggregated_bytes, rows * layer.aggregated * np.dtype(layer.aggregated_dtype).itemsize
                )
            else:
                hidden_numbers = max(hidden_numbers, rows * layer.aggregated)
            for product in layer.products:
                hidden_numbers = max(hidden_numbers, rows * product.outputs)
    every_fanouts = tuple(dict.fromkeys(variant.fanouts for variant in variants))
    buckets = 2 * seeds - 1
    places = seeds * max(_ends(fanouts)[-1] for fanouts in every_fanouts)
    widest_bytes = max(distinct_row_bytes(variant.columns, variant.table.rows.values.itemsize) for variant in variants)
    for fanouts in every_fanouts:
        ends = _ends(fanouts)
        # Nodes of all places; counts and starts of rows.
        tree_bytes += buckets * 4 * (ends[-1] + 2 * ends[-2])
    return LaneSizes(
        seeds,
        aggregated_bytes,
        hidden_numbers,
        attention_numbers,
        of_listed_bytes,
        share_numbers,
        min(behind_bytes, _BEHIND_BYTES),
        tree_bytes,
        every_fanouts,
        places=places,
        distinct_value_bytes=min(_DISTINCT_BYTES, places * widest_bytes),
        classes=max(variant.network.classes for variant in variants),
        embedding_columns=max(variant.network.hidden for variant in variants),
    )


def attention_room(rows: int, places: int, heads: int) -> int:
    """Numbers of an `AttentionRoom`."""
    return heads * (3 * places + rows)


def _ends(fanouts: tuple[int, ...]) -> list[int]:
    """Places within d hops of one seed, for d = 0 … layers."""
    return list(accumulate(most_by_hop(fanouts)))


class DeviceActivations:
    """Buffers that batches of a lane are computed in, as `models.network.Activations`. Equal requests in equal order
    get equal addresses, from `begin` on."""

    def __init__(self, sizes: LaneSizes, device: torch.device) -> None:
        self._aggregated = torch.empty(sizes.aggregated_bytes, dtype=torch.uint8, device=device)
        self._hidden = [torch.empty(sizes.hidden_numbers, dtype=torch.float32, device=device) for _ in range(2)]
        self._attention = torch.empty(sizes.attention_numbers, dtype=torch.float32, device=device)
        self._shares = torch.empty(sizes.share_numbers, dtype=torch.float32, device=device)
        self.room = DeviceRoom(sizes.room_bytes, device)
        """Memory that networks of listed layers are computed in."""
        self._turn = 0

    def begin(self) -> None:
        self._turn = 0
        self.room.begin()

    def aggregated(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """[rows, columns]"""
        return self._aggregated[: rows * columns * dtype.itemsize].view(dtype).view(rows, columns)

    def attention(self, rows: int, places: int, heads: int) -> AttentionRoom:
        """Attention's buffers of one layer: those of the next are in the same place."""
        scores, shares = self._attention.split([2 * places * heads, len(self._attention) - 2 * places * heads])
        return AttentionRoom(scores.view(places, -1), Shares.over(shares, rows, places, heads))

    def shares(self, rows: int, places: int) -> Shares:
        """What neighbours weigh, for all layers."""
        return Shares.over(self._shares, rows, places, heads=1)

    def hidden(self, rows: int, columns: int) -> Tensor:
        """float32 [rows, columns]. What was given out the time before stays as it is."""
        self._turn = (self._turn + 1) % len(self._hidden)
        return self._hidden[self._turn][: rows * columns].view(rows, columns)


def trees_of(sizes: LaneSizes, fanouts: tuple[int, ...], device: torch.device) -> dict[int, PaddedTree]:
    """Trees by bucket."""
    return {bucket: PaddedTree.allocate(bucket, fanouts, device) for bucket in sizes.buckets}
