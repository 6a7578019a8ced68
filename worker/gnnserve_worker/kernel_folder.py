"""Folders of compiled kernels: where they lie, for which version, and whether their files may be read.

numba keeps machine code in pickles, and reading a pickle can run code. So kernels are read only from where root, who
makes images, and this user alone can write: before anything is read, owner and mode are looked at, of the folder, its
files and the folders above. What others could have written is left alone, said in the log, and compiled elsewhere.

What kernels are made of (sources, compiler, kind of processor) names their folder, so that stale ones are never found:

- `SHIPPED` is the image's, filled when that is built (`compile_kernels.py --ship`) and read-only in pods.
- NUMBA_CACHE_DIR, an administrator's choice, comes before it.
- `user_root()` is for all others: installations without kernels, and what may not be read.
"""

from __future__ import annotations

import grp
import hashlib
import logging
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import llvmlite
import numba
import numpy as np

_log = logging.getLogger(__name__)

PACKAGE = Path(__file__).parent
SHIPPED = PACKAGE / "__pycache__" / "kernels"
"""The image's kernels. Whatever leaves bytecode out of account, such as git, leaves these out."""
_SOURCES = ("kernels", "graph", "sampling", "tables", "models", "caching")
"""Folders whose code may be part of a kernel of another file."""
_MOST_FOLDERS = 8
"""Versions that are kept under one root, 20 MB each."""
_NAME_LENGTH = 16


@cache
def source_stamp() -> bytes:
    """Digest of all sources that may be part of a kernel."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _SOURCES for path in (PACKAGE / folder).rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def function_stamp(file: Path, qualified_name: str) -> str:
    """Digest that tells a function from others in the same folder, by its place in the package. Where its own file is
    not part of `source_stamp`, that is part of the digest."""
    place = file.relative_to(PACKAGE) if file.is_relative_to(PACKAGE) else file
    content = b"" if place.parts[0] in _SOURCES else file.read_bytes()
    return _digest(str(place), qualified_name, hashlib.sha256(content).hexdigest())


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_NAME_LENGTH]


def folder_name(target: str) -> str:
    """Name of the folder for kernels of these sources and this compiler, for a kind of processor."""
    versions = (numba.__version__, llvmlite.__version__, np.__version__, str(sys.implementation.cache_tag))
    return _digest(source_stamp().hex(), target, *versions)


def user_root() -> Path:
    """The user's folder for kernels. Raises RuntimeError where the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "gnnserve" / "kernels"


@cache
def folder_for(target: str) -> Path | None:
    """Folder to read kernels for that kind of processor from, and to keep new ones in where it can be written. None:
    there is none that this user may trust, or make."""
    name = folder_name(target)
    for root in _roots(name):
        folder = root.resolve() / name
        if not os.access(folder, os.R_OK | os.X_OK) and not can_be_written(folder):
            continue
        if (reason := why_distrusted(folder)) is None:
            with suppress(OSError):
                os.utime(folder)  # in use, for `_forget_old`
            return folder
        _log.warning(
            "%s: compiled kernels are neither read from here nor kept here, since reading them runs code: %s. Take the "
            "right to write from others (chmod go-w), or let NUMBA_CACHE_DIR name a folder of this user's own",
            *(folder, reason),
        )
    return None


def _roots(name: str) -> Iterator[Path]:
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named)
    elif (SHIPPED / name).is_dir():
        yield SHIPPED
    with suppress(RuntimeError):
        yield user_root()


def can_be_written(folder: Path) -> bool:
    """Whether this user can write files to the folder, or make it first."""
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def make(folder: Path) -> None:
    """Make the folder where it is not there. Raises OSError where that cannot be done, or where others could write to
    it by now."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    for path in reversed(missing):
        # Who trusts no files but those of root and his own can read only root's.
        path.mkdir(mode=0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
    if (reason := why_distrusted(folder)) is not None:
        raise PermissionError(reason)
    if missing:
        with suppress(OSError):  # another process does the same
            _forget_old(folder.parent)


def _forget_old(root: Path) -> None:
    """Remove all but the folders that were used last."""
    folders = [path for path in root.iterdir() if len(path.name) == _NAME_LENGTH and path.is_dir()]
    for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-_MOST_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)


def why_distrusted(folder: Path) -> str | None:
    """Reason not to read code from the folder, whose path has no links; None: only root and this user could have
    written what is there. A folder that does not exist will be this user's."""
    try:
        for path in (*reversed(folder.parents), folder):
            if not os.path.lexists(path):
                return None
            status = path.lstat()
            # As in /tmp: others cannot put another folder in the place of this user's.
            is_sticky = path != folder and bool(status.st_mode & stat.S_ISVTX)
            if (reason := _access_of_others(status, is_reachable=not is_sticky)) is not None:
                return f"{path} {reason}"
        is_open = bool(status.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process has just replaced it
                    status = entry.stat(follow_symlinks=False)
                    if (reason := _access_of_others(status, is_reachable=is_open)) is not None:
                        return f"{entry.path} {reason}"
    except OSError as error:
        return str(error)
    return None


def _access_of_others(status: os.stat_result, *, is_reachable: bool) -> str | None:
    """`is_reachable`: whether the right to write it is of any use to others."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not is_reachable:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everyone"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"can be written by group {status.st_gid}"
    return None


def _is_own_group(group_id: int) -> bool:
    """Whether that is the group which many systems make for each user alone, and let write what the user makes."""
    if os.geteuid() == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return user.pw_gid == group_id and user.pw_name == group.gr_name and {*group.gr_mem} <= {user.pw_name}
