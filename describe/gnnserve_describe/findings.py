"""Findings that a description tells beside its result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Findings:
    """Sentences for people, in the order of what was found."""

    told: list[str] = field(default_factory=list)

    def tell(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.append(sentence)

    def __iter__(self) -> Iterator[str]:
        return iter(self.told)
