"""Triton's interpreter, as fast as tests need it.

At every launch, and at every call of one kernel function by another, the interpreter looks through all of
`triton.language` for what it has to replace by its own functions, and after a launch it puts everything back: more than
half of the time of small kernels. A process of tests interprets or compiles, never both (`TRITON_INTERPRET` is read
once), so the language is replaced at the first launch and stays replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from triton.runtime import interpreter


class _Kept:
    """In place of the record of what was replaced."""

    def restore(self) -> None: ...


def patch_language_once() -> None:
    """Replace the language by the interpreter's at the first launch only. Does nothing if called again."""
    patch: Callable[[Any], Any] = interpreter._patch_lang
    if patch.__module__ != interpreter.__name__:
        return
    kept = _Kept()
    is_patched = False

    def patch_once(function: Any) -> _Kept:
        nonlocal is_patched
        if not is_patched:
            patch(function)
            is_patched = True
        return kept

    interpreter._patch_lang = patch_once


def skip_overflow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute sums and products of integers once, as a GPU does. The interpreter computes them in 64 bits as well and
    compares, which is a quarter of its time. Tests of kernels and of architectures keep that."""
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
