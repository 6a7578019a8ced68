"""A server's log of changes, from its options on: opening it, and revisions that follow it.

Pods and the command line share it. A revision has applied what the log has before it answers. Where the log cannot be
read then, the revision answers all the same, and the server tells what is wrong; a second revision does not answer,
since the first does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnnserve_api.errors import RepositoryError
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.log import LogError
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.changes.registry import open_log
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision

_log = logging.getLogger(__name__)

Load = Callable[[int], LoadedRevision]
"""Loads a revision with room for changes, of so many bytes."""
Serve = Callable[[LoadedRevision, LivingRevision], ServedRevision]
OpenLiving = Callable[[Load, Serve], ServedRevision]


class FollowedLog:
    def __init__(
        self, options: UpdatesOptions, *, keeps_features: bool = False, refresh: RefreshBudget | None = None
    ) -> None:
        self._options = options
        self.keeps_features = keeps_features
        """Whether revisions that are opened from now on keep the features that changes bring, for filters of
        recommendations."""
        self.refresh = refresh
        """By what revisions that are opened from now on are refreshed until they follow a table: while what the log has
        is applied to them."""
        self._log = open_log(options.log, options.uid)
        self.updates = Updates(self._log, lambda: open_log(options.log, options.uid))

    def open(self, load: Load, serve: Serve) -> ServedRevision:
        """Open a revision that follows the log, and apply to it what the log has by now, before `serve` opens it on a
        device. `load` is given the memory that changes may take, in bytes. It takes as long as applying them does."""
        loaded, replica = self._open(load)
        try:
            self.updates.catch_up(replica)
        except LogError as error:
            _log.warning("answering from offset %d: %s", replica.offset, error)
        return serve(loaded, replica)

    def open_second(self, load: Load, serve: Serve) -> ServedRevision:
        """As `open`, for a revision that is to answer beside the service's own, and takes as much memory for changes.
        Raises RepositoryError where it cannot get what the log has."""
        loaded, replica = self._open(load)
        try:
            catch_up(self._log, replica, lambda _: None)
        except LogError as error:
            where = f"the graph of a second revision, made at offset {replica.base_offset:,} of the log of changes,"
            remedy = "name a revision of a newer graph, or take spec.routing.canary away"
            raise RepositoryError(where, f"cannot get what the log has: {error}", remedy) from error
        return serve(loaded, replica)

    def _open(self, load: Load) -> tuple[LoadedRevision, LivingRevision]:
        max_delta_bytes = self._options.max_delta_bytes
        loaded = load(max_delta_bytes)
        require_own_log(loaded, self._options.uid)
        living = LivingRevision(loaded, max_delta_bytes, keeps_features=self.keeps_features, refresh=self.refresh)
        return loaded, living


def require_own_log(loaded: LoadedRevision, uid: str) -> None:
    """Raise RepositoryError where changes of another log than that of this service are in the revision's graph."""
    if loaded.origin.made_of is not None and loaded.origin.made_of.log != uid:
        raise RepositoryError(
            f"log {loaded.origin.made_of.log}",
            "it is part of the revision's graph, and this service has another one",
            "let the service that it was made for serve it, or generate another revision",
        )
