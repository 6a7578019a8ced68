"""What training needs beside a network: torch, a device, and networks that were trained before an interruption."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from gnnserve_worker.progress import Progress

if TYPE_CHECKING:
    import torch

    from gnnserve_worker.generation.preparation import Wanted
    from gnnserve_worker.generation.resume import Resumption


def generator_of(*, trains: bool) -> str:
    """The packages that make a revision, and their versions, as its manifest names them."""
    packages = ("gnnserve", *(("torch", "torch_geometric") if trains else ()))
    return ", ".join(f"{package} {version(package)}" for package in packages)


class Learning(NamedTuple):
    device: torch.device
    """Device to train on."""
    resumption: Resumption
    """Networks that were trained before an interruption."""


def begin_learning(wanted: Wanted, tables_bytes: int, *, use_gpu: bool) -> Learning:
    """Load torch. `tables_bytes`: room on the disk that networks which are kept leave to tables."""
    progress, identity = wanted.progress, wanted.identity
    # Imported here: torch and torch_geometric take many seconds.
    progress(Progress("load torch", 0, 1))
    from gnnserve_worker.generation.device import training_device  # noqa: PLC0415
    from gnnserve_worker.generation.networks import CPU  # noqa: PLC0415
    from gnnserve_worker.generation.resume import Resumption  # noqa: PLC0415

    device, which = training_device() if use_gpu else (CPU, "")
    progress(Progress("load torch", 1, 1, which))
    made_for = {
        "recipe": identity.recipe, "graph": identity.graph, "generator": generator_of(trains=True),
        "device": device.type,
    }  # fmt: skip
    kept = wanted.repository.kept_networks(identity.recipe, identity.graph, tables_bytes)
    return Learning(device, Resumption(kept, made_for, progress))
