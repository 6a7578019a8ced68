"""Excerpts of a user's text for messages: short, and harmless to a terminal."""

from __future__ import annotations

import json


def shown(value: object) -> str:
    """JSON, as YAML readers know it, and short."""
    return short(json.dumps(value, ensure_ascii=False, default=str))


def short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    """Control characters as escapes: a manifest must not steer the terminal that shows what is wrong with it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
