"""Variants that consist of two others: the first answers, and passes on what it is least sure of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.rules import rule
from gnnserve_api.variants import MAX_STAGE_NAME, cascade_name

MAX_CASCADES = 4
MAX_PERCENTS = 3
"""Shares that one cascade is made for, at most."""
_DEFAULT_PERCENTS = (2, 5, 10)

StageName = Annotated[str, Field(min_length=1, max_length=MAX_STAGE_NAME)]


class Cascade(ApiModel):
    first: StageName
    """Name of the variant that every node goes through first, as in mlp2-int8: a cheap one. With task.links every pair
    does."""
    then: StageName
    """Name of the variant that nodes, or pairs, are passed on to, as in x1. No cascade, and another one than first."""
    pass_on_percents: Annotated[
        tuple[Annotated[int, Field(ge=1, le=99)], ...],
        Field(min_length=1, max_length=MAX_PERCENTS, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = _DEFAULT_PERCENTS
    """Percent of the validation nodes, or pairs, that the first variant passes on, the least confident ones: a variant
    for each, as mlp2-int8-then-x1-p5."""

    _stages_differ = rule("self.first != self.then", "first and then must be two variants[, and both are {self.first}]")

    def names(self) -> tuple[str, ...]:
        return tuple(cascade_name(self.first, self.then, percent) for percent in sorted(self.pass_on_percents))


def unknown_stages(cascades: Sequence[Cascade], existing: Collection[str]) -> list[tuple[str, str]]:
    """Stages that are none of these variants, each behind its place in the spec: not a rule of the schema, which would
    have to make all names."""
    return [
        (f"spec.variants.cascades[{place}].{field}", stage)
        for place, cascade in enumerate(cascades)
        for field, stage in (("first", cascade.first), ("then", cascade.then))
        if stage not in existing
    ]


def canonical_cascades(cascades: Sequence[Cascade]) -> tuple[Cascade, ...]:
    """The same where the same is made: neither their order nor that of percents does anything."""
    ordered = (one.model_copy(update={"pass_on_percents": tuple(sorted(one.pass_on_percents))}) for one in cascades)
    return tuple(sorted(ordered, key=lambda one: (one.first, one.then)))
