"""What a request counts as for the queue and for predicted times: its load, in seeds.

A request about the stored graph counts as its seeds. One with an overlay counts as more: each batch that it takes part
in arranges its nodes and edges, and makes rows of those new features that its seeds draw. So the seeds of queues,
groups and batches are loads wherever a time or a limit is derived from them. How heavy overlays are kept from
starving others: `decision.py` and `admission.py`.

How many rows a request will draw is not known beforehand, but how many it may draw at most, and the share of that which
overlays took before. What a batch has counted as is known afterwards, by the time that its overlays took: costs are
corrected by what the profile says of that time, metrics count it as stored seeds that take as long.
"""

from __future__ import annotations

from enum import StrEnum

from gnnserve_api.families import Capabilities

# Measured with projected variants, whose rows are dearest to make: GraphSAGE, 256 hidden columns, fan-outs 25 and 10,
# float32, processor time of two threads. In full batches a seed took 35 to 43 µs; a drawn row with 16, 128 and 602
# features 0.13, 0.16 and 0.5 to 0.6 seeds, of which the first is uncertain. A node and an entry that are not drawn took
# 17 ns and 1 to 2.6 ns: 1,024 nodes with 16,384 entries 2 to 4 seeds, whatever the variant. For pruned variants a drawn
# row takes 0.01 to 0.1 seeds, less than it counts.
SEEDS_PER_NODE = 1 / 1024
"""Load of an overlay node."""
SEEDS_PER_EDGE = 1 / 8192
"""Load of an entry that a neighbour list gains."""
SEEDS_PER_ROW = 1 / 16
"""Load of new features that are drawn, whatever their size."""
SEEDS_PER_KIB = 1 / 5
"""Load of a KiB of them as float32: normalised, then put in the order of columns or multiplied by the first layer."""


class BatchKind(StrEnum):
    """What requests are about, by which a variant costs one thing or another. A batch may hold both kinds: the part of
    its load that is of kind OVERLAY is given with the load wherever a time is asked for."""

    STORED = "stored"
    """Stored nodes only, as the graph is stored."""
    OVERLAY = "overlay"
    """With an overlay: new nodes, other features, or more edges."""


def kind_of(needed: Capabilities) -> BatchKind:
    """The kind of a request that needs this."""
    return BatchKind.OVERLAY if needed.overlay else BatchKind.STORED


def overlay_load(nodes: int, edges: int, rows: int, feature_bytes: int, most_drawn: float, share: float = 1.0) -> int:
    """Load of an overlay, rounded to seeds. `edges`: entries that neighbour lists gain; `rows`: nodes with features of
    their own, of `feature_bytes` together; `most_drawn`: rows that the request's seeds may draw; `share`: the share of
    these that is expected."""
    fixed, of_rows = overlay_parts(nodes, edges, rows, feature_bytes, most_drawn)
    return round_load(fixed + share * of_rows)


def overlay_parts(nodes: int, edges: int, rows: int, feature_bytes: int, most_drawn: float) -> tuple[float, float]:
    """What an overlay's nodes and edges count, and what its new features do if as many are drawn as may be; as
    `overlay_load` takes them."""
    fixed = nodes * SEEDS_PER_NODE + edges * SEEDS_PER_EDGE
    if not rows:
        return fixed, 0.0
    drawn = min(1.0, most_drawn / rows)
    return fixed, drawn * (rows * SEEDS_PER_ROW + feature_bytes / 1024 * SEEDS_PER_KIB)


def round_load(load: float) -> int:
    return int(load + 0.5)


def load_of(seeds: int, overlay_load: int, max_seeds: int) -> int:
    """Load of a request with this many seeds left. A request beyond `max_seeds` takes several batches, and its overlay
    counts in each."""
    return seeds + overlay_load * -(-seeds // max_seeds)


def overlay_part(load: int, seeds: int, changed_seeds: int) -> int:
    """The part of kind OVERLAY of a request's load: what its overlay adds, and the seeds that are nodes of it."""
    return load - seeds + min(seeds, changed_seeds)
