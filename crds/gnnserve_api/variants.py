"""Names and widths of pruned variants: the arithmetic that a manifest's factors stand for.

Generation, profile and error messages must agree on it. Whether a factor fits a graph can only be said by who
knows the graph, so that check is here and not among the manifest's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.errors import InputError


def variant_name(factor: int) -> str:
    return f"x{factor}"


def columns_of(features: int, factor: int) -> int:
    """Columns that the variant of this factor reads: ⌊features/factor⌋ (paper A, section 4.1)."""
    return features // factor


def check_factors(factors: Sequence[int], features: int) -> None:
    """Refuse a factor that would leave a variant without a single column."""
    for index, factor in enumerate(factors):
        if columns_of(features, factor) < 1:
            raise InputError(
                f"spec.variants.pruning.factors[{index}]",
                f"{factor} is larger than the graph's {features} features, so no column would be left",
                f"use factors from 1 to {features}",
            )
