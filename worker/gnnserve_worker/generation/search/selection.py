"""Which of the measured variants a search keeps, and in which words it says so. Pure.

What a set of variants is worth is the area under its frontier of accuracy against the logarithm of latency, summed over
the measured sizes (the hypervolume of each size) and over what may be needed of them, for which only the variants that
are capable of it count: otherwise a lookup, which answers requests about the stored graph alone, would leave nothing to
all others. Areas begin at the slowest of all variants and at the accuracy of always giving the most frequent answer.
Kept are, in this order: the most accurate of the variants that can answer what any of them can; of those that follow
changes of the graph; of all; then, one by one, the variant that adds most, as far as the budget goes and as long as it
adds something.

To follow changes is needed of a variant by the service and not by a request (`spec.updates`), and counts without it,
too: a revision does not depend on `updates`, so that who gives it later has nothing trained again, and finds the most
accurate variants that follow, and the fastest of them.

An accuracy counts as higher only where the validation nodes tell so, compared one by one, as links are: variants that
they do not tell from a more accurate one count as accurate as it, so that the faster of them are kept. Otherwise one
node of thousands would decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import msgspec
import numpy as np

from gnnserve_api.domination import beats
from gnnserve_api.families import CHANGED_GRAPH, STORED_GRAPH, Capabilities, OfFamily, point_of
from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.files.search import SearchedVariant
from gnnserve_api.intervals import are_told_apart, is_mean_told

_LEAST_POINTS = 0.005
"""Least difference of accuracies that is said: two decimals show no less."""
LEAST_GAIN = 1e-3
"""Share of the area that a variant must add: what is less comes and goes between two measurements."""


RightLabels = Mapping[str, np.ndarray]
"""By variant: how right each item is that was judged, as `Judgement.right`."""
NOT_COMPARED: RightLabels = MappingProxyType({})
"""No variants to compare node by node: their accuracies count as they were measured."""


def select(
    variants: Sequence[VariantProfile], least_accuracy: float, most: int, right_labels: RightLabels = NOT_COMPARED
) -> tuple[SearchedVariant, ...]:
    """A verdict on each, those that are kept first, and otherwise in the given order. All were measured at the same
    sizes. `least_accuracy`: of always giving the most frequent answer. `most`: how many may be kept. `right_labels`:
    those of variants that are compared node by node."""
    measured = {variant.name: variant.validation_accuracy for variant in variants}
    variants = level(variants, right_labels)
    areas = Areas.over(variants, least_accuracy)
    required = dict(_required(variants)[:most])
    names = _chosen(variants, [*required], areas, most)
    kept = [variant for variant in variants if variant.name in names]
    stay = [
        SearchedVariant(name=v.name, is_kept=True, why=required.get(v.name) or _says_added(v, kept, areas))
        for v in kept
    ]
    return (*stay, *(_dropped(v, kept, areas, most, measured) for v in variants if v.name not in names))


def level(variants: Sequence[VariantProfile], right_labels: RightLabels) -> list[VariantProfile]:
    """The variants in their order, each with the accuracy of the most accurate one that the validation nodes do not
    tell it from."""
    counted: dict[str, float] = {}
    by_accuracy = sorted(variants, key=lambda variant: -variant.validation_accuracy)
    for leader in by_accuracy:
        if leader.name in counted:
            continue
        for variant in by_accuracy:
            if variant.name not in counted and (variant is leader or _is_tied(leader, variant, right_labels)):
                counted[variant.name] = leader.validation_accuracy
    return [msgspec.structs.replace(variant, validation_accuracy=counted[variant.name]) for variant in variants]


def _is_tied(leader: VariantProfile, other: VariantProfile, right_labels: RightLabels) -> bool:
    if other.validation_accuracy == leader.validation_accuracy:
        return True
    if leader.name not in right_labels or other.name not in right_labels:
        return False
    return not _is_told(right_labels[leader.name] - right_labels[other.name])


def _is_told(leads: np.ndarray) -> bool:
    """Whether the items tell that one of two variants is better. `leads`: how much more right the first one is of each;
    labels are counted, shares averaged."""
    if np.issubdtype(leads.dtype, np.integer):
        return are_told_apart(int(np.count_nonzero(leads > 0)), int(np.count_nonzero(leads < 0)))
    return is_mean_told(float(leads.mean()), float(leads.std()), len(leads))


def _chosen(variants: Sequence[VariantProfile], required: Sequence[str], areas: Areas, most: int) -> set[str]:
    """Names of the variants to keep."""
    kept = [variant for variant in variants if variant.name in required]
    while len(kept) < most:
        left = [variant for variant in variants if variant not in kept]
        best = max(left, key=lambda variant: areas.of([*kept, variant]), default=None)
        if best is None or areas.added_by(best, kept) < LEAST_GAIN:
            break
        kept.append(best)
    # Later ones may have left an earlier one nothing.
    for variant in [variant for variant in kept if variant.name not in required]:
        if areas.added_by(variant, (others := _others(kept, variant))) < LEAST_GAIN:
            kept = others
    return {variant.name for variant in kept}


def _others(variants: Sequence[VariantProfile], one: VariantProfile) -> list[VariantProfile]:
    return [variant for variant in variants if variant is not one]


def able_to(variant: OfFamily) -> Capabilities:
    return point_of(variant).capabilities


# --- areas


@dataclass(frozen=True, slots=True)
class Areas:
    needs: tuple[Capabilities, ...]
    """What may be needed: each set of capabilities that a family has."""
    slowest_ms: tuple[float, ...]
    """By measured size."""
    least_accuracy: float

    @staticmethod
    def over(variants: Sequence[VariantProfile], least_accuracy: float) -> Areas:
        sizes = range(len(variants[0].latency))
        needs = tuple(dict.fromkeys(able_to(variant) for variant in variants))
        return Areas(needs, tuple(max(v.latency[size].p50_ms for v in variants) for size in sizes), least_accuracy)

    def of(self, variants: Sequence[VariantProfile]) -> float:
        """The sum over needs and sizes."""
        return sum(
            self._of_size([v for v in variants if able_to(v).cover(needed)], size)
            for needed in self.needs
            for size in range(len(self.slowest_ms))
        )

    def _of_size(self, variants: Sequence[VariantProfile], size: int) -> float:
        slowest_ms = self.slowest_ms[size]
        points = sorted(
            ((math.log(slowest_ms / v.latency[size].p50_ms), v.validation_accuracy - self.least_accuracy))
            for v in variants
        )
        area, height = 0.0, 0.0
        # From the fastest on: what a slower one adds is what it is higher, over the whole width up to it.
        for width, accuracy in reversed(points):
            if accuracy > height:
                area, height = area + width * (accuracy - height), accuracy
        return area

    def added_by(self, variant: VariantProfile, kept: Sequence[VariantProfile]) -> float:
        """Share of the area with the variant that is not there without it."""
        before, after = self.of(kept), self.of([*kept, variant])
        return (after - before) / after if after > 0 else 0.0


def _at(size: int, variant: VariantProfile, others: Sequence[VariantProfile]) -> list[VariantProfile]:
    """Other variants that are capable of as much, and are as accurate and as fast at one size."""
    able = able_to(variant)
    return [
        other
        for other in others
        if able_to(other).cover(able)
        and other.validation_accuracy >= variant.validation_accuracy
        and other.latency[size].p50_ms <= variant.latency[size].p50_ms
    ]


# --- what must be there


def _required(variants: Sequence[VariantProfile]) -> list[tuple[str, str]]:
    """Names, each once, and why; what matters most first."""
    found = []
    for needed in _needs([able_to(variant) for variant in variants]):
        able = [variant for variant in variants if able_to(variant).cover(needed)]
        found.append((_most_accurate(able).name, f"the most accurate that {_says_able(needed)}"))
    found.append((_most_accurate(variants).name, "the most accurate of all"))
    return [(name, why) for at, (name, why) in enumerate(found) if name not in [other for other, _ in found[:at]]]


def _needs(all_of: Sequence[Capabilities]) -> list[Capabilities]:
    """What kept variants must be capable of together, what matters most first: of all at once, where one variant is;
    otherwise of each by itself. Of following changes by itself, too: nothing else may be asked of a graph that changes,
    and then it is what decides."""
    names = [each.name for each in fields(Capabilities) if any(getattr(able, each.name) for able in all_of)]
    # Embeddings first: the model has them, and a perceptron that stands in for it has none.
    alone = [Capabilities(**{name: True}) for name in reversed(names)]
    together = Capabilities(**dict.fromkeys(names, True))
    if any(able.cover(together) for able in all_of):
        alone = [together, *(needed for needed in alone if needed == CHANGED_GRAPH)]
    return list(dict.fromkeys(needed for needed in alone if needed != STORED_GRAPH))


def _most_accurate(variants: Sequence[VariantProfile]) -> VariantProfile:
    """The fastest with large batches where several are equally accurate."""
    return max(variants, key=lambda variant: (variant.validation_accuracy, -variant.latency[-1].p50_ms))


# --- words


def _says_able(able: Capabilities) -> str:
    """As of a variant: `follows changes of the graph`. What answers requests with overlays follows them, too."""
    if words := able.in_words():
        return f"answers requests with {words}"
    return "follows changes of the graph" if able.changes else ""


def _says_added(variant: VariantProfile, kept: Sequence[VariantProfile], areas: Areas) -> str:
    others = _others(kept, variant)
    sizes = [point.seeds for size, point in enumerate(variant.latency) if not _at(size, variant, others)]
    able = _says_able(able_to(variant))
    other = f"no other that {able}" if able else "no other"
    share = 100 * areas.added_by(variant, others)
    return f"{other} is as accurate and as fast at {_nodes(sizes)}: {share:.3g} % of the area"


def _dropped(
    variant: VariantProfile, kept: Sequence[VariantProfile], areas: Areas, most: int, measured: Mapping[str, float]
) -> SearchedVariant:
    """`measured`: accuracies by name, of which those of `variant` and `kept` may be the higher ones of others."""
    able = able_to(variant)
    beaters = [other for other in kept if able_to(other).cover(able) and beats(other, variant)]
    if beaters:
        best = min(beaters, key=lambda other: other.latency[-1].p50_ms)
        return SearchedVariant(
            name=variant.name, is_kept=False, why=_says_better(best, variant, measured), beaten_by=(best.name,)
        )
    at_sizes = [_at(size, variant, kept) for size in range(len(variant.latency))]
    if all(at_sizes):
        names = [min((v.latency[size].p50_ms, v.name) for v in found)[1] for size, found in enumerate(at_sizes)]
        each = ", ".join(f"{name} at {point.seeds:,}" for name, point in zip(names, variant.latency, strict=True))
        why = f"as accurate and as fast, by number of nodes: {each}"
        return SearchedVariant(name=variant.name, is_kept=False, why=why, beaten_by=tuple(dict.fromkeys(names)))
    added = areas.added_by(variant, kept)
    if added >= LEAST_GAIN and len(kept) == most:
        why = f"it would add {100 * added:.3g} % of the area, less than each that is kept (budget.variants: {most})"
    else:
        why = f"it would add less than {100 * LEAST_GAIN:.1f} % of the area"
    return SearchedVariant(name=variant.name, is_kept=False, why=why)


def _says_better(best: VariantProfile, variant: VariantProfile, measured: Mapping[str, float]) -> str:
    points = 100 * (measured[best.name] - measured[variant.name])
    if abs(points) < _LEAST_POINTS:
        accurate = "as accurate"
    elif best.validation_accuracy == variant.validation_accuracy:
        accurate = f"as accurate as far as the validation nodes tell ({points:+.2f} points)"
    else:
        accurate = f"{points:.2f} points more accurate"
    ratios = [theirs.p50_ms / mine.p50_ms for mine, theirs in zip(best.latency, variant.latency, strict=True)]
    least, most = f"{min(ratios):.2g}", f"{max(ratios):.2g}"
    faster = f"{least} times" if least == most else f"{least} to {most} times"
    return f"{best.name} is {accurate} and {'' if faster == '1 times' else f'{faster} '}as fast"


def _nodes(sizes: Sequence[int]) -> str:
    *first, last = [f"{size:,}" for size in sizes]
    joined = f"{', '.join(first)} and {last}" if first else last
    return f"{joined} {'node' if joined == '1' else 'nodes'}"
