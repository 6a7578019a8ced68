"""Decides which measured variants are published.

Variants that the manifest asks for always are. A variant that a family adds unasked is published only if no other
variant that can answer all that it can is at least as accurate and as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.domination import beats
from gnnserve_api.families import point_of
from gnnserve_api.profile import VariantProfile


def worth_keeping(variants: Sequence[VariantProfile]) -> tuple[VariantProfile, ...]:
    """The variants to publish, in the given order. All must have been measured at the same batch sizes. Stages of
    cascades stay, since these answer by them."""
    stages = {stage for variant in variants if (found := variant.cascade) for stage in (found.first, found.then)}
    return tuple(
        variant
        for variant in variants
        if point_of(variant).is_asked_for
        or variant.name in stages
        or not any(dominates(other, variant) for other in variants)
    )


def dominates(one: VariantProfile, other: VariantProfile) -> bool:
    """Whether `one` can answer all that the other can, is at least as accurate, and as fast at every batch size, and
    strictly better in one of these."""
    can_stand_in = point_of(one).capabilities.cover(point_of(other).capabilities)
    return can_stand_in and beats(one, other) and not beats(other, one)
