"""Predictions over stored layers whose rows may be stale: of the rows that a batch reads, some are refreshed before."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from gnnserve_worker.inference.batch import Infer, Inference, StageTimes, draw_sample
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import Scratch


def refreshed(infer: Infer, loaded: LoadedRevision, living: LivingRevision | None) -> Infer:
    """`infer`, before which rows are refreshed by the budget. It is to be called while nothing else reads the revision
    or writes to it, by one thread at a time. `living`: as of `ServedChanges`."""
    if living is None:
        return infer
    refreshing, scratch = living.refreshing, Scratch()
    variants = {
        name: (variant, layer)
        for name, variant in loaded.variants.items()
        if (layer := refreshing.layer_of(variant.table)) is not None
    }

    def infer_refreshed(
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        found = variants.get(variant)
        if found is None or not refreshing.would_refresh(found[1]):
            return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
        began_s = time.perf_counter()
        # Draws depend on the key, so that these are the rows that the batch will read.
        sampling = None if view is None else view.sampling
        sample = draw_sample(loaded, found[0], seeds, key, sampling, scratch, share=True)
        refreshing.refresh_read(found[1], sample.nodes, sample.neighbours)
        took = StageTimes((time.perf_counter() - began_s) * 1e3, 0.0, 0.0)
        inference = infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
        return msgspec.structs.replace(inference, times=inference.times + took)

    return infer_refreshed
