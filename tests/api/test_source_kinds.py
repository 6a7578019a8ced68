"""Kinds of graphs that sources have: rules are declared by a kind, and hold for specs of that kind alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.rules import rules_of
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.source_kinds import ONE_TYPE, SEVERAL_TYPES, GraphSourceKind

TABLE = {"uri": "file:///a.csv"}
OF_ONE_TYPE: dict[str, Any] = {
    "builtin": "Digits",
    "npz": TABLE,
    "ogb": {"name": "ogbn-arxiv"},
    "pyg": {"name": "Cora"},
    "parquet": {"nodes": {**TABLE, "label": "kind"}, "edges": TABLE},
    "csv": {"nodes": {**TABLE, "label": "kind"}, "edges": TABLE},
}


def test_every_source_says_its_kind() -> None:
    for name, given in {**OF_ONE_TYPE, "typed": {"npz": {"uri": "file:///shop"}}}.items():
        kind = GraphSource.model_validate({name: given}).kind
        assert kind is (SEVERAL_TYPES if name == "typed" else ONE_TYPE), name
    assert {*OF_ONE_TYPE, "typed"} == {*GraphSource.model_fields}


def test_a_rule_of_a_further_kind_is_asked_of_its_specs_alone() -> None:
    further = GraphSourceKind("!has(self.graph.source.stream)", lambda model: False)

    nothing_is_stored = further.rule(
        "size(self.variants.stored) == 0", "variants.stored must be left out with graph.source.stream"
    )

    def problem(kind: GraphSourceKind, *stored: int) -> str | None:
        source = SimpleNamespace(stream={} if kind is further else None)
        spec = SimpleNamespace(graph=SimpleNamespace(source=source), variants=SimpleNamespace(stored=stored))
        return nothing_is_stored.problem(spec)

    assert nothing_is_stored.cel == "!has(self.graph.source.stream) || size(self.variants.stored) == 0"
    assert problem(further, 1) == "variants.stored must be left out with graph.source.stream"
    assert problem(further) is problem(ONE_TYPE, 1) is problem(SEVERAL_TYPES, 1) is None


@pytest.mark.parametrize("kind", [ONE_TYPE, SEVERAL_TYPES], ids=["one type", "several types"])
def test_a_kind_has_rules_of_its_own(kind: GraphSourceKind) -> None:
    begins = [rule for rule in rules_of(GNNServiceSpec) if rule.cel.startswith(f"{kind.others} || ")]
    assert len(begins) >= 3
    assert all("graph.source.typed" in rule.message for rule in begins)
