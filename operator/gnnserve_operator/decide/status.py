"""What does the status say? The conditions with their times, and what a person looks for in `kubectl get`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gnnserve_api.generation import GenerationResult, VariantSummary
from gnnserve_api.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    GNNServiceStatus,
    VariantStatus,
    WorkersStatus,
)
from gnnserve_operator.decide.readiness import Conditions
from gnnserve_operator.decide.workers import Workers

Status = dict[str, Any]


def build_status(
    conditions: Conditions,
    *,
    result: GenerationResult | None,
    base_variant: str | None,
    repository_storage: str | None,
    workers: Workers,
    selector: str,
    endpoint: str | None,
    generation: int,
    before: Mapping[str, Any],
    now: datetime,
) -> Status:
    variants = () if result is None else result.variants
    status = GNNServiceStatus(
        observed_generation=generation,
        conditions=_build_conditions(conditions, generation, before, now),
        endpoint=endpoint,
        revision=None if result is None else result.revision,
        base_variant=base_variant if any(variant.name == base_variant for variant in variants) else None,
        variant_names=" ".join(variant.name for variant in variants) or None,
        variants=tuple(_variant(variant) for variant in variants),
        workers=WorkersStatus(
            replicas=workers.existing,
            ready_replicas=len(workers.ready),
            ready=f"{len(workers.ready)}/{workers.wanted}",
            selector=selector,
        ),
        repository_storage=repository_storage,
    )
    said = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    # As the API server would tell it: without what is empty.
    return {key: value for key, value in said.items() if value not in ([], "")}


def with_conditions(conditions: Conditions, generation: int, before: Mapping[str, Any], now: datetime) -> Status:
    """The status as it was, but for its conditions: everything else is not known anew."""
    said = {key: value for key, value in before.items() if key in _fields()}
    built = [
        condition.model_dump(mode="json", by_alias=True)
        for condition in _build_conditions(conditions, generation, before, now)
    ]
    return said | {"observedGeneration": generation, "conditions": built}


def is_said_already(status: Status, before: Mapping[str, Any]) -> bool:
    """Other managers' conditions are theirs; one of ours that is not said any more has to go."""
    ours = {kind.value for kind in ConditionType}
    live = {key: before[key] for key in _fields() if key in before}
    live["conditions"] = _by_type([c for c in before.get("conditions") or () if c.get("type") in ours])
    return live == status | {"conditions": _by_type(status["conditions"])}


def condition_in(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    """{} where it is not there."""
    return next((dict(c) for c in status.get("conditions") or () if c.get("type") == kind.value), {})


def _build_conditions(
    conditions: Conditions, generation: int, before: Mapping[str, Any], now: datetime
) -> tuple[Condition, ...]:
    built = []
    for kind, verdict in conditions.items():
        status = _STATUS_OF[verdict.holds]
        last = condition_in(before, kind)
        since = last.get("lastTransitionTime") if last.get("status") == status.value else None
        built.append(
            Condition(
                type=kind.value,
                status=status,
                reason=verdict.reason.value,
                message=verdict.message[:_LONGEST_MESSAGE],
                last_transition_time=since or now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                observed_generation=generation,
            )
        )
    return tuple(built)


_STATUS_OF = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}
_LONGEST_MESSAGE = 4096
"""Enough for every termination message; the schema would refuse what is over 32,768."""


def _variant(variant: VariantSummary) -> VariantStatus:
    return VariantStatus(
        name=variant.name,
        columns=variant.columns,
        accuracy=f"{variant.accuracy_permille / 1000:.4f}",
        latency_ms=f"{variant.latency_ms:.3g}",
    )


def _by_type(conditions: list[Any]) -> list[Any]:
    return sorted(conditions, key=lambda condition: str(condition["type"]))


def _fields() -> set[str]:
    return {field.alias or name for name, field in GNNServiceStatus.model_fields.items()}
