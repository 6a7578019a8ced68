"""What the applications here share: the server that they start, `gnnserve run` beside them, and an option of theirs."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_cli.loadgen.picture import check_picture


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
    try:
        check_picture(Path(text))
    except InputError as error:
        raise argparse.ArgumentTypeError(f"{error.problem}; {error.remedy}") from None
    except ResourceError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)
