"""Writing what `--out` names: an error of the file system becomes a sentence that names the option."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnnserve_api.errors import ResourceError, remedy_of

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raises ResourceError for an OSError inside the block, which leaves nothing half-written behind."""
    try:
        yield
    except OSError as error:
        wanted = "free some space, or name a place on another disk" if error.errno in _FULL else "name another folder"
        raise ResourceError(
            f"--out: {str(out)!r} cannot be written: {error.strerror or error}; {remedy_of(error, wanted)}"
        ) from error
