"""Training over several types, whatever is learnt: once, also where a generation is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.resume import Resumption
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    import torch

MASTER = "network"
"""Name of the one network that is trained."""


def trainer() -> str:
    """The packages that train, and their versions."""
    packages = ("gnnserve", "torch", "torch_geometric")
    return ", ".join(f"{package} {version(package)}" for package in packages)


def learn_master(
    learn: Callable[[torch.device], tuple[Tensors, TrainingRun]], identity: RevisionIdentity, repository: Repository,
    progress: ProgressListener, *, use_gpu: bool,
) -> tuple[Tensors, Sequence[TrainingRun]]:  # fmt: skip
    """What `learn` returns, or what an interrupted generation has learnt already."""
    # Imported here: torch takes many seconds.
    progress(Progress("load torch", 0, 1))
    from gnnserve_worker.generation.device import training_device  # noqa: PLC0415
    from gnnserve_worker.generation.networks import CPU  # noqa: PLC0415

    device, which = training_device() if use_gpu else (CPU, "")
    progress(Progress("load torch", 1, 1, which))
    kept = repository.kept_networks(identity.recipe, identity.graph, 0)
    made_for = {
        "recipe": identity.recipe, "graph": identity.graph, "generator": trainer(), "device": device.type,
    }  # fmt: skip

    def train() -> tuple[Tensors, Sequence[TrainingRun]]:
        tensors, run = learn(device)
        return tensors, (run,)

    return Resumption(kept, made_for, progress).network(MASTER, {"columns": "all"}, train)
