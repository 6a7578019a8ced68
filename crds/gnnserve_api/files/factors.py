"""Which of the listed pruning factors were left out before anything was trained for them, and why."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gnnserve_api.files.profile import Share

_MAX_WHY = 800


class ColumnsTrial(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Two short trainings that differ in their columns alone."""

    factor: Annotated[int, Meta(ge=2, description="Of the one with fewer columns.")]
    epochs: Annotated[int, Meta(ge=1)]
    all_columns: Annotated[Share, Meta(description="Validation score of the network of all columns.")]
    fewer_columns: Annotated[Share, Meta(description="Validation score of the other one.")]


class ChosenFactors(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Factors that spec.variants.pruning.choice: Auto came to."""

    left_out: Annotated[tuple[int, ...], Meta(description="Factors that nothing was trained for, ascending.")]
    why: Annotated[str, Meta(max_length=_MAX_WHY, description="Why they were left out, or none was.")]
    model_error: Annotated[float, Meta(ge=0, description="Median relative error of the model of latencies.")]
    trial: Annotated[
        ColumnsTrial | None, Meta(description="null: weights are given, links are scored, or no factor was slow.")
    ] = None
