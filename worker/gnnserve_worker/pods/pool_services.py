"""The services of a pool's worker: brought to what the operator's list says while those that stay answer on.

One thread compares what there is with the list; each service that leaves does so in a thread of its own, since it first
answers what it has accepted. One whose entry changed leaves, and joins again. A list that cannot be followed in a part
concerns that service alone.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnserve_api.errors import GnnserveError
from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.change_log import URI_KEY
from gnnserve_api.pods.pool import PoolService, PoolServices, grpc_port
from gnnserve_api.pods.routing import CredentialKind
from gnnserve_worker.changes.options import PostgresAddress, UpdatesOptions
from gnnserve_worker.following.pool_services import difference
from gnnserve_worker.following.routing_watch import ApiServer
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.pods.followed_service import FollowedService, FollowedSettings, ServiceFolders
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import WorkerServer
from gnnserve_worker.serving.tracing.options import TracingOptions, check_tracing, is_switched_off

_log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Seconds after which a service is tried again that could not join, as where its port was still taken."""
_STOP_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    namespace: str
    repository: Path
    api: ApiServer
    device: DeviceSettings
    host: str
    secrets: Path = Path(pods.SERVICE_SECRETS_PATH)
    """Where the services' Secrets are mounted, a folder for each service."""


class _JoinedService(Protocol):
    """A service that has joined."""

    @property
    def is_settled(self) -> bool: ...

    def begin(self) -> None: ...

    def stop(self, patience_s: float) -> bool: ...


@dataclass(slots=True)
class _Member:
    service: PoolService
    followed: _JoinedService
    is_leaving: bool = False


class PoolMembers:
    """Any thread may call it."""

    def __init__(self, settings: PoolSettings, worker: WorkerServer) -> None:
        self._settings = settings
        self._worker = worker
        self._wanted: PoolServices | None = None
        self._members: dict[str, _Member] = {}
        self._failed: dict[str, str] = {}
        """Why services could not join at the last attempt."""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopped = False
        self._was_ready = False
        self._thread = threading.Thread(target=self._run, name="pool-services", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def declare(self, wanted: PoolServices) -> None:
        """Declare the services. The last list counts."""
        with self._lock:
            self._wanted = wanted
        self._changed.set()

    @property
    def is_declared(self) -> bool:
        return self._wanted is not None

    def why_not_ready(self) -> str | None:
        """Why no requests should come to this pod yet; None once each of the first services answers, or cannot. From
        then on it stays so: a service that joins, or fails, must not take the others' pod away."""
        if self._was_ready:
            return None
        with self._lock:
            wanted, members, failed = self._wanted, dict(self._members), dict(self._failed)
        if wanted is None:
            return "waiting for the list of services"
        waiting = [
            service.name
            for service in wanted.services
            if service.name not in failed
            and ((member := members.get(service.name)) is None or not member.followed.is_settled)
        ]
        self._was_ready = not waiting
        return f"loading {', '.join(waiting)}" if waiting else None

    def stop(self) -> bool:
        """Follow nothing any more, once the server has ended. Returns whether all threads ended soon."""
        with self._lock:
            self._stopped = True
            members = tuple(self._members.values())
        self._changed.set()
        ended = [member.followed.stop(_STOP_PATIENCE_S) for member in members]
        return all(ended)

    def _run(self) -> None:
        while not self._stopped:
            try:
                has_failed = self._follow()
            except Exception:  # noqa: BLE001  (a thread that died would follow no further list)
                _log.exception("the list of services could not be followed")
                has_failed = True
            self._changed.wait(RETRY_S if has_failed else None)
            self._changed.clear()

    def _follow(self) -> bool:
        """Bring the services to what is wanted. Returns whether one could not join."""
        with self._lock:
            wanted = self._wanted
            present = {name: member for name, member in self._members.items() if not member.is_leaving}
            leaving_names = self._members.keys() - present.keys()
        if wanted is None:
            return False
        found = difference((member.service for member in present.values()), wanted)
        for service in found.leaving:
            self._leave(present[service.name])
        for service in found.reweighed:
            self._worker.reweigh(service.name, float(service.share))
            present[service.name].service = service
            _log.info("share %d", service.share, extra={"service": service.name})
        failed: dict[str, str] = {}
        for service in found.joining:
            if service.name in leaving_names:
                continue  # once it has left, the thread looks again
            try:
                self._join(service)
            except GnnserveError as error:
                failed[service.name] = str(error)
                if self._failed.get(service.name) != str(error):
                    _log.error("it cannot join: %s", error, extra={"service": service.name})
        with self._lock:
            self._failed = failed
        return bool(failed)

    def _join(self, service: PoolService) -> None:
        settings = self._settings
        updates, folders = self._updates(service), self._folders(service)
        log = None if updates is None else FollowedLog(updates)
        with ExitStack() as unused:
            sock, grpc = unused.enter_context(bind(settings.host, service.port)), None
            if service.grpc:
                grpc = unused.enter_context(bind(settings.host, grpc_port(service.port)))
            served = self._worker.add(
                ServiceSettings(
                    service.name,
                    sock,
                    folders.credentials(updates),
                    None if log is None else log.updates,
                    float(service.share),
                    grpc,
                    self._tracing(service),
                )
            )
            unused.pop_all()
        port = sock.getsockname()[1]
        followed = FollowedService(
            FollowedSettings(
                service.name,
                settings.namespace,
                service.routing,
                settings.repository,
                settings.api,
                settings.device,
                is_one_of_several=True,
            ),
            served,
            log,
            self._worker.end,
        )
        with self._lock:
            self._members[service.name] = _Member(service, followed)
        over_grpc = "" if grpc is None else f", for gRPC on port {grpc.getsockname()[1]}"
        _log.info("joined, and answers on port %d%s", port, over_grpc, extra={"service": service.name})
        threading.Thread(target=followed.begin, name=f"begin-{service.name}", daemon=True).start()

    def _leave(self, member: _Member) -> None:
        member.is_leaving = True
        name = member.service.name

        def leave() -> None:
            try:
                # What it answers from stays until the last request is answered.
                self._worker.remove(name)
                member.followed.stop(_STOP_PATIENCE_S)
                _log.info("left", extra={"service": name})
            except Exception:  # noqa: BLE001  (others go on)
                _log.exception("it could not leave in order", extra={"service": name})
            finally:
                with self._lock:
                    del self._members[name]
                self._changed.set()

        threading.Thread(target=leave, name=f"leave-{name}", daemon=True).start()

    def _folders(self, service: PoolService) -> ServiceFolders:
        def folder(kind: CredentialKind, is_named: bool) -> Path | None:
            return self._settings.secrets / service.name / kind.lower() if is_named else None

        return ServiceFolders(
            folder(CredentialKind.TLS, service.tls),
            folder(CredentialKind.TOKENS, service.tokens),
            folder(CredentialKind.WRITE_TOKENS, service.write_tokens),
        )

    def _tracing(self, service: PoolService) -> TracingOptions | None:
        if not service.tracing or is_switched_off(os.environ):
            return None
        options = TracingOptions(service.tracing, service.sampled_permille, self._settings.namespace)
        return check_tracing(options, "spec.worker.tracing.endpoint")

    def _updates(self, service: PoolService) -> UpdatesOptions | None:
        if not service.log_uid:
            return None
        uri = self._settings.secrets / service.name / CredentialKind.LOG.lower() / URI_KEY
        return UpdatesOptions(PostgresAddress(uri), service.log_uid, service.max_delta_bytes)
