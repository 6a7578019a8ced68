"""Kept translations are found by equal programs alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.programs import translations
from torch.export import Dim, ExportedProgram, export


class Scaled(torch.nn.Module):
    def __init__(self, factor: float, weight: float) -> None:
        super().__init__()
        self.factor, self.weight = factor, torch.nn.Parameter(torch.tensor(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.factor


def exported(factor: float = 2.0, weight: float = 3.0, most: int = 8) -> ExportedProgram:
    example = (torch.ones(4, 2),)
    return export(Scaled(factor, weight), example, dynamic_shapes=({0: Dim("nodes", max=most)},), strict=False)


def test_a_program_that_differs_is_translated_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translations, "KEPT", tmp_path)
    made: list[str] = []

    def translate(_program: ExportedProgram, **_named: Any) -> Any:
        made.append(f"translation {len(made)}")
        return SimpleNamespace(save=lambda path, **_: path.write_text(made[-1]))

    keeping, saved = translations.keeping(translate), []
    calls: list[tuple[ExportedProgram, dict[str, Any]]] = [
        (exported(), {"opset_version": 18}),
        (exported(), {"opset_version": 18}),
        (exported(factor=2.5), {"opset_version": 18}),
        (exported(weight=3.5), {"opset_version": 18}),
        (exported(most=9), {"opset_version": 18}),
        (exported(), {"opset_version": 19}),
        (exported(), {"opset_version": 18, "custom_translation_table": {"operation": Path.exists}}),
    ]
    for place, (program, named) in enumerate(calls):
        keeping(program, **named).save(tmp_path / f"{place}.txt")
        saved.append((tmp_path / f"{place}.txt").read_text())
    assert saved == [f"translation {number}" for number in (0, 0, 1, 2, 3, 4, 5)]
