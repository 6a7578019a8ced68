"""How the applications here start their server: `gnnserve run` beside them, and its address once it answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[str]:
    """`gnnserve run` in a folder, at a free port; its address. What it says while it trains is printed. `arguments`:
    the manifest, and options."""
    command = [sys.executable, "-m", "gnnserve_cli", "run", *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith("Serving on "):
                    break
            else:
                sys.exit("gnnserve run ended; what it said is above")
            yield line.split()[-1]
        finally:
            process.terminate()
