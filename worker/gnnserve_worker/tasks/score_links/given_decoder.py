"""Weights of a decoder that a user has trained, as torch saves them, read as those of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.tasks.generated import DecoderTensors, GivenDecoder

_Tensors = Mapping[str, np.ndarray]


def read_decoder(links: Links, given: DecoderTensors) -> GivenDecoder:
    """InputError: they are not the weights of the decoder."""
    tensors = given.tensors
    if not tensors:
        if links.decoder is not Decoder.DOT:
            raise InputError(
                given.field, f"is absent, also in {given.within}, and task.links.decoder is {links.decoder}",
                "name the file of its weights, or set task.links.decoder to Dot",
            )  # fmt: skip
        return GivenDecoder({}, build_decoder(links.decoder, {}, links.dimensions))
    if links.decoder is Decoder.DOT:
        raise InputError(
            given.field, f"is {given.named} in {given.within}, and task.links.decoder is Dot (the default), "
            "which has no weights",
            f"set task.links.decoder to the one that they are of, DistMult or MLP{given.without}",
        )  # fmt: skip
    weights = _READERS[links.decoder](tensors, links.dimensions)
    if weights is None:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise InputError(
            given.field,
            f"{given.named} has {shapes}, which are not the weights of {links.decoder} over {links.dimensions} columns",
            _WANTED[links.decoder].format(d=links.dimensions, both=2 * links.dimensions),
        )  # fmt: skip
    return GivenDecoder(weights, build_decoder(links.decoder, weights, links.dimensions))


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
"""Weights by the keys of `models/decoder.py`; None: they are others."""
_WANTED = {
    Decoder.DIST_MULT: "write one vector of {d} numbers, a weight for each column",
    Decoder.MLP: "write the tensors of Linear({both}, h), ReLU, Linear(h, 1), which reads the first row and the second "
    "one beside each other",
}
