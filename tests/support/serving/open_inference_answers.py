"""Answers to calls of the Open Inference Protocol, compared with what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check(expected: Any, found: Any, where: str = "answer") -> None:
    """Objects may have more fields than are expected; lists may not have more entries."""
    if isinstance(expected, Mapping):
        for name, value in expected.items():
            check(value, found[name], f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (value, other) in enumerate(zip(expected, found, strict=True)):
            check(value, other, f"{where}[{index}]")
    else:
        assert found == expected, where
