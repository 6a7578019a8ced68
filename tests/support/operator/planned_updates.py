"""Services that follow a log of changes, before the planner."""

from __future__ import annotations

from typing import Any

from tests.support.operator.observed import Namespace, make_route

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.routing import CredentialState

SQLITE: dict[str, Any] = {"log": {"sqlite": {}}}
POSTGRES: dict[str, Any] = {"log": {"postgres": {"secretName": "digits-log"}}}
WRITERS: dict[str, Any] = {"writeTokens": {"secretName": "writing"}}
UP_TO_DATE = UpdatesState(last=7, applied=7, changes_behind=0, staleness_seconds=0)
CREDENTIALS = tuple(CredentialState(kind, is_usable=True) for kind in ("writeTokens", "log"))


def tell(namespace: Namespace, *states: UpdatesState | None) -> None:
    """What each worker says, in the order of their names; None: nothing."""
    told = [{} if state is None else {"updates": state} for state in states]
    routes = [make_route(namespace.table(), credentials=CREDENTIALS, **changes) for changes in told]
    namespace.routes = dict(zip(namespace.workers(), routes, strict=True))
    namespace.endpoint = routes[0]


def serving(updates: dict[str, Any] = POSTGRES, replicas: int = 1, **spec: Any) -> Namespace:
    namespace = Namespace(updates=updates, worker={"replicas": replicas}, **({"endpoint": WRITERS} | spec))
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out()
    tell(namespace, *[UP_TO_DATE] * replicas)
    namespace.settle()
    assert namespace.reason() == "True Serving"
    namespace.events.clear()
    return namespace
