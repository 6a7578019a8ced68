"""Where a request in JSON lists the ids that it asks about, so that they can be counted before it is parsed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdList:
    """The list of one kind of request, as texts that are looked for in its body. Codecs count by them without a call
    of the task, since every request is counted."""

    member: bytes
    """Name of the member that is the list, in quotes."""
    of_integers: tuple[bytes, bytes]
    """Text between two ids, and text behind the last one, where ids are integers."""
    of_texts: tuple[bytes, bytes]
    """As `of_integers`, where ids are texts."""
    overlays_have_it: bool = False
    """Whether overlays have a member of that name too."""
