"""Translations of exported programs to ONNX, kept from one run of tests to the next.

torch translates an exported program for seconds, and equal ones equally: what `gnnserve-describe` and `gnnserve export`
export is exported each time, and only an exported program that differs is translated.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.programs.programs import KEPT
from torch.export import ExportedProgram

_TRANSLATORS = ("torch", "onnx", "onnxscript", "onnx-ir")
_PLACES = re.compile(r"# File: [^\n]*")
"""Comments that say which line of a module an operation is of, by a path of this machine."""


@dataclass(frozen=True, slots=True)
class KeptTranslation:
    """A translation in the place of torch's own."""

    file: Path

    def save(self, path: Path, *, external_data: bool = False) -> None:
        assert not external_data, "tensors are kept in the file itself"
        shutil.copy(self.file, path)


@contextmanager
def translations_kept() -> Iterator[None]:
    """Find translations of equal programs meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", keeping(torch.onnx.export))
        yield


def keeping(translate: Callable[..., Any]) -> Callable[..., KeptTranslation]:
    """Wrap `torch.onnx.export` of an exported program: what it raises is raised, and kept is what it gives."""

    def translate_once(program: ExportedProgram, **named: Any) -> KeptTranslation:
        digest = hashlib.sha256(b"\0".join(_known_by(program, named))).hexdigest()[:32]
        kept = KEPT / f"translated-{digest}.onnx"
        if not kept.exists():
            KEPT.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            translate(program, **named).save(part, external_data=False)
            part.rename(kept)
        kept.touch()
        return KeptTranslation(kept)

    return translate_once


def _known_by(program: ExportedProgram, named: Mapping[str, Any]) -> Iterator[bytes]:
    """All that a translation depends on: versions, the call, the program's operations and sizes, its tensors."""
    own = named.get("custom_translation_table", {})
    yield repr([version(name) for name in _TRANSLATORS]).encode()
    yield repr([(name, value) for name, value in named.items() if value is not own]).encode()
    for operation, function in own.items():
        yield f"{operation} {function.__qualname__}".encode()
        yield Path(inspect.getsourcefile(inspect.unwrap(function)) or "").read_bytes()
    yield _PLACES.sub("", str(program)).encode()
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        yield tensor.detach().contiguous().numpy().tobytes()
