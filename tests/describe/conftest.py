"""Modules of these tests have equal weights each time, and an equal program is translated once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.support.programs.translations import translations_kept


@pytest.fixture(autouse=True, scope="module")
def kept_translations() -> Iterator[None]:
    torch.manual_seed(0)
    with translations_kept():
        yield


@pytest.fixture(autouse=True)
def equal_weights() -> None:
    torch.manual_seed(0)
