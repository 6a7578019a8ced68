"""Files that a manifest names: whether they can be read, and whether they match a pinned digest."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from gnnserve_api.errors import InputError, remedy_of


def pinned_digest(field: str, path: Path, sha256: str | None) -> str:
    """SHA-256 of the file. Raises InputError when it cannot be read or does not match `sha256`. `field` holds both."""
    digest = digest_of(f"{field}.uri", path)
    if sha256 not in {None, digest}:
        raise InputError(
            f"{field}.sha256",
            f"{path} has SHA-256 {digest}, expected {sha256}",
            "restore the file, or change sha256 to serve this one",
        )
    return digest


_OTHER_KINDS = (
    (stat.S_ISFIFO, "a named pipe (FIFO)"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)


def require_file(field: str, path: Path) -> None:
    """Refuse a path that is not a regular file before it is opened: a FIFO would block, and a device may never end.

    Links are followed. Folders are left to the caller. Raises OSError and ValueError as `Path.stat` does.
    """
    mode = path.stat().st_mode
    for is_kind, name in _OTHER_KINDS:
        if is_kind(mode):
            raise InputError(
                field, f"{path} is {name}, expected a regular file", "write its content to a file, and name that"
            )


def why_unreadable(path: Path, error: OSError | ValueError) -> tuple[str, str]:
    """The problem and its remedy, for an InputError. ValueError: a zero byte in the name."""
    if isinstance(error, OSError):
        return f"cannot read {path}: {error.strerror}", remedy_of(error, "check the path")
    return f"cannot read {path}: {error}", "check the path"


def digest_of(field: str, path: Path) -> str:
    """SHA-256 of the file at `path`, which `field` names."""
    try:
        require_file(field, path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(field, *why_unreadable(path, error)) from error
