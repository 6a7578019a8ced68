"""Triton's interpreter, as fast as tests need it.

At every launch, and at every call of one kernel function by another, the interpreter looks through all of
`triton.language` for what it has to replace by its own functions, and after a launch it puts everything back: more than
half of the time of small kernels. A process of tests interprets or compiles, never both (`TRITON_INTERPRET` is read
once), so the language is replaced when it is first used and stays replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from triton import language
from triton.runtime import interpreter


class _Kept:
    """In place of the record of what was replaced."""

    def restore(self) -> None: ...


def patch_language_once() -> None:
    """Replace each module of the language by the interpreter's once. Does nothing if called again."""
    patch: Callable[[Any], Any] = interpreter._patch_lang
    if patch.__module__ != interpreter.__name__:
        return
    kept = _Kept()
    patched: set[frozenset[int]] = set()

    def patch_once(function: Any) -> _Kept:
        # Kernels see `triton.language`, functions of its own library see the module below it.
        seen = frozenset(id(each) for each in function.__globals__.values() if each in (language, language.core))
        if seen not in patched:
            patch(function)
            patched.add(seen)
            # Triton 3.6 makes an integer of an array of one dimension, which numpy 2.4 refuses; later ones do as this.
            language.tensor.__index__ = lambda tensor: int(tensor.handle.data.squeeze())
        return kept

    interpreter._patch_lang = patch_once


def skip_overflow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute sums and products of integers once, as a GPU does. The interpreter computes them in 64 bits as well and
    compares, which is a quarter of its time. Tests of kernels and of architectures keep that."""
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
