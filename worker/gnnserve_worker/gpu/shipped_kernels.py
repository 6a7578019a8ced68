"""Kernels that an image brings compiled, by architecture (`compile_ahead.py`): where Triton looks for them.

Triton keeps what it compiled in a folder of its own, one entry for each kernel with its constants, types and versions,
and looks there before it compiles. A pod's is empty at first, and an image cannot be written to: so entries of the
image for this card's architecture are linked into that folder. An entry of another version is never asked for.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).parent / "compiled"
"""Folder of an image's kernels."""
_log = logging.getLogger(__name__)


def folder_of(architecture: int, shipped: Path = SHIPPED) -> Path:
    """`architecture`: the compute capability times ten. Code for one is none of another's."""
    return shipped / f"sm_{architecture}"


def link_shipped(architecture: int, triton_folder: Path, shipped: Path = SHIPPED) -> int:
    """Link what there is for the architecture into Triton's folder; how many entries that were not there. Where that
    cannot be, kernels are compiled as without."""
    folder, linked = folder_of(architecture, shipped), 0
    if not folder.is_dir():
        return 0
    try:
        triton_folder.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():
            with suppress(FileExistsError):
                (triton_folder / entry.name).symlink_to(entry)
                linked += 1
    except OSError as error:
        _log.warning("kernels of %s are compiled again, since %s cannot be used: %s", folder, triton_folder, error)
    return linked
