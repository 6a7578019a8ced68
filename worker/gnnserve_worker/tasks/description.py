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
    tells_bounds: bool = True
    """Whether the bounds of positions are told where ids are these."""

    def lists_of(self, schemas: Mapping[str, Any]) -> dict[str, Any]:
        """The schema of a list of ids that are asked about. `schemas`: by name."""
        name, *below = self.items
        found: dict[str, Any] = schemas[self.request.__name__]["properties"][name]
        for part in below:
            found = found[part]
        return found
