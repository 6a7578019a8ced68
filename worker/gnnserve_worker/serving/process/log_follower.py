"""The log of changes as one revision of a service follows it: the service's own, or a second one, each with a follower
of its own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import msgspec

from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_worker.changes.report import state_of
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import STILL


@dataclass(frozen=True, slots=True)
class LogFollower:
    updates: Updates | None
    """None: the graph of the service does not change."""

    def start(self) -> None:
        """Begin, on the event loop."""
        if self.updates is not None:
            self.updates.start()

    def handing_over(self, revision: ServedRevision) -> AbstractContextManager[None]:
        """Within it, the revision has all that the followed one has told. Where the log cannot be read for that, it
        raises LogError. Not on the event loop."""
        return nullcontext() if self.updates is None else revision.changes.log.handing_over(self.updates)

    def follow(self, revision: ServedRevision | None) -> None:
        """Apply the log to this revision from now on; None: to none."""
        if self.updates is not None:
            (STILL if revision is None else revision.changes).log.follow(self.updates)

    def another(self) -> LogFollower:
        """A follower of the same log for another revision."""
        return LogFollower(None if self.updates is None else self.updates.another())

    def why_stuck(self) -> str | None:
        """Why the revision cannot get what the log has, without a person; None: it can, as far as is known."""
        return None if self.updates is None else self.updates.why_stuck

    def state(self) -> UpdatesState | msgspec.UnsetType:
        return msgspec.UNSET if self.updates is None else state_of(self.updates)

    async def close(self) -> None:
        if self.updates is not None:
            await self.updates.close()
