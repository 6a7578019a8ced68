"""Commits that are measured beside each other: a clean working tree of each, and the environment of its processes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools.calls import variables_of

from benchmarks.shapes import CACHE

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Commit:
    name: str
    """`old` or `new`."""
    id: str
    folder: Path
    """A clean checkout."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes."""
        return variables_of(self.folder)


def check_out(name: str, commit: str) -> Commit:
    """A clean working tree, kept from one run to the next, so that its kernels are not compiled every time.

    `HEAD` has one folder, whichever commit it is: kernels stay as they are while no file with kernels changes."""
    resolved = _git("rev-parse", f"{commit}^{{commit}}")
    folder = CACHE / "regression" / ("head" if commit == "HEAD" else resolved[:12])
    if not (folder / ".git").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "fetch", "--quiet", str(ROOT), resolved], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", "--force", "--detach", resolved], check=True)
    return Commit(name, resolved, folder)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()
