"""What to train on. Serving and profiling never leave the processor."""

from __future__ import annotations

import torch

from gnnserve_worker.generation.networks import CPU


def training_device() -> tuple[torch.device, str]:
    """The first GPU that torch can use, or the CPU, and its name for messages."""
    if not torch.cuda.is_available():
        return CPU, "on the CPU: torch sees no GPU"
    device = torch.device("cuda", 0)
    return device, f"on {torch.cuda.get_device_name(device)}"
