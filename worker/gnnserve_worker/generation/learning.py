"""What training needs beside a network: torch, a device, and networks that were learnt before an interruption.

A network is kept as soon as it is trained (`repository/kept.py`), and taken by a later generation of the same recipe
and graph if all that its weights depend on is the same. The training of each begins anew from its seed, so the revision
is the same as without the interruption. Whole networks are the unit: one that was being trained begins at its first
epoch again. Where a network cannot be kept or taken, it is trained as if nothing had been kept, and progress says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gnnserve_api.errors import DamagedError, StorageError
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.lessons import Models, TensorsAndRuns
from gnnserve_worker.generation.tensors import Tensors, with_decoder, without_decoder
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.kept import KeptNetwork, KeptNetworks
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    import torch


def generator_of(*, trains: bool) -> str:
    """The packages that make a revision, and their versions, as its manifest names them."""
    packages = ("gnnserve", *(("torch", "torch_geometric") if trains else ()))
    return ", ".join(f"{package} {version(package)}" for package in packages)


class Learning(NamedTuple):
    device: torch.device
    """Device to train on."""
    resumption: Resumption
    """Networks that were trained before an interruption."""


def begin_learning(
    identity: RevisionIdentity, repository: Repository, tables_bytes: int, progress: ProgressListener, *, use_gpu: bool
) -> Learning:
    """Load torch. `tables_bytes`: room on the disk that networks which are kept leave to tables."""
    # Imported here: torch and torch_geometric take many seconds.
    progress(Progress("load torch", 0, 1))
    from gnnserve_worker.generation.layers import CPU, training_device  # noqa: PLC0415

    device, which = training_device() if use_gpu else (CPU, "")
    progress(Progress("load torch", 1, 1, which))
    made_for = {
        "recipe": identity.recipe, "graph": identity.graph, "generator": generator_of(trains=True),
        "device": device.type,
    }  # fmt: skip
    kept = repository.kept_networks(identity.recipe, identity.graph, tables_bytes)
    return Learning(device, Resumption(kept, made_for, progress))


class Resumption:
    """Takes networks that were kept, and keeps those that are trained."""

    def __init__(self, kept: KeptNetworks, made_for: Mapping[str, str], progress: ProgressListener) -> None:
        """`made_for`: what the weights of every network depend on, as words by names."""
        self._kept = kept
        self._made_for = made_for
        self._progress = progress
        self._keeps = True

    def network(self, name: str, made_for: Mapping[str, str], train: Callable[[], TensorsAndRuns]) -> TensorsAndRuns:
        """The network that was kept under this name, or what `train` returns, which is then kept. `made_for`: what its
        weights depend on beside that of every network."""
        wanted = {**self._made_for, **made_for}
        if (found := self._find(name, wanted)) is not None:
            return dict(found.tensors), found.runs
        tensors, runs = train()
        self._keep(KeptNetwork(name, wanted, tensors, runs, datetime.now(UTC).isoformat(timespec="seconds")))
        return tensors, runs

    def _find(self, name: str, wanted: Mapping[str, str]) -> KeptNetwork | None:
        try:
            found = self._kept.find(name)
        except DamagedError as error:
            self._progress(Progress(f"kept {name} is not used", 1, 1, str(error)))
            return None
        if found is None:
            return None
        if (difference := _difference(found.made_for, wanted)) is not None:
            self._progress(Progress(f"kept {name} is not used", 1, 1, difference))
            return None
        epochs = max((run.epochs for run in found.runs), default=1)
        reached = "".join(f", validation {run.validation:.3f}" for run in found.runs[:1])
        self._progress(Progress(f"train {name}", epochs, epochs, f"trained before, {found.trained_at}{reached}"))
        return found

    def _keep(self, network: KeptNetwork) -> None:
        if not self._keeps:
            return
        try:
            self._kept.keep(network)
        except StorageError as error:
            # Once is enough: a later network finds the same disk.
            self._keeps = False
            self._progress(Progress("trained networks are not kept", 1, 1, str(error)))


class LearningModels(Models, Protocol):
    """A source of weights that are learnt here."""

    def use_decoder(self, decoder: Mapping[str, np.ndarray]) -> None:
        """Have all further networks be read by this decoder, which was learnt before."""


class ResumedModels:
    """The `lessons.Models` of another one, each network of which is trained once over all generations."""

    def __init__(self, models: LearningModels, resumption: Resumption) -> None:
        self._models = models
        self._decoder: Mapping[str, np.ndarray] = {}
        self._resumption = resumption
        self._runs: list[TrainingRun] = []

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return self._runs

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return self._decoder

    def master(self, name: str) -> Tensors:
        def make() -> Tensors:
            network = self._models.master(name)
            return with_decoder(network, self._models.decoder)

        network, self._decoder = without_decoder(self._network(name, {"columns": "all"}, make))
        self._models.use_decoder(self._decoder)
        return network

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._network(
            name, {"columns": digest_of({"columns": columns})}, lambda: self._models.pruned(columns, name)
        )

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        read = "all" if columns is None else digest_of({"columns": columns})
        made_for = {"columns": read, "channels": f"1/{factor}", "pruned": digest_of(wide)}
        return self._network(name, made_for, lambda: self._models.narrowed(wide, columns, factor, name))

    def another_master(self, seed: int, name: str) -> Tensors:
        made_for = {"columns": "all", "seed": str(seed)}
        return self._network(name, made_for, lambda: self._models.another_master(seed, name))

    def _network(self, name: str, made_for: Mapping[str, str], make: Callable[[], Tensors]) -> Tensors:
        def train() -> TensorsAndRuns:
            before = len(self._models.runs)
            return make(), self._models.runs[before:]

        tensors, runs = self._resumption.network(name, made_for, train)
        self._runs += runs
        return tensors


def digest_of(tensors: Mapping[str, np.ndarray]) -> str:
    """Digest of numbers by name, for `made_for`."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].dtype} {tensors[key].shape} ".encode())
        digest.update(np.ascontiguousarray(tensors[key]).tobytes())
    return digest.hexdigest()


def _difference(found: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first thing in which a kept network differs from the wanted one; None: there is none."""
    for key in sorted({*found, *wanted}):
        if found.get(key) != wanted.get(key):
            return f"it was trained for {key} {found.get(key)!r}, wanted {wanted.get(key)!r}; it is trained again"
    return None
