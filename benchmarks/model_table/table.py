"""The part `table` of `make bench-models`: all models, two at a time, and what docs/models.md shows of them."""

from __future__ import annotations

import re
import signal
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from multiprocessing import get_context
from types import FrameType
from typing import Any

import msgspec

from benchmarks.dependencies import History
from benchmarks.figure_blocks import Results
from benchmarks.figure_blocks import table as render_table
from benchmarks.results import Run
from benchmarks.verdicts import Verdict, Worded, that

_PROCESSES = 2
_MOST_SECONDS = 240
"""Longest that one model may take, after which it has failed."""
QUICK = ("gat.py", "shadow.py", "hetero/hetero_conv_dblp.py", "arxiv/gnn.py: GCN", "rgcn_encoder.py")
_BLOCK = re.compile(r"(<!-- figures: models -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def run_table(run: Run) -> dict[str, Any]:
    from benchmarks.model_table.catalogue import ENTRIES

    entries = [each for each in ENTRIES if not run.quick or each.name in QUICK]
    found = []
    for entry, checked in zip(entries, _checked([each.name for each in entries]), strict=True):
        print(f"{checked['outcome']:8} {checked['seconds']:6.1f} s  {entry.name}: {checked['words']}", flush=True)
        told = {"name": entry.name, "family": entry.family, "link": entry.link, "task": entry.task, "note": entry.note}
        found.append({**told, "isLater": entry.task.comes_later, **checked})
    return {"table": {"models": found}}


def _checked(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Outcomes in the order of the names; a model that ends its process, or hangs, has failed, and the others go on."""
    with get_context("spawn").Pool(_PROCESSES, _begin) as pool:
        waiting = [pool.apply_async(check_named, (name,)) for name in names]
        for one in waiting:
            try:
                yield one.get(2 * _MOST_SECONDS)
            except MultiprocessingTimeoutError:
                yield _failed("it ended its process, or does not end")


def _failed(words: str) -> dict[str, Any]:
    return {"outcome": "failed", "words": words, "seconds": _MOST_SECONDS}


def _begin() -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimeoutError(f"it took longer than {_MOST_SECONDS:.0f} s")


def check_named(name: str) -> dict[str, Any]:
    """In a process of its own."""
    from benchmarks.model_table.catalogue import ENTRIES
    from benchmarks.model_table.checking import check

    entry = next(each for each in ENTRIES if each.name == name)
    signal.alarm(_MOST_SECONDS)
    checked: dict[str, Any] = msgspec.to_builtins(check(entry))
    signal.alarm(0)
    return checked


# What is shown


def counts_of(models: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Outcomes; those of tasks that come later by themselves."""
    return Counter(f"later: {each['outcome']}" if each["isLater"] else each["outcome"] for each in models)


def in_words(models: Sequence[Mapping[str, Any]]) -> str:
    counts = counts_of(models)
    words = [
        f"{counts['right']} right to 1e-5", f"{counts['refused']} refused for a reason that holds in principle",
        f"{counts['failed']} failed",
    ]  # fmt: skip
    later = {name: count for name, count in counts.items() if name.startswith("later: ")}
    if later:
        told = ", ".join(f"{count} {name.removeprefix('later: ')}" for name, count in sorted(later.items()))
        words.append(f"{sum(later.values())} whose task comes later, of whose rows of nodes {told}")
    return f"{len(models)} models: {', '.join(words)}"


def _all_hold(found: Any) -> Worded:
    models = found["table"]["models"]
    return Worded(all(each["outcome"] != "failed" for each in models), in_words(models))


TABLE_VERDICTS = (
    Verdict("table: models of public repositories", that("every one right, or refused in principle"), _all_hold),
)


def show_table(found: Mapping[str, Any]) -> None:
    print(in_words(found["table"]["models"]))


def render_models(models: Sequence[Mapping[str, Any]]) -> str:
    families = dict.fromkeys(each["family"] for each in models)
    parts = [f"{in_words(models)}."]
    for family in families:
        rows = [_row(each) for each in models if each["family"] == family]
        parts.append(
            f"### {family[:1].upper()}{family[1:]}\n\n{render_table(('model', 'task', 'outcome', 'difference'), rows)}"
        )
    return "\n\n".join(parts)


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"[{each['name']}]({each['link']})" if each["link"] else each["name"]
    difference = each.get("difference")
    task = f"{each['task']} (later)" if each["isLater"] else each["task"]
    note = f"; {each['note']}" if each["note"] else ""
    return name, task, f"{each['outcome']}: {each['words']}{note}", "" if difference is None else f"{difference:.0e}"


def fill_models(page: str, results: Results, _: History) -> str:
    """The page with its table rendered anew. Raises ValueError where it has no place for one."""
    filled, found = _BLOCK.subn(lambda block: f"{block[1]}{_table_of(results)}\n{block[2]}", page)
    if found != 1:
        raise ValueError(f"docs/models.md has {found} blocks `<!-- figures: models -->`, and one is filled")
    return filled


def _table_of(results: Results) -> str:
    parts = results.parts("models") if "models" in results.names() else []
    models = next((part.record["found"]["table"]["models"] for part in parts if part.name == "table"), None)
    return "Not measured yet: `make bench-models ONLY=table`." if models is None else render_models(models)
