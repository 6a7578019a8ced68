"""Why a request is refused, in words for its client, and a memory that makes refusing cheap under overload."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_worker.scheduling.choice import ChoiceReason, choose
from gnnserve_worker.scheduling.cost_terms import overlay_part
from gnnserve_worker.scheduling.queue import Group, Request
from gnnserve_worker.scheduling.variants import VariantChooser


class RefusalReason(StrEnum):
    OBJECTIVE_INFEASIBLE = "ObjectiveInfeasible"
    """No variant can ever meet it: allow more time or loss, send fewer nodes, or leave out strict."""
    QUEUE_FULL = "QueueFull"
    """Send again after the stated time, or slower."""
    DEADLINE_OUT_OF_REACH = "DeadlineOutOfReach"
    """Send again after the stated time, or allow more."""
    DEADLINE_PASSED = "DeadlinePassed"
    """The worker was slower than expected: send again after the stated time, or allow more. Reading and batching take
    0.1 to 0.2 ms: a latency below that may always end here."""
    LOADING = "Loading"
    """The worker is loading: send again after the stated time."""
    DRAINING = "Draining"
    """The worker is about to stop: send to another one."""
    PROGRAM_FAILED = "ProgramFailed"
    """The program of this service gave no scores: send again after the stated time; the message says why."""


class Refusal(msgspec.Struct, frozen=True):
    reason: RefusalReason
    message: str
    retry_after_s: int | None
    """Seconds to wait before another attempt; None: another attempt would be refused too."""


class KnownRefusal(msgspec.Struct):
    """A refusal that holds for requests with this objective that have `seeds` to `most_seeds` seeds and arrive before
    `until_ms`.

    For more than `most_seeds` even an idle worker may be too slow; such a request is not refused.
    """

    objective: Objective
    seeds: int
    most_seeds: int
    until_ms: float
    refusal: Refusal

    def holds(self, objective: Objective, now_ms: float) -> bool:
        return now_ms < self.until_ms and self.objective == objective


class RefusalMemory:
    """The last refusal, and for which requests it holds.

    Until a batch is closed the queue only grows, so an unreachable deadline stays unreachable until it has passed.
    What is remembered was said of a request about the stored graph; one that brings an overlay costs no less.
    """

    def __init__(self) -> None:
        self.known: KnownRefusal | None = None
        """The last refusal, whether it holds or not; None: there is none to recall."""

    def recall(self, objective: Objective, seeds: int, now_ms: float) -> Refusal | None:
        """The refusal that such a request would get; None: it has to be decided."""
        known = self.known
        if known is None or not known.seeds <= seeds <= known.most_seeds or not known.holds(objective, now_ms):
            return None
        return known.refusal

    def remember(self, objective: Objective, seeds: int, until_ms: float, now_ms: float, refusal: Refusal) -> None:
        known, most_seeds = self.known, seeds
        if known is not None and known.objective == objective and known.refusal.reason is refusal.reason:
            most_seeds = max(seeds, known.most_seeds)
            if seeds > known.seeds and known.holds(objective, now_ms):
                known.most_seeds = most_seeds
                return
        self.known = KnownRefusal(objective, seeds, most_seeds, until_ms, refusal)

    def expire(self) -> None:
        """There is room again. How large a request may be to be met at all stays known."""
        if self.known is not None:
            self.known.until_ms = -math.inf

    def clear(self) -> None:
        """Costs or routing have changed: nothing that was known holds."""
        self.known = None


def refuse_full(request: Request, load: int, queued_seeds: int, max_queued_seeds: int, wait_ms: float) -> Refusal:
    counted = "" if load == request.seeds else f", the overlay counted as {load - request.seeds:,},"
    return Refusal(
        RefusalReason.QUEUE_FULL,
        f"the queue holds {queued_seeds:,} nodes of at most {max_queued_seeds:,}, so {load:,} more{counted} "
        "do not fit; send again later, or raise spec.worker.batching.maxQueuedSeeds",
        retry_after_s(wait_ms),
    )


def refuse_displaced(wait_ms: float) -> Refusal:
    return Refusal(
        RefusalReason.QUEUE_FULL,
        "a request of a higher priority took its place in a full queue; send again later, or raise "
        "spec.worker.batching.maxQueuedSeeds",
        retry_after_s(wait_ms),
    )


def refuse_heavy(request: Request, max_seeds: int, wait_ms: float) -> Refusal:
    return Refusal(
        RefusalReason.QUEUE_FULL,
        f"the overlay counts as {request.overlay_load:,} nodes, no less than a full batch of {max_seeds:,}; such "
        "requests have a quarter of the time if they make requests with a deadline late, and have had it just now; "
        "send again later, or bring less",
        retry_after_s(wait_ms),
    )


def refuse_unreachable(latency_ms: float, end_ms: float, deadline_ms: float) -> Refusal:
    excess_ms = max(end_ms - deadline_ms, 0.001)
    return Refusal(
        RefusalReason.DEADLINE_OUT_OF_REACH,
        f"{latency_ms:g} ms cannot be met now: even the fastest variants would answer {excess_ms:.3g} ms late, "
        "after what is due before; send again later or allow more time",
        retry_after_s(excess_ms),
    )


def refuse_infeasible(chooser: VariantChooser, group: Group, request: Request, load: int) -> Refusal:
    if request.named is not None:
        return refuse_named(chooser, request, load)
    remedy = "allow more time or a larger tolerance, send fewer nodes, or leave out strict"
    overlay = overlay_part(load, request.seeds, request.changed_seeds)
    choice = choose(chooser, request.objective, request.seeds, request.needs, load, overlay)
    message = choice.message
    if choice.reason is ChoiceReason.TOLERANCE_OUT_OF_REACH:
        remedy = f"allow a larger tolerance, leave out {request.needs.in_words('the')}, or leave out strict"
    elif group.pin is not None:
        remedy = "allow more time, send fewer nodes, or leave out strict"
        needed_ms = chooser.costs.batch_ms(group.pin, load, 1, overlay)
        message = (
            f"the service's routing binds the request to {chooser.names[group.pin]}, which needs "
            f"{needed_ms:.3g} ms for {choice.nodes}, more than {request.objective.latency_ms:g} ms"
        )
    return Refusal(RefusalReason.OBJECTIVE_INFEASIBLE, f"{message}; {remedy}", None)


def refuse_named(chooser: VariantChooser, request: Request, load: int) -> Refusal:
    """Why the variant that a strict request names cannot meet its objective."""
    variant, objective = request.named, request.objective
    assert variant is not None  # noqa: S101
    tolerance, loss = objective.accuracy_tolerance_permille, chooser.loss_permille[variant]
    if variant >= chooser.count_within(tolerance):
        why = f"which loses {loss:.3g} permille, more than the {tolerance:g} that are tolerated"
        remedy = "allow a larger tolerance, name no variant, or leave out strict"
    else:
        overlay = overlay_part(load, request.seeds, request.changed_seeds)
        nodes = choose(chooser, objective, request.seeds, request.needs, load, overlay).nodes
        needed_ms = chooser.costs.batch_ms(variant, load, 1, overlay)
        why = f"which needs {needed_ms:.3g} ms for {nodes}, more than {objective.latency_ms:g} ms"
        remedy = "allow more time, send fewer nodes, name no variant, or leave out strict"
    # Named by the client, or for it: recommendations are of the embeddings of one variant.
    message = f"only {chooser.names[variant]} may answer the request, {why}; {remedy}"
    return Refusal(RefusalReason.OBJECTIVE_INFEASIBLE, message, None)


def refuse_late(request: Request, now_ms: float, wait_s: int | None) -> Refusal:
    """`wait_s`: as `Refusal.retry_after_s`."""
    message = (
        f"{request.objective.latency_ms:g} ms can no longer be met after {now_ms - request.arrived_ms:.3g} ms in "
        "the queue; send again later or allow more time"
    )
    return Refusal(RefusalReason.DEADLINE_PASSED, message, wait_s)


def retry_after_s(wait_ms: float) -> int:
    return max(1, math.ceil(wait_ms / 1000))
