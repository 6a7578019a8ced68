"""Folders that cannot be written to, by root neither: mounted read-only where root runs the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Take the right to write the folder, and what is in it, from everyone, until the end."""
    if os.geteuid() != 0:
        paths = [path for path in (folder, *folder.rglob("*")) if path.is_dir()]
        for path in paths:
            path.chmod(0o555)
        yield
        for path in paths:
            path.chmod(0o755)
        return
    _mount("--bind", folder, folder)
    try:
        _mount("-o", "remount,ro,bind", folder)
        yield
    finally:
        # Lazily: what is still mapped of it must not fail the test.
        subprocess.run(["umount", "--lazy", folder], check=True)


def _mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"no folder can be made read-only here: {done.stderr.strip()}")
