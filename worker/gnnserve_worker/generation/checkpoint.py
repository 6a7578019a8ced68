"""Reading weights that the user gives, and checking them against the manifest and the graph.

Which tensors a network has, and what would have to change where a file has others, is the wanted network's to know:
over rows of nodes `checkpoint_over_rows.py`, over relations `checkpoint_over_relations.py`. This needs no torch, so
that a service with given weights is ready within seconds. Every message names the file, the key, what was found, what
was expected and what to change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.graph.sources.files import pinned_digest
from gnnserve_worker.models.registry import DECODER, Tensors, with_decoder, without_decoder
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.readers.files import parse_safetensors
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.tasks.generated import DecoderTensors, GenerationTask, GivenDecoder

_FIELD = "spec.model.checkpoint"


class WantedNetwork(Protocol):
    """A network over a graph, as the manifest describes it, of which weights are given."""

    def fit(self, tensors: Tensors) -> Tensors:
        """The tensors of a file under the names of a checkpoint, whatever the file calls them. MisfitError says what
        the file looks like, and all that would have to change."""


@dataclass(frozen=True, slots=True)
class WantedWithDecoder:
    """A network whose outputs are read in pairs, by a decoder whose tensors may stand beside its own in a file."""

    network: WantedNetwork

    def fit(self, tensors: Tensors) -> Tensors:
        own, decoder = without_decoder(tensors)
        return with_decoder(self.network.fit(own), decoder)


def wanted_of(spec: GNNServiceSpec, network: WantedNetwork) -> WantedNetwork:
    """What a file of weights has to have for a service."""
    return WantedWithDecoder(network) if spec.task.asked().reads_pairs else network


def checkpoint_digest(model: Model) -> str | None:
    """Digest of the given weights; None: the model is trained. InputError: a file is missing, or another one."""
    return None if model.checkpoint is None else digest_of_weights(_FIELD, model.checkpoint)


def digest_of_weights(field: str, given: Checkpoint) -> str:
    """SHA-256 of the file of weights; with a file of a decoder's a digest of both."""
    own = pinned_digest(field, given.uri.path, given.sha256)
    if given.decoder is None:
        return own
    return _joined(own, pinned_digest(f"{field}.decoder", given.decoder.uri.path, given.decoder.sha256))


def _joined(own: str, decoder: str) -> str:
    return hashlib.sha256(f"{own}\n{decoder}".encode()).hexdigest()


def given_weights(
    model: Model, digest: str | None, wanted: WantedNetwork, progress: ProgressListener
) -> Tensors | None:
    """The weights of a model's checkpoint, as `load_checkpoint`; None: it is trained. `digest`: as of
    `checkpoint_digest`."""
    if model.checkpoint is None or digest is None:
        return None
    progress(Progress("load checkpoint", 0, 1))
    tensors = load_checkpoint(model.checkpoint, digest, wanted)
    progress(Progress("load checkpoint", 1, 1))
    return tensors


def load_checkpoint(given: Checkpoint, digest: str, wanted: WantedNetwork, field: str = _FIELD) -> Tensors:
    """Load the weights as float32 under the keys of a checkpoint, with those of a decoder as `with_decoder`.
    InputError: they are not those of the network."""
    path, beside = given.uri.path, given.decoder
    data = path.read_bytes()
    decoder = b"" if beside is None else beside.uri.path.read_bytes()
    own = hashlib.sha256(data).hexdigest()
    if (own if beside is None else _joined(own, hashlib.sha256(decoder).hexdigest())) != digest:
        raise InputError(f"{field}.uri", f"{path} changed while it was read", "start again when it is written")
    tensors = _fitting(f"{field}.uri", path, data, wanted.fit)
    if beside is None:
        return tensors
    network, twice = without_decoder(tensors)
    if twice:
        problem = f"names {beside.uri.path}, and {path} has tensors of a decoder too: {', '.join(sorted(twice))}"
        raise InputError(f"{field}.decoder", problem, "leave one of them out")
    return with_decoder(network, _fitting(f"{field}.decoder", beside.uri.path, decoder, lambda tensors: tensors))


def one_decoder(task: GenerationTask, given: Sequence[DecoderTensors]) -> GivenDecoder | None:
    """The decoder that all given weights are read by; None: outputs are answers, or no weights are given. InputError:
    weights do not have the task's decoder, or others than the first have another."""
    having = [one for one in given if one.tensors] or given[:1]
    if not having:
        return None
    first, *others = having
    decoder = task.given_decoder(first)
    for other in others:
        found = task.given_decoder(other)
        if decoder is not None and found is not None and not _are_equal(decoder.weights, found.weights):
            raise InputError(
                other.field, f"has other numbers than {first.field}",
                "pairs of a service are scored by one decoder: give variants that were trained with the same, or "
                "services of their own",
            )  # fmt: skip
    return decoder


def _are_equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def _fitting(field: str, path: Path, data: bytes, fit: Callable[[Tensors], Tensors]) -> Tensors:
    try:
        return fit(parse_safetensors(data))
    except MisfitError as error:
        raise InputError(field, f"{path}: {error.problem}", error.remedy) from error.__cause__


def given_decoder_of(field: str, given: Checkpoint, tensors: Tensors) -> DecoderTensors:
    """What weights have to score pairs by. `tensors`: those of `load_checkpoint`. `field`: of the checkpoint."""
    _, decoder = without_decoder(tensors)
    path = given.uri.path if given.decoder is None else given.decoder.uri.path
    named = str(path) if given.decoder is not None else ", ".join(f"{DECODER}{key}" for key in sorted(decoder))
    within = f"{path}, whose tensors of a decoder are called {DECODER}…"
    return DecoderTensors(f"{field}.decoder", decoder, named, within, "; for dot products write the encoder alone")
