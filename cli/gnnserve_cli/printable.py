"""Texts of others as a terminal may show them: a server's, or a repository's that somebody else made."""

from __future__ import annotations


def printable(text: str) -> str:
    """What a terminal might obey, and what nobody could see, as `?`; lines stay lines."""
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in text.split("\n"))


def printable_line(text: str) -> str:
    return printable(text).replace("\n", "?")
