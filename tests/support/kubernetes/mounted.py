"""A Secret as the kubelet mounts it: files are links into a folder that is swapped whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

_numbers = itertools.count()


def mount(folder: Path, content: Mapping[str, str | bytes]) -> None:
    """Puts that content there, or in place of what is there."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"..2026_11_21_{next(_numbers)}"
    fresh.mkdir()
    for name, value in content.items():
        (fresh / name).write_bytes(value.encode() if isinstance(value, str) else value)
    swapped = folder / "..data_tmp"
    swapped.symlink_to(fresh.name)
    swapped.replace(folder / "..data")
    for link in folder.iterdir():
        if not link.name.startswith("..") and link.name not in content:
            link.unlink()
    for name in content:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
