"""Objective of requests that state none of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.objective import Objective
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel


class ObjectiveSpec(ApiModel):
    """For requests that state none of their own. Absent or empty: the most accurate variant, no deadline."""

    latency_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    """Largest latency from arrival to answer, in milliseconds; the most accurate variant within that time answers.
    Absent: no deadline."""
    accuracy_tolerance_permille: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Permille of accuracy (10 is one point) that an answer may be below the most accurate variant. Absent: any, within
    `latencyMs`; without that too, the most accurate variant answers."""

    percentile: Annotated[float, Field(gt=0, le=99.99), Audience.OPERATOR] = 99
    """Percent of the requests that are to be answered in time, refused ones counted as missed; for the condition
    ObjectiveMet and for alerts."""

    def to_objective(self) -> Objective:
        return Objective(latency_ms=self.latency_ms, accuracy_tolerance_permille=self.accuracy_tolerance_permille)
