"""Programs for arm64 on a machine of another kind: Linux hands them to QEMU for as long as they are needed.

QEMU is Debian's, unpacked beside the other programs. The kernel keeps it open itself, so that it is found in a
container's file system too.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness import packages
from tests.cluster.harness.commands import only_one, output_of
from tests.cluster.harness.layout import Layout

_FORMATS = Path("/proc/sys/fs/binfmt_misc")
"""The kernel's list of formats of programs, and of what runs them."""
_ENTRY = _FORMATS / "gnnserve-aarch64"
_PROGRAM = "qemu-aarch64-static"
# The head of an ELF file of 64 bits, little-endian, for machine 183: a program or, by the mask, a shared object.
_HEAD = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


@contextmanager
def arm64_programs(layout: Layout) -> Iterator[None]:
    """Until its end, programs for arm64 run here. One process at a time: the kernel's list is the machine's."""
    if platform.machine() == "aarch64":
        yield
        return
    with only_one(layout.root / "emulation.lock", "run programs for arm64"):
        program = _unpacked(layout)
        mounted = not (_FORMATS / "register").exists()
        if mounted:
            output_of("mount", "-t", "binfmt_misc", "binfmt_misc", _FORMATS)
        _forget()
        (_FORMATS / "register").write_text(f":{_ENTRY.name}:M::{_HEAD}:{_MASK}:{program}:F")
        try:
            yield
        finally:
            _forget()
            if mounted:
                output_of("umount", _FORMATS)


def _forget() -> None:
    """A process that was killed has left the entry."""
    if _ENTRY.exists():
        _ENTRY.write_text("-1")


def _unpacked(layout: Layout) -> Path:
    program = layout.bin / _PROGRAM
    if not program.is_file():
        archive = packages.download(layout, "qemu-user-static")
        root = archive.parent / "root"
        output_of("dpkg-deb", "--extract", archive, root)
        layout.bin.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / "usr/bin" / _PROGRAM, program)
        shutil.rmtree(archive.parent, ignore_errors=True)
    return program
