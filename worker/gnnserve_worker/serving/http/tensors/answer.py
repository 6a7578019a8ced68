"""An answer's tensors as bytes, before any form writes them."""

from __future__ import annotations

from gnnserve_worker.asking.tensors import encode_texts
from gnnserve_worker.serving.requests import Answer, Question
from gnnserve_worker.tasks.served import AnswerTensors


def as_bytes(name: str, answer: Answer, question: Question, tensors: AnswerTensors) -> bytes | memoryview:
    """An output's elements as the protocol has them in bytes."""
    if tensors.are_texts(name):
        return encode_texts(tensors.texts_of(name, answer))
    return tensors.numbers_of(name, answer, question).data.cast("B")
