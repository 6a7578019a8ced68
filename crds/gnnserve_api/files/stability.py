"""How far a ranking of feature columns depends on the seed of the network that it was read from.

Dynamic GNN inference as-a-service, section 3.2, ranks once. Two masters that differ in their seed alone order the
columns differently; where the order is mostly chance, so is the choice of columns that a pruned variant reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import mean
from typing import Annotated

import msgspec
from msgspec import Meta

from gnnserve_api.files.profile import Count, Positive, Share


class TopStability(msgspec.Struct, frozen=True, rename="camel"):
    """The columns that one variant reads, compared over the seeds."""

    columns: Positive
    """How many the variant reads."""
    in_common: Share
    """Share of them that two seeds agree on, mean over all pairs."""
    least_in_common: Share
    """Share in common of the pair that agrees least."""
    jaccard: Share
    """Columns that both have over columns that either has, mean over all pairs."""
    by_chance: Annotated[float, Meta(ge=0, lt=1)]
    """Share that two random choices would have in common: columns over all features."""
    in_every: Count
    """Columns that every seed chose."""


class RankStability(msgspec.Struct, frozen=True, rename="camel"):
    seeds: tuple[int, ...]
    """Seeds of the other masters; the served one is not among them."""
    features: Positive
    rank_correlation: Annotated[float, Meta(ge=-1, le=1)]
    """Spearman's, of the whole order, mean over all pairs: 1 is the same order, 0 is none in common."""
    top: tuple[TopStability, ...]
    """Stability of the first columns, ascending in their number."""


def rank_stability(
    served: Sequence[int], others: Sequence[tuple[int, Sequence[int]]], widths: Sequence[int]
) -> RankStability | None:
    """`served`, and each of the `others` beside its seed: column ids, most important first. `widths`: how many columns
    the variants read; those that read all of them are left out. None where there are no others."""
    if not others:
        return None
    orders = [list(served), *(list(columns) for _, columns in others)]
    features = len(served)
    return RankStability(
        seeds=tuple(seed for seed, _ in others),
        features=features,
        rank_correlation=mean(rank_correlation(one, other) for one, other in combinations(orders, 2)),
        top=tuple(_compare(orders, width) for width in sorted(set(widths)) if 0 < width < features),
    )


def rank_correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Spearman's ρ of two orders of the same things: 1 − 6 Σ d² / (n (n² − 1)), where d is how far each has moved."""
    count = len(one)
    if count < 2:
        return 1.0
    places = {column: place for place, column in enumerate(other)}
    moved = sum((place - places[column]) ** 2 for place, column in enumerate(one))
    return 1 - 6 * moved / (count * (count * count - 1))


def _compare(orders: Sequence[Sequence[int]], width: int) -> TopStability:
    tops = [frozenset(order[:width]) for order in orders]
    common = [len(one & other) for one, other in combinations(tops, 2)]
    return TopStability(
        columns=width,
        in_common=mean(common) / width,
        least_in_common=min(common) / width,
        jaccard=mean(both / (2 * width - both) for both in common),
        by_chance=width / len(orders[0]),
        in_every=len(frozenset.intersection(*tops)),
    )
