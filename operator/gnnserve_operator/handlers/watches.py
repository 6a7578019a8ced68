"""kopf's watches: each change goes to the intake, which enqueues what it concerns (`news.py`).

Only `on.event` and `on.login` are used: kopf puts a finalizer or an annotation on whatever has another kind
of handler, and an object with a finalizer cannot be deleted while the operator is down. The registry is our own, not
kopf's global one, so that importing this does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.metadata import CHILDREN_SELECTOR
from gnnserve_operator.kinds import RECONCILED, Manifest, ResourceKind
from gnnserve_operator.login import login

Take = Callable[[str | None, Manifest], None]
"""Takes a change: its type, and the object."""


def build_registry(take: Take) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def pass_on(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf passes it by this name
        take(type, dict(body))

    kopf.on.login(registry=registry)(login)
    for kind in (*RECONCILED, *WATCHED_CHILDREN):
        kopf.on.event(*_resource(kind), registry=registry)(pass_on)
    return registry


def build_kopf_settings() -> kopf.OperatorSettings:
    built = kopf.OperatorSettings()
    built.posting.enabled = False
    # The kinds are known and main.py waits for the CRD, so nothing cluster-wide is watched, and no right to is needed.
    built.scanning.disabled = True
    built.peering.standalone = True
    # A watch ends before a proxy or a load balancer can drop it unseen; kopf then goes on from where it was.
    built.watching.server_timeout = 120
    built.watching.client_timeout = 150
    built.watching.connect_timeout = 5
    # Lists come in pages, and what is done with one is done before the next: a body takes 20 KB as Python's dicts.
    built.watching.chunk_size = 50
    built.watching.inactivity_timeout = 70  # the API server sends a bookmark every minute
    built.networking.request_timeout = 30
    built.networking.connect_timeout = 5
    # So long kopf keeps a task and the last body of every object: thousands of them, when the operator starts.
    built.queueing.idle_timeout = 0.2
    built.queueing.exit_timeout = 1
    built.process.ultimate_exiting_timeout = None  # Kubernetes kills what does not end
    for kind in WATCHED_CHILDREN:
        built.watching.label_selectors[_resource(kind)] = CHILDREN_SELECTOR
    return built


def _resource(kind: ResourceKind) -> tuple[str, str, str]:
    return kind.group, kind.version, kind.plural
