"""A relation with edge rules of its own, which no source states today: imported, kept, read and sampled by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.generation.repository import repository_in
from tests.support.sampling.samplers import sampler_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.repository import ChangedSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.sources.assembly import GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.table_nodes import LabelledNodes
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Splits
from gnnserve_worker.sampling.neighbours import Scratch

NODES = 7
EDGES = ((0, 1), (0, 1), (1, 0), (2, 2), (3, 5), (5, 3), (6, 0), (4, 4), (3, 1))
SOURCE = HeterogeneousSource.model_validate({"npz": {"uri": "/a/folder"}, "reverse": "Disabled"})
RULES = [EdgeRules(way, repeats, loops) for way in Direction for repeats in Duplicates for loops in SelfLoops]


def read_by(rules: EdgeRules) -> list[list[int]]:
    """What each node reads, by the words of the rules."""
    pairs = [(reader, sender) for sender, reader in EDGES]
    if rules.direction is Direction.REVERSED:
        pairs = [*EDGES]
    if rules.duplicates is Duplicates.MERGE:
        pairs = [*dict.fromkeys(pairs)]
    if rules.direction is Direction.UNDIRECTED:
        turned = [pair[::-1] for pair in pairs if pair[0] != pair[1]]
        pairs = [*dict.fromkeys([*pairs, *turned])] if rules.duplicates is Duplicates.MERGE else [*pairs, *turned]
    if rules.self_loops is SelfLoops.REMOVE:
        pairs = [pair for pair in pairs if pair[0] != pair[1]]
    return [sorted(sender for reader, sender in pairs if reader == node) for node in range(NODES)]


def imported(rules: EdgeRules) -> GraphData:
    ends = np.array(EDGES)
    splits = Splits(np.array([0]), np.array([1]), np.array([2]))
    users = NodeType("user", NODES, np.eye(NODES, dtype=np.float32))
    labelled = LabelledNodes(np.arange(NODES) % 2, (0, 1), splits)
    follows = GivenRelation("user", "follows", "user", ends[:, 0], ends[:, 1], "a test", ("src", "dst"), rules)
    return assemble(SOURCE, "0123abcd", [GivenType(users, labelled, "a test")], [follows])


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.in_words)
def test_a_relation_is_read_by_its_own_rules(tmp_path: Path, rules: EdgeRules) -> None:
    data, expected = imported(rules), read_by(rules)
    (relation,) = data.relations
    assert [relation.lists.list_of(node).tolist() for node in range(NODES)] == expected
    repository = repository_in(tmp_path)
    repository.put_graph(replace(data, made_of=ChangedSource("0123", "uid", 1, 1, 0)))
    (kept,) = repository.read_graph(data.digest).relations
    assert kept.edge_rules == rules
    graph = Graph(*merged_lists(data.schema, [kept.lists]), data.schema)
    seeds = np.arange(NODES)
    sample = sampler_of(graph)(graph.indptr, graph.indices, seeds, (-1,), 1, Scratch(), share=False)
    rows = seeds if sample.seed_rows is None else sample.seed_rows
    drawn = [sample.neighbours[sample.starts[row] : sample.starts[row + 1]].tolist() for row in rows]
    assert [sorted(one) for one in drawn] == expected
