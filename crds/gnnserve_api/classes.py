"""The labels of a graph's classes, as its source calls them."""

from __future__ import annotations

from typing import TypeAlias

Classes: TypeAlias = tuple[int | str, ...]
"""Class labels in ascending order; all integers, or all texts. Not a union of two tuples, which msgspec cannot tell
apart."""
