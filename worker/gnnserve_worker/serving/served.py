"""The revision that a worker answers from, as the engine and the protocols see it.

Narrow, so that they can be tried without kernels or files: a manifest, a few facts and one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.serving.inference import Inference, infer_batch, warm_up

Infer = Callable[[str, np.ndarray, int], Inference]
"""Variant, seeds (int64 node ids in range), key of the random draws."""


class TableError(InputError):
    """A routing table asks for variants that its revision does not have: correct the table, or the manifest."""


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

    def check(self, table: RoutingTable) -> None:
        """Raises TableError where the table routes to variants that do not exist here. Their costs do no harm."""
        known = [variant.name for variant in self.manifest.profile.variants]
        wanted = [*table.weights] if table.base_variant is None else [table.base_variant, *table.weights]
        if unknown := [name for name in wanted if name not in known]:
            raise TableError(
                f"routing mode {table.mode}",
                f"revision {self.manifest.revision} has no variant {', '.join(unknown)}",
                f"choose from {', '.join(known)}",
            )

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
