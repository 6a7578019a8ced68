"""Jumping knowledge: what the head reads of the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import JumpingKnowledge
from gnnserve_worker.layers.dense import Product, Tensors
from gnnserve_worker.layers.memory import RunMemory

Jump = Callable[[Sequence[np.ndarray], RunMemory], np.ndarray]
"""Makes one row of those of all layers, float32 [nodes, columns] each."""


def build_jump(kind: JumpingKnowledge, tensors: Tensors) -> Jump:
    """`tensors`: those below `jumping`."""
    return _JUMPS[kind](tensors)


def _last(written: Sequence[np.ndarray], memory: RunMemory) -> np.ndarray:
    del memory
    return written[-1]


def _beside(written: Sequence[np.ndarray], memory: RunMemory) -> np.ndarray:
    out = memory.rows(len(written[0]), sum(each.shape[1] for each in written))
    return np.concatenate(written, axis=1, out=out)


def _largest(written: Sequence[np.ndarray], memory: RunMemory) -> np.ndarray:
    out = memory.rows(*written[0].shape)
    out[:] = written[0]
    for each in written[1:]:
        np.maximum(out, each, out=out)
    return out


@dataclass(frozen=True, slots=True)
class _Lstm:
    """One way of torch's LSTM, its gates in torch's order: input, forget, cell, output."""

    of_input: Product
    of_hidden: Product
    hidden: int

    @staticmethod
    def build(tensors: Tensors, way: str) -> _Lstm:
        weight = tensors[f"lstm.weight_hh_l0{way}"]
        bias = tensors[f"lstm.bias_ih_l0{way}"] + tensors[f"lstm.bias_hh_l0{way}"]
        return _Lstm(Product.build(tensors[f"lstm.weight_ih_l0{way}"], bias), Product.build(weight), weight.shape[1])

    def outputs(self, inputs: Sequence[np.ndarray], memory: RunMemory) -> list[np.ndarray]:
        """Hidden states behind each input, in the order of the inputs."""
        hidden = np.zeros((len(inputs[0]), self.hidden), np.float32)
        cell, found = hidden, []
        for each in inputs:
            gates = self.of_input(each, memory)
            gates += self.of_hidden(hidden, memory)
            taken, kept, new, given = np.split(gates, 4, axis=1)
            cell = _sigmoid(kept) * cell + _sigmoid(taken) * np.tanh(new)
            hidden = _sigmoid(given) * np.tanh(cell)
            found.append(hidden)
        return found


def _sigmoid(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = (1 + np.tanh(values / 2)) / 2  # exp(-values) would overflow
    return found


def _build_lstm(tensors: Tensors) -> Jump:
    ahead, back = _Lstm.build(tensors, ""), _Lstm.build(tensors, "_reverse")
    attention, bias = tensors["att.weight"][0], tensors["att.bias"][0]

    def jump(written: Sequence[np.ndarray], memory: RunMemory) -> np.ndarray:
        behind = ahead.outputs(written, memory)
        before = back.outputs(written[::-1], memory)[::-1]
        scores = np.stack([
            each @ attention[: ahead.hidden] + other @ attention[ahead.hidden :] + bias
            for each, other in zip(behind, before, strict=True)
        ])  # fmt: skip
        shares = np.exp(scores - scores.max(0))
        shares /= shares.sum(0)
        out = memory.rows(*written[0].shape)
        out[:] = 0
        for share, each in zip(shares, written, strict=True):
            out += share[:, None] * each
        return out

    return jump


_JUMPS: Mapping[JumpingKnowledge, Callable[[Tensors], Jump]] = {
    JumpingKnowledge.LAST: lambda _tensors: _last,
    JumpingKnowledge.CAT: lambda _tensors: _beside,
    JumpingKnowledge.MAX: lambda _tensors: _largest,
    JumpingKnowledge.LSTM: _build_lstm,
}
