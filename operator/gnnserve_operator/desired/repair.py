"""What the routing ConfigMap remembers of repairs: how often a damaged revision was generated again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import msgspec


@dataclass(frozen=True, slots=True)
class RepairRecord:
    count: int = 0
    """How many have begun; also the number of the last one."""
    pending: bool = False
    """Whether its Job has yet to publish."""
    times: tuple[str, ...] = ()
    """When those of the last day began (RFC 3339)."""

    @property
    def done(self) -> int:
        """The number of the last one that is done; 0: none was."""
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
    """None, or what nobody but a person can have written: nothing is remembered."""
    if text is None:
        return NO_REPAIRS
    try:
        record = msgspec.json.decode(text, type=RepairRecord)
        are_times = all(datetime.fromisoformat(at).tzinfo is not None for at in record.times)
    except (msgspec.DecodeError, ValueError):
        return NO_REPAIRS
    return (
        record if are_times and (record.times or not record.pending) and record.count >= record.pending else NO_REPAIRS
    )
