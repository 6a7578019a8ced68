"""Predictions over stored layers whose rows may be stale: of the rows that a batch reads, some are refreshed before,
and some of those that its requests change are chosen to be made.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_worker.inference.batch import Infer, Inference, StageTimes, draw_sample, infer_each
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.kernels.view import unpack
from gnnserve_worker.models.rows import NOTHING_REACHED
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.opening.overlay_rows import ChoosingView
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.staleness.refreshing import TURN_US, StaleLayer
from gnnserve_worker.tasks.served_labels import LiveLabels


class InferWithin(Protocol):
    """Makes what computes batches."""

    def __call__(self, most_permille: float, most_us: float = math.inf) -> Infer:
        """`most_permille`: of the answers so many are expected to differ from those of exact rows. `most_us`: time for
        making rows anew that this does not ask for, where the budget leaves more."""
        ...  # pragma: no cover


def refreshed(infer: Infer, loaded: LoadedRevision, living: LivingRevision | None) -> InferWithin:
    """`infer`, before which rows are refreshed: as many as leave what is to be expected, and by the budget where that
    leaves less. It is to be called while nothing else reads the revision or writes to it, by one thread at a time.
    `living`: as of `ServedChanges`."""
    if living is None:
        return lambda most_permille, most_us=math.inf: infer
    refreshing, scratch = living.refreshing, Scratch()
    variants = _reading_layers(loaded, living)

    def within(most_permille: float, most_us: float = math.inf) -> Infer:
        def infer_refreshed(
            variant: str,
            seeds: np.ndarray,
            key: int,
            *,
            with_embeddings: bool = True,
            view: BatchView | None = None,
        ) -> Inference:
            found = variants.get(variant)
            rows = None if found is None or view is None or view.features is None else found[0].rows
            reaching = None if rows is None else rows.reaching
            if found is None or (reaching is None and not found[1].rows.count):
                return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
            began_s = time.perf_counter()
            # Draws depend on the key, so that these are the rows that the batch will read.
            sampling = None if view is None else view.sampling
            sample = draw_sample(loaded, found[0], seeds, key, sampling, scratch, share=True)
            if found[1] is refreshing.first:
                read = refreshing.make_read(sample.nodes, sample.neighbours, _corrected(view))
            else:
                reached = NOTHING_REACHED if view is None or reaching is None else reaching.reached(view, sample)
                read, chosen = refreshing.refresh_seen(
                    found[1], (sample.nodes, sample.neighbours), reached, most_permille=most_permille, most_us=most_us
                )
                if view is not None and reaching is not None:
                    origins = reached.origins[np.isin(reached.keys, chosen)]
                    refreshing.make_right_below(found[1], origins[origins >= 0], _joined(view, loaded.graph.nodes))
                    view = ChoosingView.of(view, chosen)
            took = StageTimes((time.perf_counter() - began_s) * 1e3, 0.0, 0.0)
            inference = infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)
            if read.brought:
                refreshing.note_brought(read.brought, inference.times.overlay_ms / 1e3)
            return msgspec.structs.replace(inference, times=inference.times + took, stale=read)

        return infer_refreshed

    return within


def _corrected(view: BatchView | None) -> np.ndarray:
    """Stored nodes whose lists or features requests change, whose rows of the first layer are continued from what was
    aggregated of them: int64. The sample has them under other numbers."""
    if view is None:
        return np.zeros(0, np.int64)
    _, _, _, _, origins, _, _, _, _ = unpack(view.sampling.packed)
    return np.asarray(origins[origins >= 0])


def _joined(view: BatchView, stored: int) -> np.ndarray:
    """Stored nodes that requests join to others, or whose features they change: int64. `stored`: the graph's nodes."""
    _, _, _, _, origins, _, _, entries, _ = unpack(view.sampling.packed)
    return np.concatenate((origins[origins >= 0], entries[entries < stored]))


def _reading_layers(loaded: LoadedRevision, living: LivingRevision) -> dict[str, tuple[LoadedVariant, StaleLayer]]:
    """Variants that read a layer whose rows may be stale, with the layer, by their names."""
    return {
        name: (variant, layer)
        for name, variant in loaded.variants.items()
        if (layer := living.refreshing.layer_of(variant.table)) is not None
    }


_LOOKED_AT = 512
"""Nodes that are drawn; the first of them whose own rows are stale are asked about."""
_ANSWERS = (8, 4, 2, 1)
"""How many answers are compared: the most of these that take no longer than they may."""
_LONGEST_US = 4 * TURN_US
"""Longest time of making rows for a comparison."""


class StaleComparison:
    """Comparison of answers from rows as they are stored with those of exact rows: what a layer's errors do to answers
    (`staleness/loss.py`). The rows that it reads are right then, so that its work is not in vain."""

    def __init__(self, loaded: LoadedRevision, living: LivingRevision, live: LiveLabels) -> None:
        """`live`: says whether two answers differ."""
        self._loaded, self._living, self._live = loaded, living, live
        self._measure = live.measure()
        self._draw, self._scratch = np.random.default_rng(), Scratch()
        of_variants = _reading_layers(loaded, living).items()
        self._variants = [one for one in of_variants if one[1][1] is not living.refreshing.first]
        self._count = 0

    def compare_some(self) -> None:
        """Compare a few answers of one variant, unless a batch of predictions is computed or changes are published just
        then."""
        if not self._variants:
            return
        with self._living.unless_busy() as may:
            if may:
                self._count += 1
                name, (variant, layer) = self._variants[self._count % len(self._variants)]
                if layer.rows.count:
                    self._compare(name, variant, layer)

    def _compare(self, name: str, variant: LoadedVariant, layer: StaleLayer) -> None:
        graph = self._living.graph
        drawn = self._draw.integers(0, graph.ids.count, _LOOKED_AT)
        drawn = drawn[(layer.rows.errors[drawn] > 0) & ~graph.is_gone[drawn]]
        for answers in _ANSWERS:
            items = drawn[: answers * self._live.ids_per_item].reshape(-1, self._live.ids_per_item)
            if len(items) == answers and self._compare_items(name, variant, layer, items):
                return

    def _compare_items(self, name: str, variant: LoadedVariant, layer: StaleLayer, items: np.ndarray) -> bool:
        """Whether to make the rows that answers about these items read takes no longer than it may."""
        loaded, measure, key = self._loaded, self._measure, self._count
        nodes, form = self._live.asked(items)
        sample = draw_sample(loaded, variant, nodes, key, None, self._scratch, share=True)
        read = sample.nodes.copy(), sample.neighbours.copy()
        error = layer.rows.mean_among(*read)
        stored = infer_each(loaded, name, nodes, key, with_embeddings=False).scores
        if not self._living.refreshing.refreshes_within(layer, *read, most_us=_LONGEST_US):
            return False
        kept = measure.keep(name, nodes, stored, form, len(nodes))
        if kept is not None:
            exact = infer_each(loaded, name, nodes, key, with_embeddings=False).scores
            agreement = measure.agreement(kept, name, exact)
            layer.sensitivity.note(error, len(agreement), float(len(agreement) - agreement.sum()))
        return True
