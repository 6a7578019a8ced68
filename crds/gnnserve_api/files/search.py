"""Results of a search for variants: which are kept, which are not, and why, a line each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_SEARCHED = 128
"""Most variants that a search looks at."""
_MAX_WHY = 400


class SearchedVariant(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    is_kept: bool
    why: Annotated[str, Meta(max_length=_MAX_WHY)]
    """Why it is in the revision, or why not, in words for people."""
    beaten_by: tuple[str, ...] = ()
    """Variants of the revision that are as accurate and as fast: one at every measured size, or one for each size."""


class SearchRecord(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0)]
    """What the search took, the training of the first network left out."""
    variants: Annotated[tuple[SearchedVariant, ...], Meta(max_length=MAX_SEARCHED)]
    """Those that are kept, in the order of the profile; then the others."""

    def lines(self) -> tuple[str, ...]:
        """A line for each variant."""
        return tuple(f"{'+' if one.is_kept else '-'} {one.name}: {one.why}" for one in self.variants)
