"""Settings of the process that runs the tests; they must be there before torch and triton are loaded."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    # Triton's kernels then run as Python, on arrays in the host's memory.
    os.environ["TRITON_INTERPRET"] = "1"

import gnnserve_worker.generation  # noqa: F401 - sets how torch's threads wait
