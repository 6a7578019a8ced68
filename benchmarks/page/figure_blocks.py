"""Renderers of results: the tables of each benchmark, from what its parts found, as Markdown.

`page.py` puts them into docs/benchmarks.md and `summary_figures.py` some of their figures into README.md; which parts a
figure was read of is remembered, because figures age.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, MergedObject

Record = Mapping[str, Any]
"""A part's entry in a result file: its commit, day, machine, duration, what it depends on, and what it found."""


@dataclass(frozen=True, slots=True)
class PartRead:
    benchmark: str
    name: str
    record: Record


@dataclass(slots=True)
class Results:
    """Reads committed result files, and remembers of which of their parts something was read."""

    folder: Path = FOLDER
    _files: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _read: dict[str, set[str]] = field(default_factory=dict)
    """Names of parts, by benchmark."""

    def __getitem__(self, name: str) -> Any:
        """Findings of all parts of a benchmark, together."""
        read = self._read.setdefault(name, set())
        return MergedObject([(part.name, part.record["found"]) for part in self.parts(name)], read.add)

    def names(self) -> list[str]:
        """Benchmarks that have a result; quick runs are none."""
        return sorted(file.stem for file in self.folder.glob("*.json") if not file.name.endswith(".quick.json"))

    def parts(self, name: str) -> list[PartRead]:
        return [PartRead(name, part, record) for part, record in self._file(name)["parts"].items()]

    def verdicts(self, name: str) -> Mapping[str, Mapping[str, Any]]:
        """Verdicts by the figure that is judged."""
        return dict(self._file(name)["verdicts"])

    def parts_read(self) -> list[PartRead]:
        """Parts of which something was read, in the order of their files."""
        return [part for name, read in self._read.items() for part in self.parts(name) if part.name in read]

    def _file(self, name: str) -> Mapping[str, Any]:
        if name not in self._files:
            self._files[name] = json.loads((self.folder / f"{name}.json").read_text())
        return self._files[name]


SHAPE_WORDS = {"arxiv": "ogbn-arxiv's shape", "reddit": "Reddit's shape", "products": "Products' shape"}

Renderer = Callable[[Any], str]
"""Tables and sentences about what the parts of a benchmark found; its verdicts stand in a table of their own."""
RENDERERS: dict[str, Renderer] = {}
"""Renderers by the benchmark's name."""


def figures(benchmark: str) -> Callable[[Renderer], Renderer]:
    def register(render: Renderer) -> Renderer:
        RENDERERS[benchmark] = render
        return render

    return register


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Empty where there is no row."""
    names = list(head)
    cells = [list(row) for row in rows]
    if not cells:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *cells))


def paragraphs(*blocks: str) -> str:
    """Blocks of Markdown one after the other, without the empty ones."""
    return "\n\n".join(block.strip() for block in blocks if block.strip())


def number(value: float, digits: int = 3) -> str:
    """`digits` significant ones, with thousands separated."""
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}"
