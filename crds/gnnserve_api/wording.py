"""Parts of sentences that several messages have."""

from __future__ import annotations

from collections.abc import Sequence


def in_words(items: Sequence[str], word: str = "and") -> str:
    """`x1`, `x1 and x2`, `x1, x2 and x4`. `word`: before the last one."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {word} {items[-1]}"
