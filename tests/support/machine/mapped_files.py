"""Files that this process has mapped or open, as the system tells it: what a revision that is gone must not keep."""

from __future__ import annotations

from pathlib import Path


def held_files(folder: Path) -> set[str]:
    """Files below the folder that are mapped into memory or open."""
    below = f"{folder.resolve()}/"
    mapped = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if below in line}
    opened = set()
    for number in Path("/proc/self/fd").iterdir():
        try:
            opened.add(str(number.readlink()))
        except OSError:
            continue  # that of the listing itself
    return {path for path in mapped | opened if path.startswith(below)}
