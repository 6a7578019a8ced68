"""One batch through a cascade: one variant answers, and another one about the nodes that the first is not sure of.

A cascade computes nothing itself but confidences, so it runs on any device that its stages run on. Each answer is that
of one of the two stages, with the neighbours that this stage would have drawn by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.cascades import CascadeManifest
from gnnserve_worker.inference.batch import Infer, Inference, StageTimes
from gnnserve_worker.sampling.batch_view import BatchView


def with_cascades(infer: Infer, cascades: Sequence[CascadeManifest]) -> Infer:
    """`infer` of a revision's networks, which answers for its cascades as well."""
    return _Cascading(infer, {cascade.name: cascade for cascade in cascades}) if cascades else infer


@dataclass(frozen=True, slots=True)
class _Cascading:
    infer: Infer
    cascades: Mapping[str, CascadeManifest]

    def __call__(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        cascade = self.cascades.get(variant)
        if cascade is None:
            return self.infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
        return infer_cascade(self.infer, cascade, seeds, key, view=view)


def infer_cascade(
    infer: Infer, cascade: CascadeManifest, seeds: np.ndarray, key: int, *, view: BatchView | None = None
) -> Inference:
    """As `infer_batch`, without embeddings: the two networks' hidden layers differ."""
    answer = infer(cascade.first, seeds, key, with_embeddings=False, view=view)
    started = time.perf_counter()
    scores = answer.scores
    places = np.flatnonzero(confidences(scores, cascade.temperature) < np.float32(cascade.threshold))
    seen = None if view is None else view.of_places(places)
    times = answer.times + StageTimes(0.0, 0.0, (time.perf_counter() - started) * 1e3)
    if not len(places):
        return Inference(scores, None, times, answer.gathered_bytes)
    rest = infer(cascade.then, seeds[places], key, with_embeddings=False, view=seen)
    scores[places] = rest.scores
    return Inference(scores, None, times + rest.times, answer.gathered_bytes + rest.gathered_bytes)


def confidences(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Probability of the likeliest class, float32 [nodes], where scores (float32 [nodes, classes]) are divided by the
    temperature first (On calibration of modern neural networks, section 4.2)."""
    # By class: numpy reduces long rows many times as fast as rows that are as short as there are classes.
    lag = scores.T.copy()
    lag -= lag.max(axis=0)
    lag /= np.float32(temperature)
    np.exp(lag, out=lag)
    shares: np.ndarray = np.float32(1) / lag.sum(axis=0)
    return shares
