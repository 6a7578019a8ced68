"""The address of the PostgreSQL that has the log of changes, read from a file: it has a password in it.

No message shows any part of it, since what is wrong with it is told in `GET /v1/route`.
"""

from __future__ import annotations

from pathlib import Path

from gnnserve_api.errors import InputError, remedy_of

_SCHEMES = ("postgresql://", "postgres://")
_MOST_BYTES = 4096
_FORM = "write postgresql://user:password@host/database, on one line"


def read_address(file: Path) -> str:
    """Raises InputError, which does not show what is there."""
    where = str(file)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InputError(where, f"cannot be read ({error.strerror})", remedy_of(error, _FORM)) from None
    if len(content) > _MOST_BYTES:
        raise InputError(where, f"has more than {_MOST_BYTES:,} bytes", _FORM)
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise InputError(where, "is not UTF-8 text", _FORM) from None
    if not text:
        raise InputError(where, "is empty", _FORM)
    if not text.startswith(_SCHEMES):
        raise InputError(where, "is not the address of a PostgreSQL", _FORM)
    if any(character.isspace() for character in text):
        raise InputError(where, "has a blank or a line break in it", f"{_FORM}; a blank in a password is %20")
    return text
