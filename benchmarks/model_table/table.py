"""The part `table` of `make bench-models`: all models, two at a time, and what docs/models.md shows of them."""

from __future__ import annotations

import re
import signal
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import TimeoutError as MultiprocessingTimeoutError
from multiprocessing import get_context
from types import FrameType
from typing import Any

import msgspec

from benchmarks.dependencies import History
from benchmarks.model_table.outcomes import TOLERANCE, Outcome
from benchmarks.page.figure_blocks import Results
from benchmarks.page.figure_blocks import table as render_table
from benchmarks.results import Run
from benchmarks.verdicts import Verdict, Worded, that

_PROCESSES = 2
_MOST_SECONDS = 240
"""Longest that one model may take, after which it has failed."""
QUICK = ("gat.py", "shadow.py", "hetero/hetero_conv_dblp.py")


def run_table(run: Run) -> dict[str, Any]:
    from benchmarks.model_table.catalogue import ENTRIES, LISTED

    entries = [each for each in ENTRIES if not run.quick or each.name in QUICK]
    found = []
    for entry, checked in zip(entries, _checked([each.name for each in entries]), strict=True):
        print(f"{checked['outcome']:8} {checked['seconds']:6.1f} s  {entry.name}: {checked['words']}", flush=True)
        told = {"name": entry.name, "family": entry.family, "link": entry.link, "task": entry.task, "note": entry.note}
        found.append({**told, "isLater": entry.task.comes_later, **checked})
    listed = [{"name": each.name, "link": each.link, "kind": each.kind, "why": each.why} for each in LISTED]
    return {"table": {"models": found, "listed": listed}}


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

_COLUMNS: Mapping[str, str] = {
    Outcome.RIGHT: "right to 1e-5",
    Outcome.REFUSED: "refused for a reason that holds in principle",
    Outcome.LIMIT: "refused by a limit of ours",
    Outcome.FAILED: "failed",
}


def holds(model: Mapping[str, Any]) -> bool:
    """Whether a model is right, by what was measured, or refused in principle."""
    if model["outcome"] == Outcome.REFUSED:
        return True
    return model["outcome"] == Outcome.RIGHT and float(model["difference"]) <= TOLERANCE


def is_served_today(model: Mapping[str, Any]) -> bool:
    """Whether it is served for a task of today, and was tried on other ways than its program."""
    return model["outcome"] == Outcome.RIGHT and not model["isLater"] and "layers" in model


def is_right_by(model: Mapping[str, Any], way: str) -> bool:
    return not model[way].get("words") and float(model[way]["difference"]) <= TOLERANCE


def in_words(models: Sequence[Mapping[str, Any]]) -> str:
    """Outcomes with their numbers; those of tasks that come later by themselves."""
    counts = Counter(each["outcome"] for each in models if not each["isLater"])
    words = [f"{counts[outcome]} {told}" for outcome, told in _COLUMNS.items()]
    if served := [each for each in models if is_served_today(each)]:
        by_layers, by_file = (sum(is_right_by(each, way) for each in served) for way in ("layers", "reader"))
        words.append(
            f"of those that are right {by_layers} as listed layers too, {by_file} of these by their file of weights "
            f"alone or by it too, and {len(served) - by_layers} as programs only"
        )
    later = Counter(each["outcome"] for each in models if each["isLater"])
    if later:
        told = ", ".join(f"{count} {name}" for name, count in sorted(later.items()))
        words.append(f"{sum(later.values())} whose task comes later, of whose rows of nodes {told}")
    return f"{len(models)} models: {', '.join(words)}"


def _all_hold(found: Any) -> Worded:
    models = found["table"]["models"]
    return Worded(all(holds(each) for each in models), in_words(models))


_MOST_PROGRAMS = 0.2
"""Largest share of served models that no layers describe."""


