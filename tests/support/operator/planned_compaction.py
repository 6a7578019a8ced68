"""Services with a long log of changes, before the planner."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.operator.observed import Namespace, make_route
from tests.support.operator.planned_updates import CREDENTIALS, POSTGRES, serving

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.routing import RoutingTable

LITTLE = UpdatesState(
    last=9, applied=9, changes_behind=0, staleness_seconds=0, base=0, changes_since_base=9, delta_bytes=1000
)
MUCH = msgspec.structs.replace(LITTLE, delta_bytes=2**30)
"""Half of what is allowed."""


def tell(namespace: Namespace, *states: UpdatesState, table: RoutingTable | None = None) -> None:
    """What workers say, in the order of their names. `table`: the one that they have taken on; None: the declared."""
    taken_on = table or namespace.table()
    routes = [make_route(taken_on, credentials=CREDENTIALS, updates=state) for state in states]
    namespace.routes = dict(zip(namespace.workers(), routes, strict=True))
    namespace.endpoint = routes[0]


def living(updates: dict[str, Any] = POSTGRES, **spec: Any) -> Namespace:
    """A service whose workers have taken a few changes."""
    namespace = serving(updates, **spec)
    tell(namespace, *[LITTLE] * len(namespace.workers()))
    namespace.settle()
    assert (namespace.reason(), namespace.reason("Reconciling")) == ("True Serving", "False Settled")
    return namespace


def environment(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value") for variable in container["env"]}
