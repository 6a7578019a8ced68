"""Parts of sentences that several messages have, and excerpts of a user's text: short, and harmless to a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence


def in_words(items: Sequence[str], word: str = "and") -> str:
    """`x1`, `x1 and x2`, `x1, x2 and x4`. `word`: before the last one."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"


def shown(value: object) -> str:
    """JSON, as YAML readers know it, and short."""
    return short(whole(value))


def whole(value: object) -> str:
    """JSON of any length."""
    return json.dumps(value, ensure_ascii=False, default=str)


def short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    """Control characters as escapes: a manifest must not steer the terminal that shows what is wrong with it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sentence(text: str) -> str:
    """Another program's message on one line, without the full stop, so that a sentence can continue after it."""
    return " ".join(text.split()).rstrip(".;, ")
