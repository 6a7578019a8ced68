"""docs/operator.md names every reason, event, condition and metric that there is, and no other."""

from __future__ import annotations

import re

from tests.support.pages.pages import read_page

from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator.decide.status import LOSSES, TURNING
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.slow_loop import RoutingMemory

PAGE = read_page("operator.md")


def rows_after(heading: str) -> list[str]:
    """First cells of the table whose head begins so."""
    _, _, after = PAGE.partition(f"| {heading} |")
    lines = after.splitlines()[2:]
    table = lines[: next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [line.split("|")[1].strip().strip("`") for line in table]


def test_every_reason_says_what_to_do() -> None:
    assert rows_after("reason") == [reason.value for reason in Reason]


def test_every_condition_is_explained() -> None:
    assert rows_after("condition") == [condition.value for condition in ConditionType]


def test_every_condition_whose_turns_are_events_is_named() -> None:
    _, _, after = PAGE.partition("Events tell the turning points: ")
    events, _, _ = after.partition("\n\n")
    named = re.findall(r"`(\w+)`", events)
    assert [name for name in named if name in set(ConditionType)] == [
        "Ready",
        "Available",
        "Stalled",
        *LOSSES,
        *TURNING,
    ]


def test_every_metric_is_listed() -> None:
    listed = {re.sub(r"\{.*", "", name) for name in rows_after("metric")}
    metrics = Metrics(RoutingMemory())
    metrics.observe_services(dict, dict, dict)
    families = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}
    assert listed == {name for name in families if name.startswith("gnnserve_")}
