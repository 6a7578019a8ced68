"""Which of the measured variants are worth publishing.

What the manifest asks for stays. A variant of a family that is added unasked stays only where nothing else is as
accurate and as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.domination import beats
from gnnserve_api.families import family_of
from gnnserve_api.profile import VariantProfile


def worth_keeping(variants: Sequence[VariantProfile]) -> tuple[VariantProfile, ...]:
    """In the same order; measured at the same batch sizes."""
    return tuple(
        variant
        for variant in variants
        if family_of(variant).is_asked_for or not any(dominates(other, variant) for other in variants)
    )


def dominates(one: VariantProfile, other: VariantProfile) -> bool:
    """Whether `one` is at least as accurate and at least as fast at every size, and better in something."""
    return beats(one, other) and not beats(other, one)
