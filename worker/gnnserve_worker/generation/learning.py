"""What training needs beside a network: torch, a device, and networks that were trained before an interruption."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.kept import KeptNetworks

if TYPE_CHECKING:
    import torch

    from gnnserve_worker.generation.resume import Resumption


def generator_of(*, trains: bool) -> str:
    """The packages that make a revision, and their versions, as its manifest names them."""
    packages = ("gnnserve", *(("torch", "torch_geometric") if trains else ()))
    return ", ".join(f"{package} {version(package)}" for package in packages)


def load_torch(progress: ProgressListener, *, use_gpu: bool) -> torch.device:
    """The device to train on."""
    # Imported here: torch and torch_geometric take many seconds.
    progress(Progress("load torch", 0, 1))
    from gnnserve_worker.generation.device import training_device  # noqa: PLC0415
    from gnnserve_worker.generation.networks import CPU  # noqa: PLC0415

    device, which = training_device() if use_gpu else (CPU, "")
    progress(Progress("load torch", 1, 1, which))
    return device


def resumption_of(
    kept: KeptNetworks, identity: RevisionIdentity, generator: str, device: torch.device, progress: ProgressListener
) -> Resumption:
    # Imported here: given weights need none of it.
    from gnnserve_worker.generation.resume import Resumption  # noqa: PLC0415

    made_for = {
        "recipe": identity.recipe, "graph": identity.graph, "generator": generator, "device": device.type,
    }  # fmt: skip
    return Resumption(kept, made_for, progress)
