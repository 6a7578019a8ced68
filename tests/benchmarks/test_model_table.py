"""The table of models: what counts as right, refused and failed, and how docs/models.md shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from benchmarks.dependencies import History
from benchmarks.model_table import public, pyg_one_type, pyg_others, pyg_several_types, pyg_tables
from benchmarks.model_table.catalogue import ENTRIES
from benchmarks.model_table.checking import check, refusal
from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import CLASSES, COLUMNS, over_attributes, over_nodes
from benchmarks.model_table.outcomes import Outcome, Reason
from benchmarks.model_table.table import QUICK, TABLE_VERDICTS, fill_models, in_words, render_models
from benchmarks.page.figure_blocks import Results
from benchmarks.verdicts import judge
from tests.support.programs.translations import translations_kept


@pytest.fixture(autouse=True, scope="module")
def kept_translations() -> Iterator[None]:
    """`check` gives equal models equal weights."""
    with translations_kept():
        yield


def entry_of(make: Any, *reasons: Reason) -> Entry:
    return Entry("made here", "tests", "", Task.CLASSES, make, reasons)


class Wide(torch.nn.Module):
    """Normalises over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.SAGEConv(COLUMNS, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.conv(x, edge_index)
        return rows - rows.mean(dim=0)


def test_names_are_unique_and_a_quick_run_has_models_of_each_outcome() -> None:
    names = [each.name for each in ENTRIES]
    assert len(set(names)) == len(names)
    assert set(QUICK) <= set(names)
    assert len(public.ENTRIES) == 40


def test_every_file_of_torch_geometrics_examples_has_an_entry_or_a_reason() -> None:
    listed = {each.name for each in pyg_others.LISTED}
    families = (*pyg_one_type.ENTRIES, *pyg_several_types.ENTRIES, *pyg_tables.ENTRIES)
    run = {each.name.partition(":")[0] for each in families}
    assert not listed & run
    names = sorted(listed | run)
    assert len(names) == pyg_others.FILES
    assert sha256("".join(f"{name}\n" for name in names).encode()).hexdigest() == pyg_others.FILES_SHA256


def test_a_file_with_the_network_of_another_row_names_one_that_is_run() -> None:
    run = {each.name for each in ENTRIES}
    assert {name for names in pyg_others.SAME.values() for name in names.split(", ")} <= run


@pytest.mark.parametrize(
    "make",
    [
        lambda: over_nodes(pyg.GCN(COLUMNS, 8, 2, CLASSES, norm="batch_norm")),
        lambda: over_attributes(pyg.GAT(COLUMNS, 8, 2, CLASSES, edge_dim=3)),
    ],
    ids=["counts edges", "reads edges' columns"],
)
def test_a_model_is_right_where_a_server_gives_its_scores(make: Any) -> None:
    checked = check(entry_of(make))
    assert (checked.outcome, checked.words) in {
        (Outcome.RIGHT, "2 hops"), (Outcome.RIGHT, "2 hops and one more, as it counts edges"),
    }, checked  # fmt: skip
    assert checked.difference is not None and checked.difference <= 1e-5


def test_a_refusal_counts_for_a_reason_that_its_code_gives_alone() -> None:
    checked = check(entry_of(lambda: over_nodes(Wide()), Reason.WHOLE_GRAPH))
    assert (checked.outcome, checked.words) == (Outcome.REFUSED, "reads the graph as a whole")
    checked = check(entry_of(lambda: over_nodes(Wide()), Reason.FAR))
    assert checked.outcome is Outcome.FAILED and "reads the graph as a whole" in checked.words
    assert refusal(entry_of(lambda: over_nodes(Wide())), "it cannot be exported")[0] is Outcome.FAILED


def test_a_reason_that_is_ours_is_a_limit_and_no_refusal_in_principle() -> None:
    entry = entry_of(lambda: over_nodes(Wide()), Reason.FAR)
    outcome, words = refusal(entry, "it reads nodes more than 128 hops away")
    assert outcome is Outcome.LIMIT and words == Reason.FAR


def test_links_are_right_where_pairs_have_the_scores_of_the_models_own_decoder() -> None:
    def make() -> Made:
        return replace(over_nodes(pyg.SAGEConv(COLUMNS, 8)), decoder=pyg.InnerProductDecoder())

    checked = check(Entry("made here", "tests", "", Task.LINKS, make))
    assert (checked.outcome, checked.words) == (Outcome.RIGHT, "1 hops; pairs by Dot"), checked


def test_a_model_that_cannot_be_made_has_failed() -> None:
    def broken() -> Made:
        raise ZeroDivisionError("no widths")

    checked = check(entry_of(broken))
    assert (checked.outcome, checked.words) == (Outcome.FAILED, "ZeroDivisionError: no widths")


def model(outcome: str, *, later: bool = False, **more: Any) -> dict[str, Any]:
    told = {"name": "net.py", "family": "examples", "link": "https://example.org/net.py", "task": "links", "note": ""}
    return {**told, "isLater": later, "outcome": outcome, "words": "2 hops", "seconds": 1.0, **more}


def test_what_is_not_right_or_refused_in_principle_misses_the_verdict() -> None:
    fine = [model("right", difference=1e-7), model("refused")]
    (verdict,) = judge(TABLE_VERDICTS, {"table": {"models": fine}}).values()
    assert verdict["passed"]
    bad = [
        model("failed"), model("failed", later=True), model("limit"), model("limit", later=True),
        model("right", difference=1e-3),
    ]  # fmt: skip
    for each in bad:
        (verdict,) = judge(TABLE_VERDICTS, {"table": {"models": [*fine, each]}}).values()
        assert not verdict["passed"], each


def test_tasks_that_come_later_are_counted_by_themselves() -> None:
    models = [model("right"), model("right", later=True), model("failed"), model("refused", later=True)]
    assert in_words(models) == (
        "4 models: 1 right to 1e-5, 0 refused for a reason that holds in principle, 0 refused by a limit of ours, "
        "1 failed, 2 whose task comes later, of whose rows of nodes 1 refused, 1 right"
    )
    shown = render_models(models)
    assert "[net.py](https://example.org/net.py)" in shown and "links (later)" in shown


def test_the_page_is_filled_once_there_is_a_result(tmp_path: Any) -> None:
    blocks = [f"<!-- figures: {name} -->\nold\n<!-- end of figures -->\n" for name in ("models in numbers", "models")]
    page = "\n".join(["# Models", *blocks])
    filled = fill_models(page, Results(tmp_path), History(()))
    assert filled.count("make bench-models ONLY=table") == 2
    with pytest.raises(ValueError, match="has 0 blocks"):
        fill_models("# Models\n", Results(tmp_path), History(()))
