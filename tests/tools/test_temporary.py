"""Temporary files of tests: they lie in one folder, which is removed with what was left in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from tests.support.machine.temporary import PREFIX, removed_folder
from torch_geometric.nn import SAGEConv


def test_a_folder_is_removed_with_what_was_left_and_all_is_as_before() -> None:
    environment, before = {"TMPDIR": "elsewhere"}, tempfile.gettempdir()
    with removed_folder(environment) as folder:
        assert environment == {"TMPDIR": str(folder), "PYTEST_DEBUG_TEMPROOT": before}
        assert tempfile.gettempdir() == str(folder)
        assert folder.stat().st_mode & 0o7777 == 0o1777
        (folder / "left").mkdir()
        (folder / "left" / "module.py").touch()
    assert not folder.exists()
    assert environment == {"TMPDIR": "elsewhere"}
    assert tempfile.gettempdir() == before


def test_modules_that_torch_geometric_writes_are_in_such_a_folder(tmp_path: Path) -> None:
    class NeverComputedBefore(SAGEConv):  # type: ignore[misc]  # torch_geometric's classes are of type Any
        pass

    NeverComputedBefore(2, 2)(torch.zeros(2, 2), torch.tensor([[0], [1]]))
    folder = Path(os.environ["TMPDIR"])
    assert folder.name.startswith(PREFIX)
    assert [*folder.glob("*NeverComputedBefore_propagate_*.py")]
    assert folder not in tmp_path.parents  # what pytest keeps
