"""Whether answers to overlays are right: beside those of a graph built anew, and by how evenly neighbours are drawn."""

from __future__ import annotations

import numpy as np
from tests.support.overlays.overlays import (
    ARCHITECTURES,
    FEATURES,
    RULES,
    World,
    drawn_of_list,
    revision_over,
    scaling_of,
)
from tests.support.statistics import p_value_of_uniform

from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage
from gnnserve_worker.inference.batch import infer_batch

_DRAWS = 20_000
_LISTS = ((6, 5, 4), (0, 12, 5), (30, 2, 10), (9, 3, 11))
"""Stored neighbours, new ones, fan-out."""


def largest_errors(overlays: int) -> dict[str, float]:
    """Largest difference of any score, by architecture and variant, over so many random overlays: full neighbourhood,
    float32, every rule of edges, among them self-loops, repeated edges, hubs and isolated nodes."""
    largest: dict[str, float] = {}
    draw = np.random.default_rng(0)
    methods = (Normalization.STANDARDIZE, Normalization.L2_ROW_NORMALIZE)
    for number in range(overlays):
        architecture = sorted(ARCHITECTURES)[number % len(ARCHITECTURES)]
        new, overridden, edges = (int(draw.integers(0, most)) for most in (6, 5, 80))
        rules = RULES[number // len(ARCHITECTURES) % len(RULES)]
        world = World(number, rules, new=new, overridden=overridden, edges=edges, isolated=int(draw.integers(0, 8)))
        scaling, order = scaling_of(world.features, methods[number % 2]), draw.permutation(FEATURES)
        stored = revision_over(architecture, world.graph, world.features, scaling, Storage.FLOAT32, order)
        rebuilt = revision_over(architecture, world.rebuilt, world.rebuilt_features, scaling, Storage.FLOAT32, order)
        for variant in stored.variants:
            expected = infer_batch(rebuilt, variant, world.seeds, 1).scores
            # Of large scores the last digits differ: sums are made in another order.
            error = float((np.abs(world.answers(stored, variant) - expected) / np.maximum(1, np.abs(expected))).max())
            name = f"{architecture} {variant}"
            largest[name] = max(error, largest.get(name, 0.0))
    return dict(sorted(largest.items()))


def smallest_p_value() -> float:
    """Return the smallest p of chi-square tests that all neighbours, stored or new, are drawn equally often."""
    found = []
    for stored, gained, fanout in _LISTS:
        counts = np.zeros(stored + gained)
        for key, drawn in enumerate(drawn_of_list(stored, gained, fanout, _DRAWS, share=False)):
            # One draw of each sample: those of one sample depend on each other.
            counts[drawn[key % fanout]] += 1
        found.append(p_value_of_uniform(counts))
    return min(found)
