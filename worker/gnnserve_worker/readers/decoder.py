"""Weights of a decoder of links, as torch saves them, read as those of ours: told by the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gnnserve_api.spec.task import Decoder

_Tensors = Mapping[str, np.ndarray]


def read_decoder_weights(decoder: Decoder, tensors: _Tensors, dimensions: int) -> _Tensors | None:
    """Weights by the keys of `models/decoder.py`; None: they are those of another decoder."""
    return _READERS[decoder](tensors, dimensions)


def decoder_of(tensors: _Tensors, dimensions: int) -> Decoder | None:
    """The decoder of rows of so many columns that has such tensors; None: none has."""
    return next((one for one, read in _READERS.items() if tensors and read(tensors, dimensions) is not None), None)


def _of_dist_mult(tensors: _Tensors, dimensions: int) -> _Tensors | None:
    vectors = [tensor.ravel() for tensor in tensors.values()]
    return {"relation": vectors[0]} if len(vectors) == 1 and vectors[0].shape == (dimensions,) else None


def _of_perceptron(tensors: _Tensors, dimensions: int) -> _Tensors | None:
    """Decoder of two linear layers, told by their shapes; those without a bias have one of 0."""
    matrices = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    first = [tensor for tensor in matrices if tensor.shape[1] == 2 * dimensions and len(tensor) > 1]
    last = [tensor for tensor in matrices if len(tensor) == 1]
    if len(matrices) != 2 or len(first) != 1 or len(last) != 1 or last[0].shape[1] != len(first[0]):
        return None
    hidden = len(first[0])
    biases = [tensor for tensor in tensors.values() if tensor.ndim == 1]
    if any(len(one) not in (hidden, 1) for one in biases) or len(biases) > 2:
        return None
    bias = next((one for one in biases if len(one) == hidden), np.zeros(hidden, np.float32))
    end = next((one for one in biases if len(one) == 1), np.zeros(1, np.float32))
    both = first[0]
    return {
        "first": np.ascontiguousarray(both[:, :dimensions]),
        "second": np.ascontiguousarray(both[:, dimensions:]),
        "bias": bias,
        "out": np.ascontiguousarray(last[0][0]),
        "end": end,
    }


_READERS: Mapping[Decoder, Callable[[_Tensors, int], _Tensors | None]] = {
    Decoder.DIST_MULT: _of_dist_mult,
    Decoder.MLP: _of_perceptron,
}
