"""Networks that were trained for a revision that is not published yet, so that an interrupted generation can go on.

Each has a folder with its weights and, written last, `network.json`: what it was trained for, how training went, and a
checksum of all. `Repository.stage` removes them once the revision is published. What a network depends on beside recipe
and graph is known to `generation/learning.py` and compared there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api import decoding
from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import FileEntry, checksum_of
from gnnserve_api.training import TrainingRun
from gnnserve_worker.repository import files, paths


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
    """Those of one recipe and graph. Made by `Repository.kept_networks`; its callers hold the lock."""

    def __init__(self, folder: Path, spare_bytes: int) -> None:
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
            manifest = _decode(data)
            tensors = safetensors.numpy.load(_read(folder / paths.NETWORK_WEIGHTS, manifest.weights))
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
            files.commit(folder / paths.NETWORK_COMMIT, _encode(manifest))


def _encode(manifest: _NetworkManifest) -> bytes:
    content = msgspec.json.decode(msgspec.json.encode(manifest))
    content["checksum"] = checksum_of(content)
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _decode(data: bytes) -> _NetworkManifest:
    manifest = decoding.decode(data, _NetworkManifest)
    if manifest.checksum != checksum_of(msgspec.json.decode(data)):
        raise ValueError(f"the checksum of {paths.NETWORK_COMMIT} is not {manifest.checksum!r}")
    return manifest


def _read(path: Path, entry: FileEntry) -> bytes:
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise ValueError(f"the SHA-256 of {path.name} is {found}, expected {entry.sha256}")
    return data


def _unusable(folder: Path, problem: str) -> DamagedError:
    return DamagedError(folder, problem, "it is trained again")
