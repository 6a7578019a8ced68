"""The last step of a reconcile: writing the status, if it changed, and then posting events.

The status is applied under a field manager of its own, so that it never conflicts with the spec.

Each event is posted once, after the status is written. Events of a refused status are derived again, since they follow
from the status; those of a write without an answer are kept until the watch shows that it was carried out. An event
that cannot be posted is tried again under the same name, which the API server accepts once.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec

from gnnserve_operator.apply import last_version
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.status import NOTHING_KNOWN, EventNote, last_known_in
from gnnserve_operator.desired.metadata import MANAGER
from gnnserve_operator.errors import ConflictError, GoneError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import EVENT, Manifest, ServiceKey, without_empty

_LONGEST_MESSAGE = 1024
"""Longest message of an event that the API server accepts."""
_LONGEST_NAME = 230
_AGAIN_S = 5.0
"""Seconds until an event that could not be posted is tried again."""
_PATIENCE = timedelta(minutes=10)
"""Age at which an event is dropped: by then the status tells the same."""
_LONGEST_ROW = 10
"""Most writes without an answer that are remembered; older ones are superseded by the status."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _WrittenStatus:
    uid: str
    version: str
    overtaken: frozenset[str]
    """Versions before the last one of an unbroken series of the operator's own writes."""
    status: bytes
    """As JSON, a quarter of what it takes decoded: it is read while a watch lags behind."""


@dataclass(frozen=True, slots=True)
class _PendingStatus:
    """A status that may have been written."""

    status: Manifest
    events: tuple[EventNote, ...]
    at: datetime


@dataclass(slots=True)
class _Untold:
    """Reports about one GNNService that are still to be made."""

    uid: str
    unanswered: list[_PendingStatus] = field(default_factory=list)
    posts: list[tuple[Manifest, datetime]] = field(default_factory=list)
    """Events in their order, and when they happened."""


@dataclass(slots=True)
class Reporter:
    cluster: Cluster
    _written: dict[ServiceKey, _WrittenStatus] = field(default_factory=dict)
    _untold: dict[ServiceKey, _Untold] = field(default_factory=dict)
    _sent: dict[ServiceKey, bytes] = field(default_factory=dict)
    """Digest of the status that was sent last, and of the uid: a watch may report it before the API server answers."""
    _known: dict[ServiceKey, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    """Statuses that conditions had last when they were known, with the uid of their service."""

    def forget(self, service: ServiceKey) -> None:
        self._sent.pop(service, None)
        self._written.pop(service, None)
        self._untold.pop(service, None)
        self._known.pop(service, None)

    def status_of(self, key: ServiceKey, service: Manifest) -> Manifest:
        """The service's status, or the one that was written and that the watch has not reported yet."""
        written = self._written.get(key)
        metadata = service["metadata"]
        if written and written.uid == metadata["uid"] and metadata["resourceVersion"] in written.overtaken:
            return dict(msgspec.json.decode(written.status))
        return service.get("status") or {}

    def note_known(self, key: ServiceKey, service: Manifest) -> Mapping[str, str]:
        """The statuses that the service's conditions had last when they were known, of its status and of those that
        were noted before. A status that is not written yet does not count: its events are derived again."""
        uid = service["metadata"]["uid"]
        of_uid, earlier = self._known.get(key, ("", NOTHING_KNOWN))
        known = last_known_in(self.status_of(key, service), earlier if of_uid == uid else NOTHING_KNOWN)
        self._known[key] = (uid, known)
        return known

    def is_echo(self, key: ServiceKey, service: Manifest) -> bool:
        """Whether the status that a watch reports is the one that was sent last, and its events are not waiting for
        it."""
        untold = self._untold.get(key)
        is_awaited = untold is not None and bool(untold.unanswered)
        return not is_awaited and self._sent.get(key) == _digest(service["metadata"]["uid"], service.get("status"))

    async def report(
        self, key: ServiceKey, service: Manifest, status: Manifest | None, events: Iterable[EventNote], now: datetime
    ) -> float | None:
        """Write status and events. Returns the seconds until the next attempt for what could not be posted. Raises
        RetryLaterError; ConflictError where the service has changed since it was judged."""
        metadata, notes = service["metadata"], tuple(events)
        version = metadata["resourceVersion"]
        untold = self._untold_of(key, metadata["uid"])
        self._find_carried_out(key, service, untold)
        if status is not None and without_empty(status) != without_empty(self.status_of(key, service)):
            follows, overtaken = last_version(version, self._written.get(key))
            # Refused for another service that has the name by now, and for one that has changed since it was judged.
            identity = {name: metadata[name] for name in ("name", "namespace", "uid")} | {"resourceVersion": follows}
            manifest = {"apiVersion": service["apiVersion"], "kind": service["kind"], "metadata": identity}
            self._sent[key] = _digest(metadata["uid"], status)
            try:
                answer = await self.cluster.apply_status({**manifest, "status": status})
            except GoneError:
                logger.debug("gone before its status was written", extra=key.about(uid=metadata["uid"]))
                self._untold.pop(key, None)
                return None
            except ConflictError:
                raise
            except RetryLaterError:  # whether it was carried out is not known
                untold.unanswered = [*untold.unanswered, _PendingStatus(status, notes, now)][-_LONGEST_ROW:]
                raise
            version = answer["metadata"]["resourceVersion"]
            said = msgspec.json.encode(status)
            self._written[key] = _WrittenStatus(metadata["uid"], version, overtaken - {version}, said)
            untold.unanswered.clear()  # else it would have been refused
        self._tell(key, service, notes, version, now, untold)
        return await self._post(key, untold, now)

    def queue(self, key: ServiceKey, service: Manifest, events: Iterable[EventNote], now: datetime) -> None:
        """Queue events that no status tells of: the next report posts them, or the one after it."""
        metadata = service["metadata"]
        # The status, and with it the version, is the same when the same thing happens again.
        version = f"{metadata['resourceVersion']} at {now.isoformat()}"
        self._tell(key, service, events, version, now, self._untold_of(key, metadata["uid"]))

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
            log("%s", event.message, extra=key.about(uid=untold.uid, reason=event.reason))
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
                logger.warning("an event is lost: %s", error, extra=key.about(reason="EventNotPosted"))
            del untold.posts[0]
        return None


def _digest(uid: str, status: Manifest | None) -> bytes:
    said = json.dumps([uid, without_empty(status or {})], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


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
            "apiVersion": service["apiVersion"],
            "kind": service["kind"],
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
