"""Lists of all relations as one array: whose they are, and that one type is the trivial case."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs.graphs import random_graph
from tests.support.graphs.released_graphs import GRAPHS

from gnnserve_worker.graph.relation_lists import merged_lists, parted_lists
from gnnserve_worker.graph.store import Graph, GraphData


def merged(data: GraphData) -> Graph:
    return Graph(*merged_lists(data.schema, [one.lists for one in data.relations]), data.schema)


@pytest.mark.parametrize("name", ["plain", "types"])
def test_lists_of_relations_are_found_in_the_array_of_all(name: str) -> None:
    data = GRAPHS[name]
    graph, firsts = merged(data), data.schema.first_nodes
    for place, one in enumerate(data.relations):
        source, target = data.schema.place_of(one.source), data.schema.place_of(one.target)
        for position in range(data.types[target].nodes):
            expected = one.lists.list_of(position) + firsts[source]
            assert dict(graph.lists_by_relation(firsts[target] + position))[place].tolist() == expected.tolist()
    for found, one in zip(parted_lists(graph), data.relations, strict=True):
        np.testing.assert_array_equal(found.indptr, one.lists.indptr)
        np.testing.assert_array_equal(found.indices, one.lists.indices)


@pytest.mark.parametrize("name", ["plain", "types"])
def test_readers_are_the_nodes_whose_lists_name_a_node(name: str) -> None:
    graph = merged(GRAPHS[name])
    lists = [graph.list_of(node).tolist() for node in range(graph.nodes)]
    for node in range(graph.nodes):
        assert graph.readers_of(node).tolist() == [reader for reader in range(graph.nodes) if node in lists[reader]]
    read_by = list(zip(graph.targets().tolist(), graph.indices.tolist(), strict=True))
    assert sorted(read_by) == sorted((reader, node) for reader in range(graph.nodes) for node in lists[reader])


def test_lists_that_come_alone_are_of_one_type_without_a_name() -> None:
    graph = random_graph(9, 3)
    (kind,), (relation,) = graph.schema.types, graph.schema.relations
    assert (kind.name, kind.nodes, relation.edges) == ("", graph.nodes, graph.edges)
    assert graph.schema.lists == graph.nodes == 9
    assert merged_lists(graph.schema, [graph])[1] is graph.indices
