"""Claims that outlive their GNNService or GNNWorkerPool: released before anything else, and told of when they stay.

Kubernetes deletes a claim with its owner as long as it refers to it, also while no operator runs. So an operator that
begins takes the owner from claims that the spec has retained before it looks at anything else, and each reconcile does
so first. No finalizer holds the owner: when it is gone, an event says which claim stays and how it is brought back. An
operator that was away then tells nothing; the claim has the same words in an annotation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from gnnserve_api.spec.repository import RepositoryPlace
from gnnserve_operator.apply import Applier
from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.decide.status import EventNote, LeftLog, log_note, retained_note
from gnnserve_operator.desired.metadata import BRING_BACK_ANNOTATION, Parent, belongs_to, owner_of
from gnnserve_operator.desired.storage import WantedClaim, build_volume_claim
from gnnserve_operator.errors import ConflictError, GoneError, LostLeadershipError, RefusedError, RetryLaterError
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.kinds import CLAIM, Manifest, ServiceKey, observed_ref
from gnnserve_operator.observed import ObservedClaim, observed_claim
from gnnserve_operator.report import build_event

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Owner:
    manifest: Manifest
    """The part of it that identifies it."""
    log: LeftLog | None = None
    """Its log of changes, where that lies in what the operator does not delete: in a database, or on a claim of the
    user's or of a pool. None: there is none."""

    @classmethod
    def of(cls, live: Manifest) -> Self:
        metadata = {name: live["metadata"][name] for name in ("name", "namespace", "uid")}
        manifest = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
        spec, status = live.get("spec") or {}, live.get("status") or {}
        updates, claim = spec.get("updates"), (spec.get("repository") or {}).get("claimName") or ""
        if not updates:
            return cls(manifest)
        uid = updates.get("adopt") or metadata["uid"]
        in_database = bool((updates.get("log") or {}).get("postgres"))
        if claim or (spec.get("worker") or {}).get("poolRef"):
            return cls(manifest, LeftLog(uid, claim, in_database))
        compacted = int((status.get("updates") or {}).get("base") or 0)
        return cls(manifest, LeftLog(uid, in_database=True, lost=compacted) if in_database else None)


@dataclass(slots=True)
class Retention:
    index: Index
    cluster: Cluster
    applier: Applier
    clock: Clock
    _owners: dict[ServiceKey, _Owner] = field(default_factory=dict)
    """The GNNServices or GNNWorkerPools that were looked at last."""

    async def release(
        self, key: ServiceKey, parent: Parent, place: RepositoryPlace, decide: Callable[[ObservedClaim], WantedClaim]
    ) -> None:
        """Take the owner, `parent`, from its claims that are to stay. `place`: what its spec says of them; `decide`:
        what is wanted of one. Raises RetryLaterError; a refusal comes again, and is reported, when the claim is applied
        with the other children."""
        for raw in self.index.children(key, CLAIM):
            owner = owner_of(raw)
            if owner is None or not owner.is_bound or owner.uid != parent.uid or _is_going(raw):
                continue
            wanted = build_volume_claim(parent, place, decide(observed_claim(raw)))
            if wanted is None or "ownerReferences" in wanted["metadata"]:
                continue
            # With the size that it has: an expansion that the storage refuses must not have it go with its owner. That
            # is asked for, and its refusal reported, when the claim is applied with the other children.
            wanted = {**wanted, "spec": _as_it_is(wanted["spec"], raw["spec"])}
            try:
                await self.applier.apply_ahead(key, wanted, raw)
            except RefusedError as error:
                logger.debug("not released: %s", error, extra=key.about(reason="NotReleased"))

    async def tell(self, key: ServiceKey, live: Manifest | None) -> None:
        """Post an event for each claim, and for the log of changes, that the owner which was looked at last has left,
        if it is not `live`. Raises RetryLaterError, and then tells the next time."""
        before = self._owners.get(key)
        if before is not None and (live is None or live["metadata"]["uid"] != before.manifest["metadata"]["uid"]):
            is_told = await self._tell_of_claims(key, before.manifest)
            if before.log is not None and not is_told:
                note = log_note(before.manifest["metadata"]["name"], before.log)
                await self._post(key, before.manifest, note, before.log.uid)
        if live is None:
            self._owners.pop(key, None)
        else:
            self._owners[key] = _Owner.of(live)

    async def _tell_of_claims(self, key: ServiceKey, owner: Manifest) -> bool:
        """Post an event for each claim that stays; they tell of the log too. Returns whether there are any."""
        is_told = False
        for raw in self.index.children(key, CLAIM):
            if not belongs_to(raw, owner["metadata"]["uid"]):
                continue
            # The watch may not know yet that it was released, or that it is deleted with its namespace.
            ref = observed_ref(raw)
            claim = await self.cluster.get(ref)
            if claim is None or _is_going(claim) or not _is_retained_of(claim, owner):
                continue
            annotations = claim["metadata"].get("annotations") or {}
            note = retained_note(owner["kind"], owner["metadata"]["name"], ref, annotations.get(BRING_BACK_ANNOTATION))
            await self._post(key, owner, note, claim["metadata"]["uid"])
            is_told = True
        return is_told

    async def _post(self, key: ServiceKey, owner: Manifest, note: EventNote, about_what: str) -> None:
        try:
            await self.cluster.create_event(build_event(owner, note, about_what, self.clock.utc()))
        except (GoneError, RefusedError) as error:
            logger.warning("an event is lost: %s", error, extra=key.about(reason="EventNotPosted"))
        logger.info("%s", note.message, extra=key.about(reason=note.reason))


def _as_it_is(wanted: Manifest, live: Manifest) -> Manifest:
    """The fields of a claim's spec that are wanted, as the claim has them."""
    return {name: live[name] for name in wanted if name in live}


def _is_going(claim: Manifest) -> bool:
    return bool(claim["metadata"].get("deletionTimestamp"))


def _is_retained_of(claim: Manifest, owner: Manifest) -> bool:
    found = owner_of(claim)
    return found is not None and not found.is_bound and found.uid == owner["metadata"]["uid"]


async def release_all(
    list_keys: Callable[[], Iterable[ServiceKey]], release: Callable[[ServiceKey], Awaitable[None]]
) -> None:
    """Release every claim that is to stay. What cannot be done now, reconciles do. Raises LostLeadershipError."""
    for key in list(list_keys()):
        try:
            await release(key)
            await asyncio.sleep(0)  # parsing hundreds of specs must not hold up the renewal of the Lease
        except (ConflictError, GoneError):
            continue
        except RetryLaterError as error:
            logger.warning("claims are released later: %s", error, extra=key.about(reason="NotReleased"))
            return
        except LostLeadershipError:
            raise
        except Exception:  # one broken object must not stop the operator, nor the others
            logger.exception("claims are not released", extra=key.about(reason="NotReleased"))
