"""Making untrusted texts safe for a terminal: a server's, or those of a foreign repository."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control and invisible characters as `?`; line breaks stay."""
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in text.split("\n"))


def printable_line(text: str) -> str:
    return printable(text).replace("\n", "?")
