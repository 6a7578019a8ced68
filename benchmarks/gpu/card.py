"""The GPU that figures and outcomes are of, and the libraries that it was used by."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any


def why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "torch sees none that CUDA can use"


def describe_card() -> dict[str, Any]:
    """The first GPU, as torch and its driver describe it."""
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memoryGiB": round(properties.total_memory / 2**30, 1),
        "processors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        **_driver(),
        "cuda": str(torch.version.cuda), "torch": torch.__version__, "triton": triton.__version__,
    }  # fmt: skip


def _driver() -> dict[str, str]:
    """The driver's version and how the card is connected, as far as its own program says."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    wanted = {"driver": "driver_version", "pcieGeneration": "pcie.link.gen.max", "pcieLanes": "pcie.link.width.max"}
    command = [program, f"--query-gpu={','.join(wanted.values())}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(wanted, values, strict=False)) if done.returncode == 0 else {}
