"""`spec.updates`: what goes together with it, in sentences that have the values; and where a log lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.pods.change_log import logs_folder, sqlite_file
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.updates import UpdatesSpec
from gnnserve_worker.repository.paths import ServicePaths

SQLITE: dict[str, Any] = {"log": {"sqlite": {}}}
BUDGET: dict[str, Any] = {**SQLITE, "refresh": {}}
FOLLOWED: dict[str, Any] = {"storedFollowChanges": True}
POSTGRES: dict[str, Any] = {"log": {"postgres": {"secretName": "log"}}}


def spec_of(updates: dict[str, Any], **rest: Any) -> GNNServiceSpec:
    graph = {"source": {"builtin": "Digits"}}
    return GNNServiceSpec.model_validate({"graph": graph, "updates": updates, **rest})


def test_they_are_off_by_default_and_take_two_gibibytes_where_they_are_on() -> None:
    assert GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}}).updates is None
    updates = spec_of(POSTGRES).updates
    assert updates is not None
    assert updates.max_delta == "2Gi"


def test_wherever_they_are_on_they_are_compacted() -> None:
    compaction = updates_of(spec_of(SQLITE)).compaction
    assert (compaction.delta_percent, compaction.changes, compaction.retrain) == (50, 10_000_000, False)
    own = updates_of(spec_of({**SQLITE, "compaction": {"deltaPercent": 20, "retrain": True}})).compaction
    assert (own.delta_percent, own.changes, own.retrain) == (20, 10_000_000, True)


def updates_of(spec: GNNServiceSpec) -> UpdatesSpec:
    assert spec.updates is not None
    return spec.updates


TAKEN = {
    "one worker with SQLite": (SQLITE, {"worker": {"replicas": 1}}),
    "none of them": (SQLITE, {"worker": {"replicas": 0}}),
    "several with PostgreSQL": (POSTGRES, {"worker": {"replicas": 9}}),
    "a limit above it": ({**SQLITE, "maxDelta": "1Gi"}, {"worker": {"resources": {"limits": {"memory": "1025Mi"}}}}),
    "no limit of memory": (SQLITE, {"worker": {"resources": {"limits": {"cpu": 1}}}}),
    "a Secret each": (
        POSTGRES, {"endpoint": {"tokens": {"secretName": "one"}, "writeTokens": {"secretName": "two"}}}
    ),
    "nobody who may write": (POSTGRES, {"endpoint": {}}),
    "workers on a GPU": (POSTGRES, {"worker": {"gpu": {}, "device": "GPU"}}),
    "a budget for a layer behind the first": (BUDGET, {"variants": FOLLOWED | {"stored": [1, 2]}}),
    "a budget for layers that a search tries": (BUDGET, {"variants": FOLLOWED | {"search": "Auto"}}),
}  # fmt: skip


@pytest.mark.parametrize(("updates", "rest"), TAKEN.values(), ids=TAKEN)
def test_what_goes_together(updates: dict[str, Any], rest: dict[str, Any]) -> None:
    assert spec_of(updates, **rest).updates is not None


WITHOUT_STALE_ROWS = {
    "nothing stored": {},
    "layers that do not follow": {"variants": {"stored": [2]}},
    "the first layer, and rows over hops": {"variants": FOLLOWED | {"stored": [1], "oneRow": [{"hops": 1}]}},
    "rows over hops": {"variants": FOLLOWED | {"oneRow": [{"hops": 2}]}},
    "the one layer of a model": {"model": {"fanouts": [10]}, "variants": FOLLOWED | {"stored": [1]}},
    "a search over a model of one layer": {"model": {"fanouts": [10]}, "variants": FOLLOWED | {"search": "Auto"}},
    "a search that does not follow": {"variants": {"search": "Auto"}},
}


@pytest.mark.parametrize("rest", WITHOUT_STALE_ROWS.values(), ids=WITHOUT_STALE_ROWS)
def test_a_budget_is_refused_where_no_row_is_ever_stale(rest: dict[str, Any]) -> None:
    spec_of(SQLITE, **rest)
    with pytest.raises(ValidationError, match=r"updates\.refresh must not be given without .* behind the first"):
        spec_of(BUDGET, **rest)


REFUSED = {
    "no log": ({"log": {}}, {}, "exactly one of sqlite and postgres must be set"),
    "two logs": ({"log": SQLITE["log"] | POSTGRES["log"]}, {}, "exactly one of sqlite and postgres must be set"),
    "several workers with SQLite": (
        SQLITE, {"worker": {"replicas": 3}},
        "worker.replicas 3 must be at most 1 with updates.log.sqlite: several workers share a log in PostgreSQL",
    ),
    "a limit as large as the delta": (
        {**POSTGRES, "maxDelta": "1024Mi"}, {"worker": {"resources": {"limits": {"memory": "1Gi"}}}},
        "updates.maxDelta 1024Mi must be less than worker.resources.limits.memory 1Gi",
    ),
    "compaction before there is anything": (
        {**SQLITE, "compaction": {"deltaPercent": 9}}, {}, "greater than or equal to 10",
    ),
    "compaction when there is no room": (
        {**SQLITE, "compaction": {"deltaPercent": 91}}, {}, "less than or equal to 90",
    ),
    "compaction without end": ({**SQLITE, "compaction": {"changes": 999}}, {}, "greater than or equal to 1000"),
    "one Secret for log and tokens": (
        POSTGRES, {"endpoint": {"tokens": {"secretName": "log"}}},
        "updates.log.postgres must name a Secret of its own, and log is one of endpoint's",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("updates", "rest", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_is_refused_in_a_sentence(updates: dict[str, Any], rest: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        spec_of(updates, **rest)
    assert said in str(refusal.value)


def test_operator_and_command_line_name_the_same_file() -> None:
    root = Path("/repository")
    paths = ServicePaths(root / "shop" / "digits")
    assert paths.updates == root / logs_folder("shop", "digits")
    assert paths.log("an-id") == paths.updates / sqlite_file("an-id") == paths.updates / "an-id" / "log.sqlite"
