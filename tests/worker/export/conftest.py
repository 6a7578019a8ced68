"""Equal manifests give equal weights: an equal program is translated once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.programs.translations import translations_kept


@pytest.fixture(autouse=True, scope="module")
def kept_translations() -> Iterator[None]:
    with translations_kept():
        yield
