"""Context that training needs beside a network: torch, a device, and networks that were learnt before an interruption.

A network is kept as soon as it is trained, and taken by a later generation of the same recipe and graph if all that its
weights depend on is the same. The training of each begins anew from its seed, so the revision is the same as without
the interruption. Whole networks are the unit: one that was being trained begins at its first epoch again. Where a
network cannot be kept or taken, it is trained as if nothing had been kept, and progress says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api import decoding
from gnnserve_api.errors import DamagedError, StorageError
from gnnserve_api.files.repository import FileEntry, checksum_of
from gnnserve_api.files.training import TrainingRun
from gnnserve_worker.generation.lessons import Models, TensorsAndRuns
from gnnserve_worker.models.registry import Tensors, with_decoder, without_decoder
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.paths import RevisionIdentity
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    import torch


def generator_of(*, trains: bool) -> str:
    """The packages that make a revision, and their versions, as its manifest names them."""
    packages = ("gnnserve", *(("torch", "torch_geometric") if trains else ()))
    return ", ".join(f"{package} {version(package)}" for package in packages)


class LearningContext(NamedTuple):
    device: torch.device
    """Device to train on."""
    resumption: Resumption
    """Networks that were trained before an interruption."""


def begin_learning(
    identity: RevisionIdentity, repository: Repository, tables_bytes: int, progress: ProgressListener, *, use_gpu: bool
) -> LearningContext:
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
    kept = KeptNetworks(repository.kept_folder(identity.recipe, identity.graph), tables_bytes)
    return LearningContext(device, Resumption(kept, made_for, progress))


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


# --- files of networks that are kept


@dataclass(frozen=True, slots=True)
class KeptNetwork:
    name: str
    """What progress calls it: `x4`, `network of seed 6`."""
    made_for: Mapping[str, str]
    """All that its weights depend on, by names of its own."""
    tensors: Mapping[str, np.ndarray]
    runs: Sequence[TrainingRun]
    """What the revision records of its training; empty where it records nothing."""
    trained_at: str
    """UTC, RFC 3339."""


class _NetworkManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`network.json`. It has no version: one that does not fit is not used."""

    name: str
    made_for: dict[str, str]
    trained_at: str
    runs: tuple[TrainingRun, ...]
    weights: FileEntry
    checksum: str = ""
    """`checksum_of` the rest, as it stands in the file."""


class KeptNetworks:
    """Networks of one recipe and graph, each in a folder: its weights and, written last, `network.json`, which says
    what it was trained for, how training went, and a checksum of all. `Repository.stage` removes them once the revision
    is published. Callers hold the lock."""

    def __init__(self, folder: Path, spare_bytes: int) -> None:
        """`folder`: `Repository.kept_folder`. `spare_bytes`: what is left free for tables."""
        self._folder = folder
        self._spare_bytes = spare_bytes

    def find(self, name: str) -> KeptNetwork | None:
        """The network of that name, verified; None: there is none. DamagedError: it cannot be used."""
        folder = self._folder / paths.step_of(name)
        try:
            data = (folder / paths.NETWORK_COMMIT).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unusable(folder, f"cannot be read: {error.strerror}") from error
        try:
            manifest = _decode_manifest(data)
            tensors = safetensors.numpy.load(_read_verified(folder / paths.NETWORK_WEIGHTS, manifest.weights))
        except (OSError, ValueError, msgspec.MsgspecError, SafetensorError) as error:
            raise _unusable(folder, f"is damaged: {error}") from error
        if manifest.name != name:
            raise _unusable(folder, f"holds {manifest.name!r}, expected {name!r}")
        return KeptNetwork(name, manifest.made_for, tensors, manifest.runs, manifest.trained_at)

    def keep(self, network: KeptNetwork) -> None:
        """Write a network, in place of another one of its name. StorageError: it is not kept."""
        folder = self._folder / paths.step_of(network.name)
        data = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in network.tensors.items()})
        files.require_free(folder, len(data) + self._spare_bytes)
        if folder.exists():
            with files.storing(folder):
                files.remove_tree(folder)
        with files.discarding_unfinished(folder, paths.NETWORK_COMMIT):
            manifest = _NetworkManifest(
                name=network.name,
                made_for=dict(network.made_for),
                trained_at=network.trained_at,
                runs=tuple(network.runs),
                weights=files.write_file(folder / paths.NETWORK_WEIGHTS, data),
            )
            files.commit(folder / paths.NETWORK_COMMIT, _encode_manifest(manifest))


def _encode_manifest(manifest: _NetworkManifest) -> bytes:
    content = msgspec.json.decode(msgspec.json.encode(manifest))
    content["checksum"] = checksum_of(content)
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _decode_manifest(data: bytes) -> _NetworkManifest:
    manifest = decoding.decode(data, _NetworkManifest)
    if manifest.checksum != checksum_of(msgspec.json.decode(data)):
        raise ValueError(f"the checksum of {paths.NETWORK_COMMIT} is not {manifest.checksum!r}")
    return manifest


def _read_verified(path: Path, entry: FileEntry) -> bytes:
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise ValueError(f"the SHA-256 of {path.name} is {found}, expected {entry.sha256}")
    return data


def _unusable(folder: Path, problem: str) -> DamagedError:
    return DamagedError(folder, problem, "it is trained again")
