"""Weights of a decoder that a user has trained, held against the manifest."""

from __future__ import annotations

from gnnserve_api.errors import InputError
from gnnserve_api.spec.task import Decoder, Links
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.readers.decoder import read_decoder_weights
from gnnserve_worker.tasks.generated import DecoderTensors, GivenDecoder


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
    weights = read_decoder_weights(links.decoder, tensors, links.dimensions)
    if weights is None:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
        raise InputError(
            given.field,
            f"{given.named} has {shapes}, which are not the weights of {links.decoder} over {links.dimensions} columns",
            _WANTED[links.decoder].format(d=links.dimensions, both=2 * links.dimensions),
        )  # fmt: skip
    return GivenDecoder(weights, build_decoder(links.decoder, weights, links.dimensions))


_WANTED = {
    Decoder.DIST_MULT: "write one vector of {d} numbers, a weight for each column",
    Decoder.MLP: "write the tensors of Linear({both}, h), ReLU, Linear(h, 1), which reads the first row and the second "
    "one beside each other",
}
