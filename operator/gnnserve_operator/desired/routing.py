"""The ConfigMap that tells workers what to answer from. It is also the operator's memory of what was published, and of
how often a damaged revision was generated again.

It is sealed by a digest of what the operator wrote, so that an edit by hand is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from gnnserve_api import decoding
from gnnserve_api.pods.generation import GENERATION_KEY, GenerationResult, encode_result
from gnnserve_api.pods.routing import ROUTING_KEY, RoutingTable, encode_routing
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.metadata import (
    CLAIM_ANNOTATION,
    DIGEST_ANNOTATION,
    REPAIR_ANNOTATION,
    Component,
    Parent,
    child_metadata,
    digest_of,
    routing_name,
)
from gnnserve_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class RepairRecord:
    count: int = 0
    """Number of repairs begun; also the number of the last one."""
    pending: bool = False
    """Whether its Job has yet to publish."""
    times: tuple[str, ...] = ()
    """When the repairs of the last day began (RFC 3339)."""

    @property
    def done(self) -> int:
        """The number of the last completed repair; 0: none."""
        return self.count - self.pending

    def ended(self) -> RepairRecord:
        return replace(self, pending=False)

    def without_pending(self) -> RepairRecord:
        """The record without a pending repair, which is no longer wanted and was not done."""
        return RepairRecord(self.count - 1, False, self.times[:-1]) if self.pending else self


NO_REPAIRS = RepairRecord()


def encode_repairs(record: RepairRecord) -> str:
    return msgspec.json.encode(record).decode()


def decode_repairs(text: str | None) -> RepairRecord:
    """Decode the record. A missing text, or one that only a person can have written, gives an empty record."""
    if text is None:
        return NO_REPAIRS
    try:
        record = decoding.decode(text, RepairRecord)
        are_times = all(datetime.fromisoformat(at).tzinfo is not None for at in record.times)
    except (msgspec.DecodeError, ValueError):
        return NO_REPAIRS
    return (
        record if are_times and (record.times or not record.pending) and record.count >= record.pending else NO_REPAIRS
    )


def routing_digest(data: Mapping[str, str]) -> str:
    """Digest of the operator's two keys; others' additions do not change it."""
    ours = {key: data.get(key, "") for key in (ROUTING_KEY, GENERATION_KEY)}
    return digest_of(ours)


def declared_table(spec: GNNServiceSpec, result: GenerationResult) -> RoutingTable:
    """The spec's objective and batching over a published revision, which may be an older spec's."""
    return spec.routing_table(result.revision, result.recipe)


def build_routing(
    parent: Parent,
    table: RoutingTable,
    result: GenerationResult,
    claim_uid: str,
    repairs: RepairRecord = NO_REPAIRS,
) -> Manifest:
    """Build the ConfigMap. `claim_uid`: uid of the claim that the revision lies in; empty where it is not known."""
    table = msgspec.structs.replace(table, repair=repairs.done)
    data = {GENERATION_KEY: encode_result(result), ROUTING_KEY: encode_routing(table)}
    annotations = {DIGEST_ANNOTATION: routing_digest(data)}
    if claim_uid:
        annotations[CLAIM_ANNOTATION] = claim_uid
    if repairs.count:
        annotations[REPAIR_ANNOTATION] = encode_repairs(repairs)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(
            parent,
            routing_name(parent.name),
            Component.WORKER,
            annotations=annotations,
        ),
        "data": data,
    }
