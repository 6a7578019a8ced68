"""Modules of these tests have equal weights each time, and an equal program is translated once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.support.programs.translations import keeping


@pytest.fixture(autouse=True, scope="module")
def kept_translations() -> Iterator[None]:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", keeping(torch.onnx.export))
        yield


@pytest.fixture(autouse=True)
def equal_weights() -> None:
    torch.manual_seed(0)
