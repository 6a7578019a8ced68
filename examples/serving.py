"""What the applications here share: the server that they start, `gnnserve run` beside them, and an option of theirs."""

from __future__ import annotations

import argparse
import importlib.util
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


def picture_file(text: str) -> Path:
    """The file of `--picture`, refused before the minute that it takes to have something to draw."""
    path = Path(text)
    if path.suffix.lower() not in {".svg", ".png"}:
        raise argparse.ArgumentTypeError(f"{text!r} ends neither in .svg nor in .png; give the file one of the two")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib; `pip install 'gnnserve[pictures]'` brings it")
    return path
