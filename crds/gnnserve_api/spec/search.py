"""How variants are searched for: whether, and what it may take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.fields import ApiModel

MAX_SEARCHED_VARIANTS = 16
"""Most variants that a search may keep."""


class Search(StrEnum):
    DISABLED = "Disabled"
    """The variants that are listed."""
    AUTO = "Auto"
    """Variants of all families are made and measured, and those are kept that no other beats: which factors, storages,
    fan-outs and stored layers are worth having is found out."""


class SearchBudget(ApiModel):
    """Limits of a search. Read with `search: Auto` only."""

    seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Time for networks beside the first one, in seconds: none is trained that is expected to end later. The first
    network, and what is made of it without training, is not limited."""
    variants: Annotated[int, Field(ge=1, le=MAX_SEARCHED_VARIANTS)] = 8
    """Largest number of variants that a search keeps."""
