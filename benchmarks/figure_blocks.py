"""Blocks of figures on a page: which results a block quotes, who renders it, and how it is put into its page.

A page marks a block with `<!-- figures: NAME -->` before it and `<!-- end of figures -->` after it. Every block ends
with the commits and days of the runs that it quotes, because figures age.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER

_BLOCK = re.compile(r"(<!-- figures: (?P<name>[\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


@dataclass(slots=True)
class Results:
    """Reads committed result files, and remembers which ones a block quotes."""

    folder: Path = FOLDER
    quoted: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        result = json.loads((self.folder / f"{name}.json").read_text())
        self.quoted[name] = result
        return result

    def has(self, name: str) -> bool:
        """Whether that benchmark's result is committed."""
        return (self.folder / f"{name}.json").exists()

    def source(self) -> str:
        """One line per run that was quoted, by commit and day."""
        if not self.quoted:
            return "Not measured yet."
        runs: dict[tuple[str, str], list[str]] = {}
        for name, result in self.quoted.items():
            found: dict[tuple[str, str], list[str]] = {}
            for part, run in _runs_of(result):
                found.setdefault((run["date"][:10], run["commit"]["id"][:7]), []).append(part)
            for run_id, parts in found.items():
                words = f"`{name}` of {', '.join(parts)}" if all(parts) else f"`{name}`"
                runs.setdefault(run_id, []).append(words)
        said = (f"{', '.join(names)} at {commit} on {day}" for (day, commit), names in sorted(runs.items()))
        return f"Measured: {'; '.join(said)}."


def _runs_of(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The runs that a file is of: one without a name, or one for each part (a graph, a shape and the like) that keeps
    its own commit and day."""
    parts = [
        (words.format(part[name]), part)
        for key, (name, words) in _PARTS.items()
        for part in (result[key] if isinstance(result.get(key), list) else ())
        if isinstance(part, dict) and "commit" in part
    ]
    yield from parts or [("", result)]


_PARTS = {
    "graphs": ("graph", "{}"),
    "shapes": ("shape", "{}"),
    "services": ("service", "{} over HTTP"),
    "answers": ("architecture", "{}"),
    "compactions": ("shape", "compaction of {}"),
    "starts": ("shape", "start of {}"),
}
"""Lists of parts in a result file: the field that names a part, and what its run is called."""

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
