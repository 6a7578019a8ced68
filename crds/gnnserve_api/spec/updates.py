"""Changes of the graph that last: where their log lies, how much memory they may take, when they are compacted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.device import SIZE, SIZE_REQUIREMENT
from gnnserve_api.limits import MOST_BACKGROUND_PERMILLE, RefreshBudget
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.endpoint import is_no_secret_of_endpoint
from gnnserve_api.spec.fields import ApiModel, ObjectName, Uid, text, with_defaults
from gnnserve_api.spec.model import MODEL_IS_GIVEN
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.variants import SOME_ARE_MADE


class SqliteLogSpec(ApiModel):
    """A SQLite file in the repository, for one worker."""


class PostgresLogSpec(ApiModel):
    """A database of PostgreSQL 15 or newer, which several services may share: each has a log of its own in it."""

    secret_name: ObjectName
    """Name of a Secret in the namespace of the service. Its key `uri` is the address of the database,
    `postgresql://user:password@host/database`; a changed one is followed without a restart."""


class UpdatesLog(ApiModel):
    """The log that changes are kept in; exactly one member."""

    sqlite: SqliteLogSpec | None = None
    """A SQLite file in the repository, for one worker: `sqlite: {}`. It goes with its claim, which stays when the
    service is deleted (`repository.deletionPolicy`)."""
    postgres: PostgresLogSpec | None = None
    """A database of PostgreSQL 15 or newer, for any number of workers. In a cluster only; `gnnserve run` has
    `--postgres-uri-file`, and without it keeps changes in SQLite."""

    _exactly_one = rule(
        "[has(self.sqlite), has(self.postgres)].filter(given, given).size() == 1",
        "exactly one of sqlite and postgres must be set",
    )


class Compaction(ApiModel):
    """A Job makes the graph anew at the end of the log, and workers switch to that revision while they answer. They
    then keep later changes only, and one that starts has only these to apply."""

    delta_percent: Annotated[int, Field(ge=10, le=90)] = 50
    """Percentage of `maxDelta` that changes take in a worker when compaction begins."""
    changes: Annotated[int, Field(ge=1000, le=10**12)] = 10_000_000
    """Number of changes since the last compaction at which another begins in any case: a worker that starts applies as
    many before answering."""
    retrain: bool = False
    """Train the networks anew on the changed graph. By default they stay as they are, and only tables and stored layers
    follow the graph."""


class Refresh(ApiModel):
    """Budget for rows of stored layers that changes have made stale."""

    rows: Annotated[int, Field(ge=0, le=1_048_576)] = 256
    """Largest number of stale rows of stored layers that a request makes anew before the answer, the largest
    estimated errors first. 0: requests read all rows as stored."""
    microseconds: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    """Longest time that a request spends on making stale rows of stored layers anew, in microseconds."""
    background_permille: Annotated[int, Field(ge=0, le=MOST_BACKGROUND_PERMILLE)] = 100
    """Share of a core that a worker spends between requests on making the stalest rows of stored layers anew, in
    permille. 0: requests alone make rows anew."""

    _something_is_made_anew = rule(
        "self.rows > 0 || self.backgroundPermille > 0",
        "rows and backgroundPermille must not both be 0: no stale row would be made anew, which "
        "variants.storedFollowChanges false says",
    )


class UpdatesSpec(ApiModel):
    """Changes of the graph while it is served. Without `endpoint.writeTokens` workers follow a log that no request
    writes."""

    log: Annotated[UpdatesLog, Audience.PODS]
    """Log that changes are kept in: exactly one of sqlite and postgres. Each service has a log of its own, named by its
    uid: a service that is deleted and made again begins another."""
    adopt: Annotated[Uid | None, Audience.PODS] = None
    """uid of an earlier service whose log this one goes on with, in place of one of its own: `metadata.uid` of a
    GNNService that was deleted. The graphs that the log is part of must still be in the repository, where it was
    compacted. Absent: the service has a log of its own."""
    max_delta: Annotated[str, text(SIZE, SIZE_REQUIREMENT, 9), Audience.PODS] = "2Gi"
    """Largest amount of memory that changes take in each worker, as in 2Gi, beside what a worker takes without any.
    Beyond it no further ones are taken, and requests are answered as before."""
    compaction: Annotated[Compaction, Audience.OPERATOR] = with_defaults(Compaction)
    """Compaction, which makes the changes a part of the stored graph: when to begin, and what to make anew."""
    refresh: Annotated[Refresh | None, Audience.WORKERS] = None
    """Budget for making stale rows of stored layers anew, with `variants.storedFollowChanges` only: changes mark rows
    of layers behind the first as stale, with an estimate of the error, and the worst are made anew. Absent: each change
    makes all rows anew at once, and answers are exact."""

    @property
    def refresh_budget(self) -> RefreshBudget | None:
        """None: stored layers are kept exact."""
        if (given := self.refresh) is None:
            return None
        return RefreshBudget(
            rows=given.rows, microseconds=given.microseconds, background_permille=given.background_permille
        )


sqlite_has_one_worker = rule(
    "!has(self.updates) || !has(self.updates.log.sqlite) || self.worker.replicas <= 1",
    "worker.replicas {self.worker.replicas} must be at most 1 with updates.log.sqlite: several workers share a log in "
    "PostgreSQL, updates.log.postgres",
)


stale_layers_are_followed = rule(
    "!has(self.updates) || !has(self.updates.refresh) || (has(self.variants.storedFollowChanges) && "
    "self.variants.storedFollowChanges && ((has(self.variants.stored) && self.variants.stored.exists(layer, "
    "layer > 1)) || (has(self.variants.search) && self.variants.search == 'Auto' && "
    "size(self.model.fanouts) > 1)))",
    "updates.refresh must not be given without variants.storedFollowChanges true and a layer behind the first, which "
    "variants.stored lists or variants.search Auto tries: rows of no others may be stale",
)


_LIMITS = "self.worker.resources.limits"


changes_fit_memory = rule(
    f"!has(self.updates) || !has({_LIMITS}) || !('memory' in {_LIMITS}) || !isQuantity(string({_LIMITS}['memory'])) || "
    f"quantity(self.updates.maxDelta).compareTo(quantity(string({_LIMITS}['memory']))) < 0",
    "updates.maxDelta {self.updates.maxDelta} must be less than worker.resources.limits.memory "
    "{self.worker.resources.limits['memory']}, within which a worker has the changes and all else: lower the one, or "
    "raise the other",
)


_NAME_OF_LOG = "self.updates.log.postgres.secretName"


log_has_a_secret_of_its_own = rule(
    f"!has(self.updates) || !has(self.updates.log.postgres) || ({is_no_secret_of_endpoint(_NAME_OF_LOG)})",
    f"updates.log.postgres must name a Secret of its own[, and {{{_NAME_OF_LOG}}} is one of endpoint's]: each value "
    "of those of endpoint is a token or a key",
)


_MADE = SOME_ARE_MADE.replace("self.", "self.variants.")


something_is_retrained = rule(
    "!has(self.updates) || !has(self.updates.compaction.retrain) || !self.updates.compaction.retrain || "
    "(has(self.variants.oneRow) && size(self.variants.oneRow) > 0) || "
    "(has(self.variants.search) && self.variants.search == 'Auto') || "
    f"(!{MODEL_IS_GIVEN} && ({_MADE}))",
    "updates.compaction.retrain must not be true where all weights are given: there is nothing to train",
)
