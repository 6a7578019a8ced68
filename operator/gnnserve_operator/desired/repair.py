"""What the routing ConfigMap remembers of repairs: how often a damaged revision was generated again."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


NO_REPAIRS = RepairRecord()


def encode_repairs(record: RepairRecord) -> str:
    return msgspec.json.encode(record).decode()


def decode_repairs(text: str | None) -> RepairRecord:
    """None, or what nobody but a person can have written: nothing is remembered."""
    if text is None:
        return NO_REPAIRS
    try:
        return msgspec.json.decode(text, type=RepairRecord)
    except msgspec.DecodeError:
        return NO_REPAIRS
