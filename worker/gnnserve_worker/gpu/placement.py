"""Placement: what lies in the GPU's memory, what stays in the host's, and how much becomes cache. Pure arithmetic.

What a byte of memory is worth is how many bytes a request then need not fetch over the link: by that, arrays go into
the GPU's memory, whole, as long as there is room. What is left serves as a cache of the tables that stayed behind; but
for what a revision like this one needs to answer over the link, since the next one is loaded beside it. What the
revision that this one replaces still has counts for that: by then it is free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.neighbours import most_by_hop
from gnnserve_worker.tables.table import Rows

LINK_BYTES = 32
"""The least that is read over the link: a sector."""
_LEAST_CACHE_BYTES = 2**20
"""Below it, a cache costs more than it saves."""


class PlacementGroup(StrEnum):
    GRAPH = "graph"
    TABLES = "tables"


@dataclass(frozen=True, slots=True)
class PlacedArray:
    """An array that kernels read, on the device or over the link."""

    name: str
    group: PlacementGroup
    size_bytes: int
    read_bytes_per_seed: float
    """Bytes that a seed reads over the link where it is not on the device; mean over the variants."""
    cacheable: bool = False

    @property
    def worth(self) -> float:
        """Link traffic saved by a byte of memory for this part."""
        return math.inf if not self.size_bytes else self.read_bytes_per_seed / self.size_bytes


@dataclass(frozen=True, slots=True)
class Placement:
    on_device: tuple[str, ...]
    on_host: tuple[str, ...]
    left_out: tuple[str, ...]
    """Parts that can be neither: too large for the device, and host memory that it cannot read."""
    cache_bytes: Mapping[str, int]
    """Cache memory on the computing device, by part, only for parts on the host. It leaves room for a live switch."""
    taken_bytes: int
    """All memory that is taken, what is required and caches included."""


def plan_placement(
    parts: Sequence[PlacedArray],
    *,
    required_bytes: int,
    budget_bytes: int,
    caches: bool,
    replaced_bytes: int = 0,
    unpinnable: Collection[str] = (),
) -> Placement | None:
    """`required_bytes`: weights, buffers and the like, which nothing goes without; None where not even they fit.

    `replaced_bytes`: beside the budget, free for the next revision. `unpinnable`: parts that the device cannot read
    from the host.
    """
    left = budget_bytes - required_bytes
    if left < 0:
        return None
    on_device: list[str] = []
    for part in sorted(parts, key=lambda part: (part.name not in unpinnable, -part.worth)):
        if part.size_bytes <= left:
            on_device.append(part.name)
            left -= part.size_bytes
    others = [part for part in parts if part.name not in on_device]
    on_host = [part for part in others if part.name not in unpinnable]
    cached = [part for part in on_host if part.cacheable and part.read_bytes_per_seed] if caches else []
    graph_bytes = sum(
        part.size_bytes for part in parts if part.group is PlacementGroup.GRAPH and part.name in on_device
    )
    for_next = max(0, required_bytes + graph_bytes - replaced_bytes)
    shares = _share_out(max(0, left - for_next), cached)
    return Placement(
        tuple(on_device),
        tuple(part.name for part in on_host),
        tuple(part.name for part in others if part.name in unpinnable),
        shares,
        budget_bytes - left + sum(shares.values()),
    )


def _share_out(left: int, cached: Sequence[PlacedArray]) -> dict[str, int]:
    """Divide memory in proportion to how much each part is read."""
    total = sum(part.read_bytes_per_seed for part in cached)
    shares = {part.name: int(left * part.read_bytes_per_seed / total) for part in cached}
    return {name: size for name, size in shares.items() if size >= _LEAST_CACHE_BYTES}


INDPTR = "graph: where neighbour lists begin"
INDICES = "graph: neighbour lists"


def table_parts(loaded: LoadedRevision) -> dict[str, Rows]:
    """The matrices of its tables, by the names that they have here; one that several variants share once."""
    found: dict[str, Rows] = {}
    for variant in loaded.variants.values():
        table = variant.table
        for role, rows in (("rows", table.rows), ("own rows", table.own)):
            if all(rows is not known for known in found.values()):
                name = f"{table.kind}-{table.storage} {role}"
                found[f"{name} of {variant.name}" if name in found else name] = rows
    return found


def parts_of(loaded: LoadedRevision) -> list[PlacedArray]:
    """Parts of a revision, without int8's scales, which are small, read with every row, and always on the device."""
    variants = loaded.variants.values()
    per_seed = [_reads_per_seed(variant.fanouts) for variant in variants]
    rows_per_seed = sum(rows for rows, _ in per_seed) / len(per_seed)
    neighbours_per_seed = sum(neighbours for _, neighbours in per_seed) / len(per_seed)
    graph = loaded.graph
    parts = [
        PlacedArray(INDPTR, PlacementGroup.GRAPH, graph.indptr.nbytes, rows_per_seed * LINK_BYTES),
        PlacedArray(INDICES, PlacementGroup.GRAPH, graph.indices.nbytes, neighbours_per_seed * LINK_BYTES),
    ]
    for name, rows in table_parts(loaded).items():
        read = [_row_reads(variant, rows) for variant in variants]
        # Own rows of projected tables are few beside the neighbours', and have no cache.
        is_of_neighbours = any(variant.table.rows is rows for variant in variants)
        parts.append(
            PlacedArray(
                name, PlacementGroup.TABLES, rows.values.nbytes, sum(read) / len(read), cacheable=is_of_neighbours
            )
        )
    return parts


def scales_bytes(loaded: LoadedRevision) -> int:
    return sum(rows.scales.nbytes for rows in table_parts(loaded).values())


def roots_bytes(loaded: LoadedRevision) -> int:
    """Bytes of the roots for weighted sums over neighbours: always on the device, since they are read with every
    row."""
    roots = loaded.reading.neighbour_roots
    return 0 if roots is None else roots.nbytes


def _reads_per_seed(fanouts: Sequence[int]) -> tuple[int, int]:
    """Rows that draw neighbours, and neighbours that are drawn, at most."""
    by_hop = most_by_hop(fanouts)
    return sum(by_hop[:-1]), sum(by_hop[1:])


def _row_reads(variant: LoadedVariant, rows: Rows) -> float:
    table = variant.table
    rows_per_seed, neighbours_per_seed = _reads_per_seed(variant.fanouts)
    times = (neighbours_per_seed if table.rows is rows else 0) + (rows_per_seed if table.own is rows else 0)
    row_bytes = variant.columns * rows.values.itemsize
    return times * max(LINK_BYTES, row_bytes)
