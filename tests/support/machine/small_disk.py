"""A disk that is small and soon full: a tmpfs of its own, which only root can mount."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.lacks import lacks_root


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fills the disk until not a byte more fits."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (65_536, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        lacks_root("only root can mount a small disk")
    path = folder / "small-disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.fail(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: what is still mapped of it must not fail the test.
        subprocess.run(["umount", "--lazy", path], check=True)
