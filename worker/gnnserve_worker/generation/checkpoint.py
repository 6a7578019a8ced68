"""Reading weights that the user gives, and checking them against the manifest and the graph.

Which tensors a network has, and what would have to change where a file has others, is the wanted network's to know:
over rows of nodes `checkpoint_over_rows.py`, over relations `checkpoint_over_relations.py`. This needs no torch, so
that a service with given weights is ready within seconds. Every message names the file, the key, what was found, what
was expected and what to change.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
import safetensors

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation.checkpoint_layout import MisfitError
from gnnserve_worker.graph.sources.files import pinned_digest
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import Progress, ProgressListener

_FIELD = "spec.model.checkpoint"
_HOW_TO_WRITE = "write it with `safetensors.torch.save_file(model.state_dict(), PATH)`"
_PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of files that torch.save writes, in its new and its old format."""
_COUNTERS = ("num_batches_tracked", "n_averaged")
"""Integers that count, in norms and in averages of weights (torch.optim.swa_utils): no scores depend on them."""
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


class WantedNetwork(Protocol):
    """A network over a graph, as the manifest describes it, of which weights are given."""

    def fit(self, tensors: Tensors) -> Tensors:
        """The tensors of a file under the names of a checkpoint, whatever the file calls them. MisfitError says what
        the file looks like, and all that would have to change."""


def checkpoint_digest(model: Model) -> str | None:
    """SHA-256 of the given weights; None: the model is trained. InputError: the file is missing, or another one."""
    given = model.checkpoint
    return None if given is None else pinned_digest(_FIELD, given.uri.path, given.sha256)


def given_weights(
    model: Model, digest: str | None, wanted: WantedNetwork, progress: ProgressListener
) -> Tensors | None:
    """The weights of a model's checkpoint; None: it is trained. `digest`: as of `checkpoint_digest`."""
    if model.checkpoint is None or digest is None:
        return None
    progress(Progress("load checkpoint", 0, 1))
    tensors = load_checkpoint(model.checkpoint, digest, wanted)
    progress(Progress("load checkpoint", 1, 1))
    return tensors


def load_checkpoint(given: Checkpoint, digest: str, wanted: WantedNetwork) -> Tensors:
    """Load the weights as float32 under the keys of a checkpoint. InputError: they are not those of the network."""
    path = given.uri.path
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{_FIELD}.uri", f"{path} changed while it was read", "start again when it is written")
    try:
        return wanted.fit(_parse(data))
    except MisfitError as error:
        raise InputError(f"{_FIELD}.uri", f"{path}: {error.problem}", error.remedy) from error.__cause__


def _parse(data: bytes) -> Tensors:
    """The tensors of a file, as float32 under its own keys. MisfitError: it is not one of finite numbers."""
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        problem = f"is not a safetensors file: {error}"
        if data.startswith(_PICKLES):  # checked last, since the length of a safetensors header may look like a pickle
            problem = "is a pickle, as torch.save writes it, which may run code when it is read"
        raise MisfitError(problem, _HOW_TO_WRITE) from error
    tensors = {}
    for key, entry in sorted(one for one in entries if one[0].rpartition(".")[2] not in _COUNTERS):
        values = _to_float32(entry["dtype"], entry["data"])
        if values is None:
            raise MisfitError(f"{key} is {entry['dtype']}, expected floats", "convert the tensor")
        if not np.isfinite(values).all():
            raise MisfitError(f"{key} has values that are not finite", "train the model again")
        tensors[key] = values.reshape(entry["shape"])
    return tensors


def _to_float32(dtype: str, data: bytes) -> np.ndarray | None:
    if dtype == "BF16":
        return (np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype not in _FLOATS:
        return None
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return np.frombuffer(data, dtype=_FLOATS[dtype]).astype(np.float32)
