"""Examples of examples/describe are described as their page says; the one of DGL was run by hand (docs/programs.md)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.pages.pages import ROOT

from gnnserve_api.manifest import load_manifest
from gnnserve_describe import Wishes, describe
from gnnserve_describe.write import MANIFEST
from gnnserve_worker.graph.sources.load import load_source

EXAMPLES = ROOT / "examples" / "describe"


@pytest.mark.parametrize(
    ("name", "sizes", "inputs"),
    [
        ("papers", {"PAPERS": 200}, ["x", "edge_index"]),
        (
            "payments", {"ACCOUNTS": 150, "SHOPS": 20},
            [
                "x_account", "x_shop", "edge_index_account_pays_shop", "edge_attr_account_pays_shop",
                "edge_index_account_knows_account", "edge_index_shop_rev_pays_account",
                "edge_attr_shop_rev_pays_account",
            ],
        ),
    ],
    ids=["one type", "several types"],
)  # fmt: skip
def test_an_example_is_described(
    name: str, sizes: dict[str, int], inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load(name)
    for each, size in sizes.items():
        monkeypatch.setattr(example, each, size)
    made = describe(example.model(epochs=1), example.graph(), tmp_path / name, Wishes(nodes=32))
    assert [each.name for each in made.program.inputs] == inputs
    assert made.program.hops == 2
    spec = load_manifest(made.folder / MANIFEST).spec
    graph = load_source(spec.graph.source, Path("unused"))
    assert [each.nodes for each in graph.types] == list(sizes.values())
    assert sum(each.lists.edges for each in graph.relations) == sum(
        edges.shape[1] for edges in made.example.graph.edges.values()
    )


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("papers", lambda graph: (graph, (graph.x, graph.edge_index))),
        (
            "payments",
            lambda graph: (graph["account"], (graph.x_dict, graph.edge_index_dict, graph.edge_attr_dict)),
        ),
    ],
    ids=["one type", "several types"],
)  # fmt: skip
def test_an_example_learns(name: str, taken: Callable[[Any], tuple[Any, tuple[Any, ...]]]) -> None:
    example = load(name)
    (nodes, arguments), module = taken(example.graph()), example.model().eval()
    with torch.no_grad():
        scores = module(*arguments)
    labels = nodes.y[nodes.test_mask]
    right, largest_class = (scores.argmax(dim=1)[nodes.test_mask] == labels).sum(), labels.bincount().max()
    assert right > (len(labels) + largest_class) / 2  # nearer to all than to the share of one class


def load(name: str) -> Any:
    found = importlib.util.spec_from_file_location(f"describe_{name}", EXAMPLES / f"{name}.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
