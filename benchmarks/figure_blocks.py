"""Blocks of figures on a page: which results a block quotes, who renders it, and how it is put into its page.

A page marks a block with `<!-- figures: NAME -->` before it and `<!-- end of figures -->` after it. Every block ends
with the commits and days of the runs that it quotes, because figures age.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, MergedObject

_BLOCK = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


@dataclass(slots=True)
class Results:
    """Reads committed result files, and remembers which of their parts a block reads."""

    folder: Path = FOLDER
    read: dict[str, set[str]] = field(default_factory=dict)
    """Names of parts, by benchmark."""
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """What the benchmark found, all parts together; its verdicts under `verdicts`."""
        if name not in self.files:
            self.files[name] = json.loads((self.folder / f"{name}.json").read_text())
        file, read = self.files[name], self.read.setdefault(name, set())
        found = [(part, record["found"]) for part, record in file["parts"].items()]
        # Verdicts are of all parts.
        judged = [(part, {"verdicts": file["verdicts"]}) for part in file["parts"]]
        return MergedObject([*found, *judged], read.add)

    def has(self, name: str) -> bool:
        """Whether that benchmark's result is committed."""
        return (self.folder / f"{name}.json").exists()

    def parts_read(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Benchmark, part and record of each part that was read."""
        return [
            (name, part, self.files[name]["parts"][part])
            for name, parts in self.read.items()
            for part in self.files[name]["parts"]
            if part in parts
        ]

    def source(self) -> str:
        """One line per run that was quoted, by commit and day."""
        runs: dict[tuple[str, str], dict[str, list[str]]] = {}
        for name, part, record in self.parts_read():
            at, date = record["commit"], record["date"]
            run = ("unknown" if date is None else date[:10], "an unknown commit" if at is None else at["id"][:7])
            runs.setdefault(run, {}).setdefault(name, []).append(part)
        if not runs:
            return "Not measured yet."
        said = []
        for (day, commit), names in sorted(runs.items()):
            words = ", ".join(
                f"`{name}`" if len(parts) == len(self.files[name]["parts"]) else f"`{name}` of {', '.join(parts)}"
                for name, parts in names.items()
            )
            said.append(f"{words} at {commit}{'' if day == 'unknown' else f' on {day}'}")
        return f"Measured: {'; '.join(said)}."


SHAPE_WORDS = {"arxiv": "ogbn-arxiv's shape", "reddit": "Reddit's shape", "products": "Products' shape"}

Renderer = Callable[[Results], str]
RENDERERS: dict[str, Renderer] = {}


def figures(name: str) -> Callable[[Renderer], Renderer]:
    def register(render: Renderer) -> Renderer:
        RENDERERS[name] = render
        return render

    return register


def render(name: str) -> str:
    """The block's text, ending with a line break. Raises KeyError for a name that has no renderer."""
    results = Results()
    body = RENDERERS[name](results)
    return f"{body.rstrip()}\n\n{results.source()}\n"


def fill(page: str) -> str:
    """The page with every block rendered anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{render(found['name'])}{found[3]}", page)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float, digits: int = 3) -> str:
    """`digits` significant ones, with thousands separated."""
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}"
