"""Whether projected variants leave the pruned ones nothing to answer: expected from widths, then found in the profile.

A pruned variant pays where its rows are narrower than those of the first layer's output, which a projected variant
reads without losing accuracy. On graphs with many more feature columns than hidden units few factors are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gnnserve_api.families import FamilyName, family_of
from gnnserve_api.profile import Profile, VariantProfile
from gnnserve_api.spec.pruning import FactorChoice
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Projection
from gnnserve_api.variants import columns_of, variant_name

_PROJECTED = (FamilyName.PROJECTED, FamilyName.PROPAGATED_PROJECTED)
_NEARLY_ALL = 0.5
"""Share of the pruned variants from which on it is worth saying."""


def says_expected(spec: GNNServiceSpec, features: int, classes: int) -> str | None:
    """Advice before anything is trained; None where most pruned variants read less than a projected one."""
    decides_itself = spec.variants.is_searched or spec.variants.pruning.choice is FactorChoice.AUTO
    if decides_itself or spec.variants.projection is not Projection.AUTO:
        return None
    width = spec.model.network(classes).projected_columns
    pruned = [factor for factor in sorted(spec.variants.pruning.factors) if factor > 1]
    wider = [factor for factor in pruned if columns_of(features, factor) >= width]
    if not pruned or len(wider) < _NEARLY_ALL * len(pruned):
        return None
    return (
        f"projected will read {width:,} numbers a row, and {_names([variant_name(factor) for factor in wider])} "
        f"{_names([f'{columns_of(features, factor):,}' for factor in wider])}: "
        f"{'it is' if len(wider) == 1 else 'they are'} likely to be slower and less accurate. "
        f"{_cure('train', set(pruned) - set(wider), features, width)}"
    )


def says_dominated(profile: Profile, features: int) -> str | None:
    """Advice after the profile was measured; None where most pruned variants are the fastest for some tolerance, or the
    manifest does not list them."""
    if profile.search is not None:
        return None
    projected = [variant for variant in profile.variants if family_of(variant).name in _PROJECTED]
    pruned = [variant for variant in profile.variants if family_of(variant).spans_widths and variant.columns < features]
    beaten = {variant.name: next((other for other in projected if beats(other, variant)), None) for variant in pruned}
    dominated = [variant for variant in pruned if beaten[variant.name] is not None]
    if not dominated or len(dominated) < _NEARLY_ALL * len(pruned):
        return None
    by = next(other for other in beaten.values() if other is not None)
    wider = [variant.name for variant in dominated if variant.columns >= by.columns]
    why = (
        f"it reads {by.columns:,} numbers a row, the first layer's output, where {_names(wider)} "
        f"{_reads(wider)} {_names([f'{v.columns:,}' for v in dominated if v.name in wider])}"
        if wider
        else "the first layer's product is made ahead of time, which is most of the work here"
    )
    names = _names([variant.name for variant in dominated])
    kept = {variant.factor for variant in pruned if beaten[variant.name] is None}
    return (
        f"{by.name} is as accurate as {names} and faster at every measured size, so pruning gains nothing there on "
        f"this graph: {why}. {_cure('keep', kept, features, by.columns)}"
    )


def beats(one: VariantProfile, other: VariantProfile) -> bool:
    """Whether `one` is at least as accurate, and at least as fast at every measured size."""
    return one.validation_accuracy >= other.validation_accuracy and all(
        mine.p50_ms <= theirs.p50_ms for mine, theirs in zip(one.latency, other.latency, strict=True)
    )


def _cure(verb: str, useful: Collection[int], features: int, width: int) -> str:
    most = features // width
    narrower = f", or factors above {most:,}, which read less" if not useful and 1 <= most < features else ""
    return f"To {verb} no more than is useful, use spec.variants.pruning.factors: {sorted({1, *useful})}{narrower}."


def _reads(names: Sequence[str]) -> str:
    return "reads" if len(names) == 1 else "read"


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
