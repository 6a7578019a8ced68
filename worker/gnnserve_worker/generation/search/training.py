"""Which networks a search trains beside the first one, and in which order. Pure.

A network is promising where one of its variants could add to what was measured, if it took what the latency model
predicts and were as accurate as can be hoped: with fewer columns, as the network of all; as a one-row variant, a
standard error above the best, whose accuracy is known no better than that. One whose variants are capable of more than
any measured one is promising whatever it takes: beside propagated features mlp0 alone answers about new nodes and
follows changes. They are trained in the order of what they could add, each to its end: the one that could add most also
leaves least to the others. Successive halving on epochs is not done. It drops the least accurate of networks that were
trained shortly; here these are of different latencies, so that the least accurate may well be the one to keep.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.files.repository import NetworkKind
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.search.candidates import Candidate
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel, MeasuredLatency, work_of
from gnnserve_worker.generation.search.selection import LEAST_GAIN, Areas, able_to


@dataclass(frozen=True, slots=True)
class Promise:
    trains: str
    """As `Round.trains`."""
    adds: float
    """Share of the area that its variants could add together, and 1 more where they are capable of more than any
    measured one: these come first."""


def model_of(degrees: Degrees, generated: Sequence[GeneratedVariant], profile: Profile) -> LatencyModel:
    """The latency model of what was measured."""
    made = {one.variant.name: one.variant for one in generated}
    return LatencyModel.fit(
        [
            MeasuredLatency(
                work_of(made[one.name], one.storage, is_product=one.projected, degrees=degrees),
                {point.seeds: point.p50_ms for point in one.latency},
            )
            for one in profile.variants
        ]
    )


def predicted(
    candidate: Candidate, model: LatencyModel, degrees: Degrees, measured: Collection[NetworkKind] = tuple(NetworkKind)
) -> dict[int, float]:
    """Predicted medians in ms, by seeds. `measured`: kinds of networks that the model was fitted to. What a batch of
    another kind costs, whatever it reads, is not known, and hoped to be nothing."""
    work = work_of(candidate.manifest, candidate.storage, is_product=candidate.is_product, degrees=degrees)
    return model.p50_ms(work if candidate.manifest.network.kind in measured else replace(work, batches=0.0))


def promises(
    candidates: Mapping[str, Sequence[Candidate]],
    predicted_ms: Mapping[str, Mapping[int, float]],
    profile: Profile,
    least_accuracy: float,
) -> tuple[Promise, ...]:
    """The networks that could add something, the most promising first. `candidates`: by what must be trained for them.
    `predicted_ms`: by name of the variant and seeds. `profile`: its first variant is the widest."""
    measured = profile.variants
    areas = Areas.over(measured, least_accuracy)
    found = []
    for trains, of_network in candidates.items():
        hoped = [_hoped(candidate, predicted_ms[candidate.manifest.name], profile) for candidate in of_network]
        before, after = areas.of(measured), areas.of([*measured, *hoped])
        adds = (after - before) / after if after > 0 else 0.0
        if not all(any(able_to(one).cover(able_to(other)) for one in measured) for other in hoped):
            adds += 1.0
        if adds >= LEAST_GAIN:
            found.append(Promise(trains, adds))
    return tuple(sorted(found, key=lambda promise: -promise.adds))


def _hoped(candidate: Candidate, predicted_ms: Mapping[int, float], profile: Profile) -> VariantProfile:
    """The profile of a candidate that is as fast as predicted, and as accurate as can be hoped."""
    widest, manifest = profile.variants[0], candidate.manifest
    has_fewer_columns = not candidate.is_product
    best = max(variant.validation_accuracy for variant in profile.variants)
    error = math.sqrt(best * (1 - best) / max(1, profile.validation_nodes))
    return msgspec.structs.replace(
        widest,
        name=manifest.name,
        family=manifest.family,
        projected=candidate.is_product,
        storage=candidate.storage,
        validation_accuracy=widest.validation_accuracy if has_fewer_columns else min(1.0, best + error),
        latency=tuple(
            msgspec.structs.replace(point, p50_ms=max(1e-6, predicted_ms[point.seeds])) for point in widest.latency
        ),
    )
