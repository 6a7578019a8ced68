"""The revision that a worker answers from, as the engine and the protocols see it.

Narrow, so that they can be tried without kernels or files: a manifest, a few facts and one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.serving.inference import Inference, infer_batch, warm_up

Infer = Callable[[str, np.ndarray, int], Inference]
"""Variant, seeds (int64 node ids in range), key of the random draws."""


@dataclass(frozen=True, slots=True)
class ServedRevision:
    manifest: RevisionManifest
    nodes: int
    """Valid node ids are 0 to nodes - 1."""
    classes: tuple[int, ...]
    """The graph's own label of each score column."""
    multi_label: bool
    infer: Infer
    """In one thread at a time."""
    warm_up: Callable[[], None]
    """Run once, before the first batch."""
    class_ids: np.ndarray = field(init=False)
    """`classes` as int64."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_ids", np.asarray(self.classes, np.int64))

    @property
    def has_embeddings(self) -> bool:
        """A one-layer network has no hidden layer to return."""
        return len(self.manifest.network.fanouts) > 1


def served_revision(loaded: LoadedRevision) -> ServedRevision:
    if loaded.manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    return ServedRevision(
        manifest=loaded.manifest,
        nodes=loaded.graph.nodes,
        classes=loaded.classes,
        multi_label=loaded.multi_label,
        infer=partial(infer_batch, loaded),
        warm_up=partial(warm_up, loaded),
    )
