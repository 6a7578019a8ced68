"""Features and labels of a source after changes, which workers keep in the form of tables alone, if at all.

Only what changed is in memory, by the position that a node has while changes are applied. Of several types each has its
own.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import Classes
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.store import Features, Splits
from gnnserve_worker.growth import GrowingArray

_BLOCK_BYTES = 16 * 1024 * 1024
_UNKNOWN = -1


class SourceChanges:
    """The features and labels that batches brought; the last ones of a node count."""

    def __init__(self, features: Features, classes: Classes) -> None:
        """`features`: those of the graph that changes began with, as in the source."""
        self._features = features
        self._classes = {label: place for place, label in enumerate(classes)}
        self._places: dict[int, int] = {}
        """Rows of `_rows` by position."""
        self._rows = GrowingArray((features.shape[1],), np.float32)
        self._labels: dict[int, object] = {}
        """Labels that nodes have now, by position; None: it has none."""

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """Take note of a batch that is applied; called for each."""
        new = len(found.new)
        self.note_rows(found.new, batch.features[:new], found.overridden, batch.features[new:])
        self.note_labels(batch, found)

    @property
    def width(self) -> int:
        """Features of a node."""
        return int(self._features.shape[1])

    def note_rows(
        self, new: np.ndarray, new_rows: np.ndarray, overridden: np.ndarray, other_rows: np.ndarray
    ) -> None:  # fmt: skip
        """The part of `note` about features: rows (float32) of these nodes (positions, int64)."""
        self._begin(new.tolist(), new_rows)
        unknown = [node for node in overridden.tolist() if node not in self._places]
        self._begin(unknown, self._own(np.array(unknown, np.int64)))
        places = np.array([self._places[node] for node in overridden.tolist()], np.int64)
        rows = self._rows.items
        rows[places] = np.where(np.isnan(other_rows), rows[places], other_rows)

    def note_labels(self, batch: ChangeBatch, found: FoundNodes) -> None:
        """The part of `note` about labels."""
        new = len(found.new)
        if batch.labels:
            nodes = (*found.new.tolist(), *found.labelled.tolist())
            labels = msgspec.json.decode(batch.labels)
            for number, (node, label) in enumerate(zip(nodes, labels, strict=True)):
                # A new node without a label has none; a stored one loses its label.
                if number >= new or label is not None:
                    self._labels[node] = label

    def _begin(self, nodes: Sequence[int], rows: np.ndarray) -> None:
        """Keep the features of nodes that have no place yet."""
        self._places.update(zip(nodes, range(len(self._rows), len(self._rows) + len(nodes)), strict=True))
        self._rows.extend(rows)

    def _own(self, nodes: np.ndarray) -> np.ndarray:
        """The features that these nodes (int64) of the graph have from the beginning."""
        rows = self._features[nodes]
        return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray())

    def features_of(self, kept: np.ndarray) -> Features:
        """Features of the nodes at these positions (int64, ascending), in their order."""
        features, nodes = self._features, self._features.shape[0]
        changed = np.fromiter(self._places, np.int64, len(self._places))
        rows = self._rows.items
        if isinstance(features, np.ndarray):
            out = np.empty((len(kept), features.shape[1]), np.float32)
            step = max(1, _BLOCK_BYTES // max(1, out.strides[0]))
            own = kept[kept < nodes]
            for start in range(0, len(own), step):
                block = own[start : start + step]
                out[start : start + len(block)] = features[block]
            places = np.searchsorted(kept, changed)
            is_kept = (places < len(kept)) & (kept[np.minimum(places, len(kept) - 1)] == changed)
            out[places[is_kept]] = rows[is_kept]
            return out
        # Few graphs have sparse features, and scipy takes a moment.
        import scipy.sparse as sp  # noqa: PLC0415

        place_of = np.arange(max(nodes, int(kept[-1]) + 1 if len(kept) else 0))
        place_of[changed[changed < len(place_of)]] = nodes + np.flatnonzero(changed < len(place_of))
        both = sp.vstack((features, sp.csr_array(rows)), format="csr")
        return sp.csr_array(both[place_of[kept]])

    def labels_of(self, labels: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Labels of the nodes at these positions (int64, ascending), as `GraphData` has them. `labels`: those of the
        graph that changes began with."""
        own = kept[kept < len(labels)]
        fill = 0 if labels.ndim == 2 else _UNKNOWN
        out = np.full((len(kept), *labels.shape[1:]), fill, labels.dtype)
        out[: len(own)] = labels[own]
        for node, label in self._labels.items():
            place = int(np.searchsorted(kept, node))
            if place < len(kept) and kept[place] == node:
                out[place] = self._encoded(label, labels)
        return out

    def splits_of(self, splits: Splits, kept: np.ndarray, first: int) -> Splits:
        """Splits of the nodes at these positions (int64, ascending), of which those from `first` on are new. Nodes stay
        in the split that they are in, unless they have lost their label; new ones that have one are trained on."""
        new = [node for node, label in self._labels.items() if node >= first and self._is_known(label)]
        lost = [node for node, label in self._labels.items() if not self._is_known(label)]
        of_known = np.where(np.isin(kept, np.array(lost, np.int64)), -1, kept)
        train, validation, test = (
            np.flatnonzero(np.isin(of_known, part)) for part in (splits.train, splits.validation, splits.test)
        )
        labelled = np.flatnonzero(np.isin(kept, np.array(new, np.int64)))
        return Splits(np.union1d(train, labelled), validation, test)

    def _is_known(self, label: object) -> bool:
        return isinstance(label, list) or label in self._classes

    def _encoded(self, label: object, labels: np.ndarray) -> np.ndarray | int:
        """As a row of `labels`. A class that the graph does not have is none: batches are checked when they come, but
        a source may have other classes later."""
        if labels.ndim == 1:
            return self._classes.get(label, _UNKNOWN) if isinstance(label, int | str) else _UNKNOWN
        row = np.zeros(labels.shape[1], labels.dtype)
        known = [self._classes[one] for one in _listed(label) if one in self._classes]
        row[known] = 1
        return row


def _listed(label: object) -> Sequence[int | str]:
    return [one for one in label if isinstance(one, int | str)] if isinstance(label, list) else []
