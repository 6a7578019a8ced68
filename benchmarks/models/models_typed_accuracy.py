"""Part `typed accuracy` of `make bench-models`: attention over several types as torch_geometric trains it and as layers
(`typed_accuracy.py`), beside what was published, and what is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import mean, pstdev
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Run
from benchmarks.verdicts import Verdict, at_least, at_most


@dataclass(frozen=True, slots=True)
class Reference:
    """Macro-F1 that was published of the same nodes for training, validation and tests."""

    macro_f1: float
    by: str
    beside: str = ""
    """What it has over the networks here, told beside a figure that is missed."""


REFERENCES: Mapping[str, Reference] = {
    "acm, 20 labels a class": Reference(0.8856, "HeCo"),
    "acm, 40 labels a class": Reference(0.8761, "HeCo"),
    "acm, 60 labels a class": Reference(0.8904, "HeCo"),
    "imdb": Reference(
        0.5935,
        "MAGNN, an SVM on 20 % of the test nodes",
        "what is published is of a support vector machine over embeddings, fitted to labels of a fifth of the test "
        "nodes; networks here see none of these",
    ),
}
"""GammaGL's and OpenHGNN's tables of the papers' figures for these very splits. HGT and RGAT have none there: the
Heterogeneous Graph Benchmark has other selections of both data sets."""
MODELS = ("HGT", "RGAT")
TOLERANCE = 0.01
"""Below what is published: a point, as of `benchmarks/relations`."""


def run_typed_accuracy(run: Run) -> dict[str, Any] | None:
    from benchmarks.models.typed_accuracy import SHARED, measure_accuracy

    if not SHARED.is_dir():
        print(f"left out: there is no {SHARED}", flush=True)
        return None
    return {"typedAccuracy": {"tasks": measure_accuracy(quick=run.quick)}}


HEAD = ("graph", "model", "Macro-F1 in torch_geometric", "as layers", "Micro-F1 as layers", "published Macro-F1")


def typed_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for task, models in found["tasks"].items():
        reference = REFERENCES[task]
        for model, one in models.items():
            yield (
                task, model, _spread(one["torch"]["macroF1"]), _spread(one["layers"]["macroF1"]),
                _spread(one["layers"]["microF1"]), f"{reference.macro_f1:.4f} ({reference.by})",
            )  # fmt: skip


def _spread(scores: list[float]) -> str:
    return f"{mean(scores):.4f} ± {pstdev(scores):.4f}"


def show_typed_accuracy(found: Mapping[str, Any]) -> None:
    table = Table(*HEAD, title="accuracy over several types, means and deviations of seeds")
    for row in typed_rows(found["typedAccuracy"]):
        table.add_row(*row)
    Console(width=160).print(table)


def _runs(found: Any) -> list[Any]:
    return [one for models in found["typedAccuracy"]["tasks"].values() for one in models.values()]


def _difference(found: Any) -> float:
    return max(float(one["difference"]) for one in _runs(found))


def _scores_apart(found: Any) -> float:
    pairs = ((one["torch"]["macroF1"], one["layers"]["macroF1"]) for one in _runs(found))
    return max(abs(a - b) for torch, layers in pairs for a, b in zip(torch, layers, strict=True))


def _macro_f1(task: str, model: str, found: Any) -> float | None:
    one = found["typedAccuracy"]["tasks"].get(task, {}).get(model)
    return None if one is None else round(mean(one["layers"]["macroF1"]), 4)


TYPED_ACCURACY_VERDICTS = (
    Verdict(
        "typed accuracy: largest difference of a score from torch_geometric's, of the largest", at_most(1e-5),
        _difference,
    ),
    Verdict("typed accuracy: largest difference of Macro-F1 from torch_geometric's", at_most(0.001), _scores_apart),
    *(
        Verdict(
            f"typed accuracy, {task}, {model}: Macro-F1 ({reference.macro_f1} published: {reference.by})",
            at_least(round(reference.macro_f1 - TOLERANCE, 4)), partial(_macro_f1, task, model),
            reason=reference.beside,
        )
        for task, reference in REFERENCES.items()
        for model in MODELS
    ),
)  # fmt: skip
