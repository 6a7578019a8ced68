"""The last word of a reconcile: the status, when it changed, and then the events that tell the story.

Server-side apply under a manager of its own, so that status and spec never fight.

Events are told once, after the status is written. Those of a status that was refused are found again, since they follow
from what the status says; those of a write without an answer are kept until the watch tells that it was carried out. An
event that cannot be posted now is tried again under the same name, which the API server takes once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gnnserve_operator.apply import last_version, without_empty
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.labels import MANAGER
from gnnserve_operator.errors import ConflictError, GoneError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import EVENT, GNNSERVICE, Manifest, ServiceKey
from gnnserve_operator.logs import about
from gnnserve_operator.plan import EventNote

_LONGEST_MESSAGE = 1024
"""The API server takes no more in an event."""
_LONGEST_NAME = 230
_AGAIN_S = 5.0
"""How soon an event that could not be posted is tried again."""
_PATIENCE = timedelta(minutes=10)
"""Then it is given up: who looks at it so late reads the status."""
_LONGEST_ROW = 10
"""Of writes without an answer; the status of an eleventh says more than the first."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    uid: str
    version: str
    overtaken: frozenset[str]
    """The versions before it, in an unbroken row of our own writes."""
    status: Manifest


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A status that may have been written."""

    status: Manifest
    events: tuple[EventNote, ...]
    at: datetime


@dataclass(slots=True)
class _Untold:
    """What is left to say about one GNNService."""

    uid: str
    unanswered: list[_Unanswered] = field(default_factory=list)
    posts: list[tuple[Manifest, datetime]] = field(default_factory=list)
    """Events in their order, and when they happened."""


@dataclass(slots=True)
class Reporter:
    cluster: Cluster
    _written: dict[ServiceKey, _Written] = field(default_factory=dict)
    _untold: dict[ServiceKey, _Untold] = field(default_factory=dict)

    def forget(self, service: ServiceKey) -> None:
        self._written.pop(service, None)
        self._untold.pop(service, None)

    def status_of(self, key: ServiceKey, service: Manifest) -> Manifest:
        """Its status, or the one that we wrote and that the watch has not told of yet."""
        written = self._written.get(key)
        metadata = service["metadata"]
        if written and written.uid == metadata["uid"] and metadata["resourceVersion"] in written.overtaken:
            return written.status
        return service.get("status") or {}

    async def report(
        self, key: ServiceKey, service: Manifest, status: Manifest | None, events: Iterable[EventNote], now: datetime
    ) -> float | None:
        """Returns after how many seconds to try again what could not be told. Raises RetryLaterError; ConflictError
        where the service is not what was judged any more."""
        metadata, notes = service["metadata"], tuple(events)
        version = metadata["resourceVersion"]
        untold = self._untold_of(key, metadata["uid"])
        self._find_carried_out(key, service, untold)
        if status is not None and without_empty(status) != without_empty(self.status_of(key, service)):
            follows, overtaken = last_version(version, self._written.get(key))
            # Refused for another service that has the name by now, and for one that has changed since it was judged.
            identity = {name: metadata[name] for name in ("name", "namespace", "uid")} | {"resourceVersion": follows}
            manifest = {"apiVersion": service["apiVersion"], "kind": service["kind"], "metadata": identity}
            try:
                answer = await self.cluster.apply_status({**manifest, "status": status})
            except GoneError:
                logger.debug("gone before its status was written", extra=about(key, uid=metadata["uid"]))
                self._untold.pop(key, None)
                return None
            except ConflictError:
                raise
            except RetryLaterError:  # carried out, or not
                untold.unanswered = [*untold.unanswered, _Unanswered(status, notes, now)][-_LONGEST_ROW:]
                raise
            version = answer["metadata"]["resourceVersion"]
            self._written[key] = _Written(metadata["uid"], version, overtaken - {version}, status)
            untold.unanswered.clear()  # else it would have been refused
        self._tell(key, service, notes, version, now, untold)
        return await self._post(key, untold, now)

    def _untold_of(self, key: ServiceKey, uid: str) -> _Untold:
        found = self._untold.get(key)
        if found is None or found.uid != uid:
            found = self._untold[key] = _Untold(uid)
        return found

    def _find_carried_out(self, key: ServiceKey, service: Manifest, untold: _Untold) -> None:
        if not untold.unanswered:
            return
        live = without_empty(service.get("status") or {})
        for written in reversed(untold.unanswered):
            if without_empty(written.status) == live:
                untold.unanswered.clear()
                self._tell(key, service, written.events, service["metadata"]["resourceVersion"], written.at, untold)
                return

    def _tell(
        self, key: ServiceKey, service: Manifest, events: Iterable[EventNote], version: str, at: datetime,
        untold: _Untold,
    ) -> None:  # fmt: skip
        for event in events:
            log = logger.warning if event.type == "Warning" else logger.info
            log("%s", event.message, extra=about(key, uid=untold.uid, reason=event.reason))
            untold.posts.append((build_event(service, event, version, at), at))

    async def _post(self, key: ServiceKey, untold: _Untold, now: datetime) -> float | None:
        while untold.posts:
            event, at = untold.posts[0]
            try:
                await self.cluster.create_event(event)
            except (RetryLaterError, RefusedError) as error:
                is_over = isinstance(error, RefusedError | GoneError) or now - at > _PATIENCE
                if not is_over and isinstance(error, RetryLaterError):
                    return max(error.after_s or 0.0, _AGAIN_S)
                logger.warning("an event is lost: %s", error, extra=about(key, reason="EventNotPosted"))
            del untold.posts[0]
        return None


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
