"""How many neighbours are sampled by single relations of a graph of several types."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.fields import ApiModel, text
from gnnserve_api.spec.rules import rule_of_each
from gnnserve_api.variants import MAX_LAYERS


class RelationFanouts(ApiModel):
    """Number of neighbours that are sampled by one relation of a graph of several types."""

    relation: Annotated[str, text(r"^[A-Za-z0-9_ -]+$", "the name of a relation", 200)]
    """Name of the relation, or source type, name and target type with blanks between. A reverse relation that importing
    added has `rev_` before the name."""
    fanouts: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """Number of neighbours sampled per layer by this relation: one entry for each of model.fanouts, none above the one
    there."""


relations_sample_fewer = rule_of_each(
    "self.relationFanouts",
    "one",
    "size(one.fanouts) == size(self.fanouts) && [0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(one.fanouts) || "
    "i >= size(self.fanouts) || one.fanouts[i] <= self.fanouts[i])",
    "each of relationFanouts must be smaller than fanouts {self.fanouts}[, and {one.fanouts} of {one.relation} is "
    "not]: as many numbers, none above it",
)
