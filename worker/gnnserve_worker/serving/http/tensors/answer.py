"""The tensors of an answer: their datatypes, shapes and elements, before any form writes them."""

from __future__ import annotations

import numpy as np

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.datatypes import Datatype, encode_texts
from gnnserve_worker.serving.requests import Answer

_FLOAT32, _INT64 = np.dtype("<f4"), np.dtype("<i8")
"""NumPy reads the names of its types anew each time."""


def form_of(name: str, answer: Answer, revision: ServedRevision) -> tuple[Datatype, list[int]]:
    """Datatype and shape of an output."""
    nodes = len(answer.scores)
    if name == "labels" and not revision.multi_label:
        return (Datatype.BYTES if revision.class_texts else Datatype.INT64), [nodes]
    if name == "labels":
        return Datatype.BOOL, [nodes, len(revision.classes)]
    return Datatype.FP32, [nodes, _matrix_of(name, answer).shape[1]]


def are_texts(name: str, revision: ServedRevision) -> bool:
    """Whether an output's elements have no fixed size: labels that are texts."""
    return name == "labels" and not revision.multi_label and bool(revision.class_texts)


def columns_of_labels(answer: Answer, revision: ServedRevision) -> np.ndarray:
    """The column of each node's label: int64 [nodes]."""
    best: np.ndarray = revision.decisive_scores(answer.variant, answer.scores).argmax(axis=1)
    return best


def numbers_of(name: str, answer: Answer, revision: ServedRevision) -> np.ndarray:
    """An output whose elements have a fixed size, C-contiguous, little-endian."""
    if name != "labels":
        return np.ascontiguousarray(_matrix_of(name, answer), _FLOAT32)
    if revision.multi_label:
        return np.ascontiguousarray(revision.decisive_scores(answer.variant, answer.scores) > 0)
    return np.ascontiguousarray(revision.class_ids[columns_of_labels(answer, revision)], _INT64)


def texts_of_labels(answer: Answer, revision: ServedRevision) -> list[bytes]:
    texts = [str(label).encode() for label in revision.classes]
    return [texts[column] for column in columns_of_labels(answer, revision).tolist()]


def as_bytes(name: str, answer: Answer, revision: ServedRevision) -> bytes | memoryview:
    """An output's elements as the protocol has them in bytes."""
    if name == "labels" and are_texts(name, revision):
        return encode_texts(texts_of_labels(answer, revision))
    return numbers_of(name, answer, revision).data.cast("B")


def _matrix_of(name: str, answer: Answer) -> np.ndarray:
    matrix = answer.embeddings if name == "embeddings" else answer.scores
    assert matrix is not None  # noqa: S101
    return matrix