def _programs_only(found: Any) -> Worded | None:
    served = [each for each in found["table"]["models"] if is_served_today(each)]
    alone = [each for each in served if not is_right_by(each, "layers")]
    words = f"{len(alone)} of {len(served)}"
    return Worded(len(alone) <= _MOST_PROGRAMS * len(served), words) if served else None


TABLE_VERDICTS = (
    Verdict(
        "table: models as programs only",
        that(f"at most {_MOST_PROGRAMS:.0%} of those that are served"),
        _programs_only,
        "layers have no convolutions of rarer papers, no rows of known labels, and read 8 hops at most",
    ),
    Verdict("table: models of public repositories", that("every one right, or refused in principle"), _all_hold),
)


def show_table(found: Mapping[str, Any]) -> None:
    models = found["table"]["models"]
    print(in_words(models))
    for each in models:
        if not holds(each):
            print(f"{each['outcome']}: {each['name']}: {each['words']}")


def render_counts(models: Sequence[Mapping[str, Any]]) -> str:
    """Numbers of outcomes by family."""
    families = dict.fromkeys(each["family"] for each in models)
    rows = [_counts_row(name, [each for each in models if each["family"] == name]) for name in families]
    return render_table(("", "models", *_COLUMNS.values(), "task comes later"), [*rows, _counts_row("**all**", models)])


def _counts_row(name: str, models: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    counts = Counter("later" if each["isLater"] else each["outcome"] for each in models)
    return name, str(len(models)), *(str(counts[each] or "") for each in (*_COLUMNS, "later"))


def render_models(models: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]] = ()) -> str:
    families = dict.fromkeys(each["family"] for each in models)
    parts = [render_counts(models)]
    for family in families:
        rows = [_row(each) for each in models if each["family"] == family]
        head = ("model", "task", "program", "difference", "layers", "file of weights alone")
        parts.append(f"### {family[:1].upper()}{family[1:]}\n\n{render_table(head, rows)}")
    if listed:
        files = defaultdict[str, list[str]](list)
        for each in listed:
            files[each["why"]].append(f"[{each['name']}]({each['link']})")
        kinds = Counter(each["kind"] for each in listed)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        title = f"### Files of torch_geometric's examples that are not run\n\n{len(listed)} files: {told}."
        parts += [title, render_table(("why", "files"), ((why, ", ".join(names)) for why, names in files.items()))]
    return "\n\n".join(parts)


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    name = f"[{each['name']}]({each['link']})" if each["link"] else each["name"]
    difference = each.get("difference")
    task = f"{each['task']} (later)" if each["isLater"] else each["task"]
    note = f"; {each['note']}" if each["note"] else ""
    program = "" if difference is None else f"{difference:.0e}"
    return name, task, f"{each['outcome']}: {each['words']}{note}", program, *(_way(each, way) for way in _WAYS)


_WAYS = ("layers", "reader")


def _way(each: Mapping[str, Any], way: str) -> str:
    if way not in each:
        return ""
    words = each[way].get("words") or f"{each[way]['difference']:.0e}"
    # A line of code that it quotes is no link.
    return words.replace("](", "]\\(")


def fill_models(page: str, results: Results, _: History) -> str:
    """The page with its blocks rendered anew. Raises ValueError where it has no place for one."""
    found = _found(results)
    for name, render in _BLOCKS.items():
        block = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end of figures -->)", re.DOTALL)
        text = _UNMEASURED if found is None else render(found)
        page, count = block.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page)  # noqa: B023
        if count != 1:
            raise ValueError(f"docs/models.md has {count} blocks `<!-- figures: {name} -->`, and one is filled")
    return page


_UNMEASURED = "Not measured yet: `make bench-models ONLY=table`."
_BLOCKS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "models in numbers": lambda found: f"{in_words(found['models'])}.",
    "models": lambda found: render_models(found["models"], found.get("listed", ())),
}


def _found(results: Results) -> Mapping[str, Any] | None:
    parts = results.parts("models") if "models" in results.names() else []
    return next((part.record["found"]["table"] for part in parts if part.name == "table"), None)
