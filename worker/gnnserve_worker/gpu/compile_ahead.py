"""Ahead-of-time compilation of the GPU's kernels, for cards that are not there.

`python -m gnnserve_worker.gpu.compile_ahead FOLDER` runs when an image is built. Kernels are compiled with constants
of a network and its tables (`kernels/gather.py`), so that an image can bring those of networks that are known before:
by default those of `spec.model`'s defaults, over projected tables, whose rows are as wide as the hidden layer. An image
of one's own takes the options for its networks. What is to be compiled is listed nowhere: the engine itself runs over
made-up revisions, on arrays in the host's memory, and each launch compiles and launches nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from gnnserve_api.device import CachePolicy
from gnnserve_api.files.profile import Compute
from gnnserve_api.spec.model import Architecture, Model
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.absent_driver import use_absent_card
from gnnserve_worker.gpu.accelerator import RowsToWrite, Runner
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.kernels.bounds import ARCHITECTURES
from gnnserve_worker.gpu.kernels.launch import INTERPRETED, compile_only
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.resident import Means, make_resident
from gnnserve_worker.gpu.shipped_kernels import folder_of
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.models.registry import OF_ONE_TYPE, spec_of
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import Aggregator

_NODES, _DEGREE, _CLASSES = 64, 4, 3
_FEATURES: Final = 24
"""Width of made-up features; no kernel of projected tables knows it."""
_FACTORS: Final = (1, 2, 4, 8)
_FREE_BYTES: Final = 64 * 2**30


@dataclass(frozen=True, slots=True)
class KernelTargets:
    """Networks and tables whose kernels are compiled."""

    networks: tuple[Architecture, ...]
    hidden: int
    fanouts: tuple[int, ...]
    storages: tuple[Storage, ...]
    features: int | None
    """Width of tables of features; None: kernels of projected tables alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    known = tuple(each for each in OF_ONE_TYPE if _draws(each))
    usual = Model(architecture=known[0])
    parser = argparse.ArgumentParser(prog="python -m gnnserve_worker.gpu.compile_ahead", description=__doc__)
    parser.add_argument("folder", type=Path, help="where they are put, in a folder for each architecture")
    parser.add_argument("--architectures", type=int, nargs="+", default=ARCHITECTURES, help="default: %(default)s")
    parser.add_argument("--networks", type=Architecture, nargs="+", choices=known, default=known)
    parser.add_argument("--hidden", type=int, default=usual.hidden, help="default: %(default)s")
    parser.add_argument("--fanouts", type=int, nargs="+", default=usual.fanouts, help="default: %(default)s")
    parser.add_argument("--storages", type=Storage, nargs="+", choices=list(Storage), default=list(Storage))
    parser.add_argument("--features", type=int, help="width of features, for variants that read them; default: none")
    options = parser.parse_args(arguments)
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set: kernels are interpreted, and nothing is compiled")
    wanted = KernelTargets(
        tuple(options.networks), options.hidden, tuple(options.fanouts), tuple(options.storages), options.features
    )
    began_s = time.perf_counter()
    # Triton compiles for one card in the life of a process, and keeps its files in one folder.
    with ProcessPoolExecutor(len(options.architectures), get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = [
            pool.submit(compile_for, architecture, options.folder.resolve(), wanted)
            for architecture in options.architectures
        ]
        for architecture, future in zip(options.architectures, futures, strict=True):
            entries, size_bytes = future.result()
            into = folder_of(architecture, options.folder)
            print(f"sm_{architecture}: {entries} kernels of {size_bytes:,} bytes in {into}", flush=True)
    print(f"compiled in {time.perf_counter() - began_s:.0f} s")
    return 0


def compile_for(architecture: int, folder: Path, wanted: KernelTargets) -> tuple[int, int]:
    """Compile for one architecture; how many entries there are then, and their bytes. Once in a process."""
    into = folder_of(architecture, folder)
    into.mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(into)
    # What leads to the code is of no use to a GPU, and most of the bytes.
    os.environ["TRITON_STORE_BINARY_ONLY"] = "1"
    use_absent_card(architecture)
    with compile_only(), tempfile.TemporaryDirectory(prefix="gnnserve-ahead-") as root:
        for network in wanted.networks:
            _warm_up(Path(root), network, wanted)
    files = [path for path in into.rglob("*") if path.is_file()]
    return sum(entry.is_dir() for entry in into.iterdir()), sum(path.stat().st_size for path in files)


def _warm_up(root: Path, network: Architecture, wanted: KernelTargets) -> None:
    graph = made_up_graph(_NODES, _DEGREE, wanted.features or _FEATURES, _CLASSES)
    manifest = Model(architecture=network, hidden=wanted.hidden, fanouts=wanted.fanouts).network(_CLASSES)
    formats: list[tuple[Storage, Compute]] = [(storage, "float32") for storage in wanted.storages]
    formats += [(storage, "bfloat16") for storage in wanted.storages if not FORMATS[storage].is_exact]
    variants = [
        MadeUpVariant(f"p-{storage}-{compute}", 1, "projected", storage, compute) for storage, compute in formats
    ]
    if wanted.features is not None:
        variants += [
            MadeUpVariant(f"x{factor}-{storage}-{compute}", factor, "features", storage, compute)
            for storage, compute in formats
            for factor in _FACTORS
        ]
    repository = Repository(root, "ahead", network.value.lower())
    loaded = load_revision(repository, publish_made_up(repository, graph, manifest, variants).revision)
    means = Means(CachePolicy.NONE, None, Ledger(), HostMemory())
    GpuEngine(loaded, make_resident(loaded, AbsentCard(), means)).warm_up()


def _draws(network: Architecture) -> bool:
    return spec_of(network).aggregator is not Aggregator.NONE


@dataclass(frozen=True, slots=True)
class AbsentCard:
    """An accelerator whose arrays lie in the host's memory, and which computes nothing that is meant."""

    name: str = "a card that is not there"
    lenders: tuple[torch.device, ...] = ()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def runner(self) -> Runner:
        return _Once()

    def free_bytes(self) -> tuple[int, ...]:
        return (_FREE_BYTES,)

    def settle(self) -> None: ...

    def upload(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def write(self, writes: Iterable[RowsToWrite]) -> int:
        return sum(rows.nbytes for _, _, rows in writes)

    def pinned(self, size: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(size, dtype=dtype)

    def register(self, address: int, size_bytes: int, *, read_only: bool) -> str | None:
        return None

    def unregister(self, address: int) -> None: ...

    def give_back(self) -> None: ...


class _Once:
    """Runs the stages of each key once, for what they compile."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()

    def run(self, key: Hashable, stages: Sequence[Callable[[], None]]) -> None:
        if key not in self._known:
            self._known.add(key)
            for stage in stages:
                stage()

    def wait(self) -> list[float]:
        return [0.0, 0.0, 0.0]

    def abandon(self) -> None: ...

    def forget(self, keys: Collection[Hashable] | None = None) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
