"""Figures of models as programs and layers: their times beside torch, what one that fails does to others, what is
served, what each convolution costs, and how accurate networks are that learn as layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.model_table.table import in_words
from benchmarks.models.models_accuracy import HEAD as ACCURACY_HEAD
from benchmarks.models.models_accuracy import PUBLISHED_SAGE, accuracy_rows
from benchmarks.models.models_operations import operation_head, operation_rows
from benchmarks.models.models_typed_accuracy import HEAD as TYPED_HEAD
from benchmarks.models.models_typed_accuracy import typed_rows
from benchmarks.page.figure_blocks import SHAPE_WORDS, figures, paragraphs, table
from benchmarks.page.peers_figures import HEAD, server_row

_MODULES = {"sage_head": "GraphSAGE with norms and a head", "gat": "GAT"}
_AGAINST = {
    "torch": "the program over torch_geometric, the best of its servers",
    "torchCutByHand": "the program over torch_geometric, cut by hand",
    "described": "the program over the described network",
}
"""Ratios of times; of many connections the others' requests a second over the program's."""


@figures("models")
def models(found: Any) -> str:
    parts = {
        "speed": _speed, "neighbours": _neighbours, "table": _table, "operations": _operations,
        "accuracies": _accuracies,
        "typedAccuracy": _typed_accuracy,
    }  # fmt: skip
    return paragraphs(*(render(found[name]) for name, render in parts.items() if name in found))


def _speed(found: Mapping[str, Any]) -> str:
    rows = list[list[str]]()
    for module, measured in found.items():
        shape = SHAPE_WORDS.get(measured["shape"], measured["shape"])
        rows.append([f"*{_MODULES.get(module, module)}, {shape}*", "", "", "", ""])
        rows += (server_row(server) for server in measured["servers"].values())
        rows += (_ratio_row(_AGAINST[against], ratios) for against, ratios in measured["ratios"].items())
    return paragraphs(
        table(HEAD, rows), "Ratios are times of the program over the other's: at most 1, it is not slower."
    )


def _ratio_row(words: str, ratios: Mapping[str, float]) -> list[str]:
    one, busy, many = (f"{ratios[key]:.2f}" if key in ratios else "" for key in _WORKLOADS)
    return [f"**{words}**", one, "", busy, many]


_WORKLOADS = ("one_seed", "throughput_32", "seeds_1024")


def _neighbours(found: Mapping[str, Any]) -> str:
    rows = (
        (
            mode["words"], f"{mode['p50_ms']:.2f}", f"{mode['p99_ms']:.2f}", f"{mode['failed']:,}",
            str(mode.get("refused", "")), f"{mode['requests']:,}", _statuses(mode["programStatuses"]),
            f"{mode['recovered_s']:.2f}",
        )
        for mode in found["modes"].values()
    )  # fmt: skip
    columns = (
        f"two services, {found['rate_per_s']} requests/s each, beside", "p50 ms", "p99 ms", "failed", "refused", "of",
        "the program's answers", "healthy after s",
    )  # fmt: skip
    return table(columns, rows)


def _statuses(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{status}: {count:,}" for status, count in sorted(counts.items()))


def _table(found: Mapping[str, Any]) -> str:
    link = "[models.md](models.md#models-of-public-repositories) has them one by one."
    return f"{in_words(found['models'])}. {link}"


def _operations(found: Mapping[str, Any]) -> str:
    shape = SHAPE_WORDS.get(found["shape"], found["shape"])
    told = f"Networks of two hops, {shape}, one thread, the same samples: times of the network alone, in ms."
    return paragraphs(told, table(operation_head(found), operation_rows(found)))


def _accuracies(found: Any) -> str:
    told = (
        "Accuracy of test nodes, mean ± deviation over seeds. The README of cdda_items has "
        f"{PUBLISHED_SAGE} for a GraphSAGE; features of ogbn_arxiv_topo are substitutes."
    )
    return paragraphs(told, table(ACCURACY_HEAD, accuracy_rows(found)))


def _typed_accuracy(found: Mapping[str, Any]) -> str:
    return table(TYPED_HEAD, typed_rows(found))
