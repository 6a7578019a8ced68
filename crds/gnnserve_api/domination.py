"""Whether projected variants leave the pruned ones nothing to answer: expected from widths, then found in the profile.

A pruned variant pays where its rows are narrower than those of the first layer's output, which a projected variant
reads without losing accuracy. On graphs with many more feature columns than hidden units few factors are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gnnserve_api.families import point_of
from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.spec.pruning import FactorChoice
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import ProjectionMode
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_api.wording import in_words

_CHOICE = "spec.variants.pruning.choice: Auto"
"""What leaves such factors out before they are trained."""
_NEARLY_ALL = 0.5
"""Share of the pruned variants from which on it is worth saying."""


def says_expected(spec: GNNServiceSpec, features: int, classes: int) -> str | None:
    """Advice before anything is trained; None where most pruned variants read less than a projected one, or generation
    chooses among them."""
    decides_itself = spec.variants.is_searched or spec.variants.pruning.choice is FactorChoice.AUTO
    if decides_itself or spec.variants.projection is not ProjectionMode.AUTO:
        return None
    width = spec.model.network(classes).projected_columns
    pruned = [factor for factor in sorted(spec.variants.pruning.factors) if factor > 1]
    wider = [factor for factor in pruned if columns_of(features, factor) >= width]
    if not pruned or len(wider) < _NEARLY_ALL * len(pruned):
        return None
    return (
        f"projected will read {width:,} numbers a row, and {in_words([variant_name(factor) for factor in wider])} "
        f"{in_words([f'{columns_of(features, factor):,}' for factor in wider])}: "
        f"{'it is' if len(wider) == 1 else 'they are'} likely to be slower and less accurate. "
        f"To train no more than is useful, use {_CHOICE}{_narrower(set(pruned) - set(wider), features, width)}."
    )


def says_dominated(profile: Profile, features: int, *, is_chosen: bool = False) -> str | None:
    """Advice after the profile was measured; None where most pruned variants are the fastest for some tolerance, or the
    manifest does not list them. `is_chosen`: generation chose among the factors, and kept these."""
    if profile.search is not None:
        return None
    projected = [variant for variant in profile.variants if point_of(variant).stands_for_all_columns]
    pruned = [variant for variant in profile.variants if point_of(variant).spans_widths and variant.columns < features]
    beaten = {variant.name: next((other for other in projected if beats(other, variant)), None) for variant in pruned}
    dominated = [variant for variant in pruned if beaten[variant.name] is not None]
    if not dominated or len(dominated) < _NEARLY_ALL * len(pruned):
        return None
    by = next(other for other in beaten.values() if other is not None)
    wider = [variant.name for variant in dominated if variant.columns >= by.columns]
    why = (
        f"it reads {by.columns:,} numbers a row, the first layer's output, where {in_words(wider)} "
        f"{_reads(wider)} {in_words([f'{v.columns:,}' for v in dominated if v.name in wider])}"
        if wider
        else "the first layer's product is made ahead of time, which is most of the work here"
    )
    names = in_words([variant.name for variant in dominated])
    useful = {variant.factor for variant in pruned if beaten[variant.name] is None}
    cure = f"spec.variants.pruning.factors: {sorted({1, *useful})}" if is_chosen else _CHOICE
    return (
        f"{by.name} is at least as accurate as {names} and faster at every measured size, so pruning gains nothing "
        f"there on this graph: {why}. To keep no more than is "
        f"useful, use {cure}{_narrower(useful, features, by.columns)}."
    )


def beats(one: VariantProfile, other: VariantProfile) -> bool:
    """Whether `one` is at least as accurate, and at least as fast at every measured size."""
    return one.validation_accuracy >= other.validation_accuracy and all(
        mine.p50_ms <= theirs.p50_ms for mine, theirs in zip(one.latency, other.latency, strict=True)
    )


def _narrower(useful: Collection[int], features: int, width: int) -> str:
    """The other cure, where there is one: factors whose rows are narrower. `useful`: those that are worth having."""
    most = features // width
    return f", or factors above {most:,}, which read less" if not useful and 1 <= most < features else ""


def _reads(names: Sequence[str]) -> str:
    return "reads" if len(names) == 1 else "read"
