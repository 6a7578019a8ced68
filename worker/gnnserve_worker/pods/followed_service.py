"""A service of a pod: its credentials, and what follows its routing table and its repository.

A pod of a service's own has one of these, a pod of a pool several, which come and go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import DeviceLostError
from gnnserve_api.pods.interface import TLS_CERTIFICATE_KEY, TLS_PRIVATE_KEY_KEY
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.changes.options import PostgresAddress, UpdatesOptions
from gnnserve_worker.following.canary import CanaryFollower
from gnnserve_worker.following.loader import Loader
from gnnserve_worker.following.repository_watch import RepositoryWatch
from gnnserve_worker.following.routing import MountedRouting
from gnnserve_worker.following.routing_watch import ApiServer, RoutingWatch
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.device import NO_GPU_SEEN, DeviceSettings, open_served
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.process.served_service import ServedService
from gnnserve_worker.serving.security.credentials import Credentials
from gnnserve_worker.serving.security.tls import KeyPairFiles

if TYPE_CHECKING:
    from gnnserve_worker.inference.living import LivingRevision
    from gnnserve_worker.opening.loaded import LoadedRevision
    from gnnserve_worker.pods.followed_log import FollowedLog, OpenLiving

_log = logging.getLogger(__name__)

_API_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class ServiceFolders:
    """Where a service's Secrets are mounted; None: it names none of that kind."""

    tls: Path | None = None
    """Certificate and key; None: plain HTTP."""
    tokens: Path | None = None
    """A token in each file; None: no token is needed."""
    write_tokens: Path | None = None
    """A token that may write in each file; None: no request may write."""

    def credentials(self, updates: UpdatesOptions | None) -> Credentials:
        """Credentials that are waited for. `updates`: the log of changes, whose address is one of them."""
        tls, log = self.tls, None if updates is None else updates.log
        return Credentials(
            None if tls is None else KeyPairFiles(tls / TLS_CERTIFICATE_KEY, tls / TLS_PRIVATE_KEY_KEY),
            self.tokens,
            self.write_tokens,
            log.uri_file if isinstance(log, PostgresAddress) else None,
            waits=True,
        )


@dataclass(frozen=True, slots=True)
class FollowedSettings:
    service: str
    namespace: str
    routing: str
    """Name of the ConfigMap with the routing table."""
    repository: Path
    api: ApiServer
    device: DeviceSettings = field(default_factory=DeviceSettings)
    mounted_routing: Path | None = None
    """The copy that the kubelet mounted, for a start while the API server is away; None: there is none."""
    is_one_of_several: bool = False
    """Whether logs have to say which service they are about."""


class FollowedService:
    """Brings what the service's ConfigMap declares into effect, from `begin` to `stop`."""

    def __init__(
        self,
        settings: FollowedSettings,
        served: ServedService,
        log: FollowedLog | None,
        end: Callable[[BaseException], None],
    ) -> None:
        """`log`: the service's log of changes; None: its graph does not change. `end` ends the process, where a device
        is lost that all further loads would need."""
        self._settings = settings
        self._served = served
        self._followed = log
        self._end = end
        self._repository = Repository(settings.repository, settings.namespace, settings.service)
        name = settings.service if settings.is_one_of_several else None
        self._loader = Loader(served, self._load, service=name)
        self._files = RepositoryWatch(self._loader, served.why_failing)
        self._canary = CanaryFollower(
            served, self._load_second, lambda: self._loader.is_settled, lambda: served.revision, name
        )
        self._about = f"the ConfigMap {settings.namespace}/{settings.routing}"
        self._watch = RoutingWatch(
            settings.api, settings.namespace, settings.routing, self._declare, on_missing=self._say_missing
        )
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        """Held while threads are started, so that none is after `stop`."""

    def begin(self) -> None:
        """Follow the service, as soon as its credentials can be used. Returns once the API server has answered, or the
        service is stopped."""
        self._served.wait_for_credentials(self._stopped.is_set)
        with self._starting:
            if self._stopped.is_set():
                return
            self._served.report(f"waiting for a routing table in {self._about}")
            self._loader.start()
            self._files.start()
            self._watch.start()
        path = self._settings.mounted_routing
        mounted = None if path is None else MountedRouting(path)
        while not self._watch.answered.wait(_API_PATIENCE_S) and not self._stopped.is_set():
            if mounted is None or (table := mounted.read()) is None or self._watch.answered.is_set():
                continue
            _log.warning("the API server does not answer: using %s", path)
            self._declare(table)

    def _declare(self, table: RoutingTable) -> None:
        if self._followed is not None:
            self._followed.keeps_features |= table.makes_index
            self._followed.refresh = table.refresh
        self._loader.declare(table)
        self._canary.declare(table)

    def stop(self, patience_s: float) -> bool:
        """Follow it no more. Returns whether its threads ended within `patience_s`; in the middle of a load they do
        not."""
        with self._starting:
            self._stopped.set()
        self._watch.stop()
        self._files.stop()
        ended = self._canary.stop(patience_s)
        return self._loader.stop(patience_s) and ended

    @property
    def is_settled(self) -> bool:
        """Whether it answers, or cannot for a reason that waiting in the next seconds does not change: there is no
        routing table, or its revision could not be loaded."""
        return self._loader.is_settled or (self._watch.answered.is_set() and not self._loader.has_table)

    def _say_missing(self) -> None:
        if not self._loader.has_table:
            self._served.report(f"{self._about} does not exist yet")

    def _load(self, revision: str) -> ServedRevision:
        return self._open(revision, None if self._followed is None else self._followed.open)

    def _load_second(self, revision: str) -> ServedRevision:
        return self._open(revision, None if self._followed is None else self._followed.open_second)

    def _open(self, revision: str, open_living: OpenLiving | None) -> ServedRevision:
        """`open_living`: opens a revision that follows the log; None: there is none."""
        repository, device = self._repository, self._settings.device

        def serve_living(loaded: LoadedRevision, replica: LivingRevision) -> ServedRevision:
            return open_served(loaded, device, replica=replica)

        try:
            served = (
                open_served(load_revision(repository, revision), device)
                if open_living is None
                else open_living(lambda most_bytes: load_revision(repository, revision, most_bytes), serve_living)
            )
        except DeviceLostError as error:
            self._end(error)  # further attempts of this process would fail too
            raise
        stats = served.compute.device_stats()
        if stats.problem is not None:
            level = logging.INFO if stats.problem.startswith(NO_GPU_SEEN) else logging.WARNING
            _log.log(level, "computing on %s: %s", stats.device, stats.problem, extra={"revision": revision})
        return served
