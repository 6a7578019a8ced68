"""A service of `run` or `serve`, from when its server answers: tables, and the files of its revision.

As a worker of a cluster does: a revision whose files are written to is withdrawn until they are as they were, one that
was replaced is loaded again, and one that could not be opened is tried again.
"""

from __future__ import annotations

from collections.abc import Callable

from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.following.loader import Loader
from gnnserve_worker.following.repository_watch import RepositoryWatch
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.process.served_service import Look, ServedService

_PATIENCE_S = 2.0


class LocalService:
    def __init__(self, served: ServedService, load: Callable[[str], ServedRevision], name: str) -> None:
        """`load` opens a revision by its name. `name`: of the service, where there are several; empty: there are
        not."""
        self.name = name
        self._served = served
        self._loader = Loader(served, load, service=name or None)
        self._files = RepositoryWatch(self._loader, served.why_failing)

    def begin(self, revision: ServedRevision | None, table: RoutingTable) -> None:
        """Follow this table. `revision`: the one that answers by it already; None: none does."""
        if revision is None:
            self._loader.declare(table)
        else:
            self._loader.adopt(revision, table)
        self._loader.start()
        self._files.start()

    def stop(self) -> None:
        """Follow nothing more. A thread in the middle of a load is not waited for."""
        self._files.stop()
        self._loader.stop(_PATIENCE_S)

    @property
    def is_settled(self) -> bool:
        return self._loader.is_settled

    @property
    def answers(self) -> bool:
        return self._loader.served is not None

    def look(self) -> Look | None:
        return self._served.look()

    def route(self, table: RoutingTable) -> None:
        self._loader.declare(table)
