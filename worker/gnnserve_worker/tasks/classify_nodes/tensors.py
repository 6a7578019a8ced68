"""Classes as tensors of the Open Inference Protocol: labels, scores and embeddings of nodes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.asking.question import check_node_count
from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.models.network import decisive_scores
from gnnserve_worker.tasks.classify_nodes.embeddings import HiddenLayer
from gnnserve_worker.tasks.embedded import capabilities_of
from gnnserve_worker.tasks.served import NOTHING_OWN, AskedItems, ScoredNodes

_FLOAT32, _INT64 = np.dtype("<f4"), np.dtype("<i8")
"""NumPy reads the names of its types anew each time."""


def class_columns(classes: Classes) -> tuple[np.ndarray, tuple[bytes, ...]]:
    """Labels as int64, or as JSON where they are texts; the other is empty."""
    are_texts = bool(classes) and isinstance(classes[0], str)
    ids = np.array([] if are_texts else classes, np.int64)
    return ids, tuple(map(msgspec.json.encode, classes)) if are_texts else ()


class ClassTensors:
    items, item_ids, missing = "nodes", 1, "name the nodes to classify in it"
    shape, own = (ANY_LENGTH,), NOTHING_OWN
    default_outputs = ("labels", "scores")
    """Embeddings come only when asked for: not every variant has them."""

    def __init__(
        self, manifest: RevisionManifest, classes: Classes, thresholds: Mapping[str, np.ndarray], *, multi_label: bool
    ) -> None:
        self._manifest = manifest
        self._capabilities = capabilities_of(HiddenLayer(), manifest)
        self._classes = classes
        self._thresholds = thresholds
        self._multi_label = multi_label
        self._ids, self._json_texts = class_columns(classes)
        self._texts = [str(label).encode() for label in classes]
        self.names = tuple(kind.name for kind in self.outputs())

    def check_count(self, items: int, max_nodes: int) -> None:
        check_node_count(items, max_nodes)

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        classes = len(self._classes)
        if self._multi_label:  # a column for each class
            labels = TensorKind("labels", Datatype.BOOL, (ANY_LENGTH, classes))
        else:
            labels = TensorKind("labels", Datatype.BYTES if self._json_texts else Datatype.INT64, (ANY_LENGTH,))
        kinds = [labels, TensorKind("scores", Datatype.FP32, (ANY_LENGTH, classes))]
        widths = {
            variant.network.embedding_columns
            for variant in self._manifest.variants
            if self._capabilities[variant.name].embeddings and version in {None, variant.name}
        }
        if widths:
            width = widths.pop() if len(widths) == 1 else ANY_LENGTH
            kinds.append(TensorKind("embeddings", Datatype.FP32, (ANY_LENGTH, width), is_optional=True))
        return tuple(kinds)

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        nodes = len(answer.scores)
        if name == "labels" and not self._multi_label:
            return (Datatype.BYTES if self._json_texts else Datatype.INT64), [nodes]
        if name == "labels":
            return Datatype.BOOL, [nodes, len(self._classes)]
        return Datatype.FP32, [nodes, _matrix_of(name, answer).shape[1]]

    def are_texts(self, name: str) -> bool:
        return name == "labels" and not self._multi_label and bool(self._json_texts)

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        if name != "labels":
            return np.ascontiguousarray(_matrix_of(name, answer), _FLOAT32)
        if self._multi_label:
            return np.ascontiguousarray(self._deciding(answer) > 0)
        return np.ascontiguousarray(self._ids[self._deciding(answer).argmax(axis=1)], _INT64)

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        return [self._texts[column] for column in self._deciding(answer).argmax(axis=1).tolist()]

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        return b",".join([self._json_texts[column] for column in self._deciding(answer).argmax(axis=1).tolist()])

    def _deciding(self, answer: ScoredNodes) -> np.ndarray:
        return decisive_scores(answer.scores, self._thresholds.get(answer.variant))


def _matrix_of(name: str, answer: ScoredNodes) -> np.ndarray:
    matrix = answer.embeddings if name == "embeddings" else answer.scores
    assert matrix is not None  # noqa: S101
    return matrix
