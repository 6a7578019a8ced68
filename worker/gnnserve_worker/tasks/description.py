"""OpenAPI description of a task: which requests it takes, what it answers, and examples of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class TaskDescription:
    summary: str
    """What a request does, in a few words."""
    item: str
    """What an entry of an answer is about."""
    request: Any
    """The struct of requests in JSON, generic by the type of ids."""
    answer: type[msgspec.Struct]
    items: tuple[str, ...]
    """Where the schema of a request has a list of ids: the name of the property, and what is below its schema."""
    outputs: tuple[str, ...]
    """Outputs of the binary form; the first is the one without a query."""
    example_items: Mapping[str, Any]
    """Members of a request that ask about something."""
    example_outputs: Mapping[str, Any]
    """Members of the answer to it, by output."""
    other_items: tuple[tuple[str, ...], ...] = ()
    """As `items`, of lists that a request may have in place of that one."""
    tells_bounds: bool = True
    """Whether the bounds of positions are told where ids are these."""

    def lists_of(self, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Schemas of lists of ids that are asked about. `schemas`: by name."""
        found: list[dict[str, Any]] = []
        for name, *below in (self.items, *self.other_items):
            one = schemas[self.request.__name__]["properties"][name]
            for part in below:
                one = one[part]
            found.append(one)
        return found
