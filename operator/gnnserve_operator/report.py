"""The last word of a reconcile: the status, when it changed, and then the events that tell the story.

Server-side apply under a manager of its own, so that status and spec never fight. Events are told once, after the
status is written; one that cannot be posted is logged and forgotten, since the status says the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gnnserve_operator.apply import last_version
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import MANAGER
from gnnserve_operator.diff import without_empty
from gnnserve_operator.errors import GoneError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import EVENT, GNNSERVICE, Manifest, ServiceKey
from gnnserve_operator.logs import about
from gnnserve_operator.plan import EventNote

_LONGEST_MESSAGE = 1024
"""The API server takes no more in an event."""
_LONGEST_NAME = 230

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    uid: str
    version: str
    overtaken: frozenset[str]
    """The versions before it, in an unbroken row of our own writes."""
    status: Manifest


@dataclass(slots=True)
class Reporter:
    cluster: Cluster
    _written: dict[ServiceKey, _Written] = field(default_factory=dict)

    def forget(self, service: ServiceKey) -> None:
        self._written.pop(service, None)

    def status_of(self, key: ServiceKey, service: Manifest) -> Manifest:
        """Its status, or the one that we wrote and that the watch has not told of yet."""
        written = self._written.get(key)
        metadata = service["metadata"]
        if written and written.uid == metadata["uid"] and metadata["resourceVersion"] in written.overtaken:
            return written.status
        return service.get("status") or {}

    async def report(
        self, key: ServiceKey, service: Manifest, status: Manifest | None, events: Iterable[EventNote], now: datetime
    ) -> None:
        """Raises RetryLaterError; ConflictError where the service is not what was judged any more."""
        metadata = service["metadata"]
        version = metadata["resourceVersion"]
        if status is not None and without_empty(status) != without_empty(self.status_of(key, service)):
            follows, overtaken = last_version(version, self._written.get(key))
            # Refused for another service that has the name by now, and for one that has changed since it was judged.
            identity = {name: metadata[name] for name in ("name", "namespace", "uid")} | {"resourceVersion": follows}
            manifest = {"apiVersion": service["apiVersion"], "kind": service["kind"], "metadata": identity}
            try:
                answer = await self.cluster.apply_status({**manifest, "status": status})
            except GoneError:
                logger.debug("gone before its status was written", extra=about(key, uid=metadata["uid"]))
                return
            version = answer["metadata"]["resourceVersion"]
            self._written[key] = _Written(metadata["uid"], version, overtaken - {version}, status)
        for event in events:
            log = logger.warning if event.type == "Warning" else logger.info
            log("%s", event.message, extra=about(key, uid=metadata["uid"], reason=event.reason))
            await self._post(key, build_event(service, event, version, now))

    async def _post(self, key: ServiceKey, event: Manifest) -> None:
        try:
            await self.cluster.create_event(event)
        except (RetryLaterError, RefusedError) as error:
            logger.warning("an event is lost: %s", error, extra=about(key, reason="EventNotPosted"))


def build_event(service: Manifest, event: EventNote, version: str, now: datetime) -> Manifest:
    """`version` is that of the service with the status that tells of it: the same event gets the same name again."""
    metadata = service["metadata"]
    said = "\n".join((metadata["uid"], version, event.type, event.reason, event.message))
    name = f"{metadata['name'][:_LONGEST_NAME]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    stamp = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    identity: dict[str, Any] = {"name": name, "namespace": metadata["namespace"]}
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": identity,
        "involvedObject": {
            "apiVersion": GNNSERVICE.api_version,
            "kind": GNNSERVICE.name,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
