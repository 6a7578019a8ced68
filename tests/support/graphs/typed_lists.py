"""Random lists over several types, and their edges drawn."""

from __future__ import annotations

import numpy as np

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import AS_LISTED
from gnnserve_worker.graph.overlay import OverlayArranger, overlay_arranger
from gnnserve_worker.graph.relation_lists import TypePlaces, merged_lists, places_of
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Relation, Splits

ONCE = EdgeRules(Direction.DIRECTED, Duplicates.MERGE)
NODES = {"user": 12, "item": 9, "tag": 4}


def random_lists(draw: np.random.Generator, readers: int, senders: int) -> Graph:
    """Ascending, with repeats."""
    lengths = draw.integers(0, 5, readers)
    entries = [np.sort(draw.integers(0, senders, length)) for length in lengths]
    return Graph(np.concatenate(([0], np.cumsum(lengths))), np.concatenate(entries).astype(np.int32))


def over_types(draw: np.random.Generator) -> OverlayArranger:
    """Three types; a relation with two reverses, relations that merge or go both ways, a type that reads nothing."""

    def between(source: str, name: str, target: str, rules: EdgeRules, reverse_of: str | None = None) -> Relation:
        lists = random_lists(draw, NODES[target], NODES[source])
        return Relation(source, name, target, lists, reverse_of, rules)

    data = GraphData(
        "made up", "5eed",
        tuple(NodeType(name, count, None) for name, count in NODES.items()),
        (
            between("user", "knows", "user", EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE, SelfLoops.REMOVE)),
            between("user", "blocks", "user", EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)),
            between("item", "rev_buys", "user", ONCE, "buys"),
            between("item", "sold", "user", AS_LISTED, "buys"),
            between("user", "buys", "item", ONCE),
            between("tag", "marks", "item", AS_LISTED),
        ),
        np.zeros(NODES["user"], np.int64), (0,), Splits(*(np.zeros(0, np.int64) for _ in range(3))),
    )  # fmt: skip
    graph = Graph(*merged_lists(data.schema, [one.lists for one in data.relations]), data.schema)
    return overlay_arranger(graph, places_of(data.schema))


def readings(places: TypePlaces, relation: int, source: int, target: int) -> list[tuple[int, int, int]]:
    """Relation, reader and sender of each entry that an edge becomes."""
    rules = places.rules[relation]
    if source == target and rules.self_loops is SelfLoops.REMOVE:
        return []
    there, back = (relation, target, source), (relation, source, target)
    found = [back if rules.direction is Direction.REVERSED else there]
    if rules.direction is Direction.UNDIRECTED and source != target:
        found.append(back)
    return [*found, *((one, source, target) for one in places.reverses[relation])]


def drawn_edges(
    arranger: OverlayArranger, draw: np.random.Generator, new_types: list[int], count: int = 30
) -> list[tuple[int, int, int]]:
    """Relation, source and target of edges between any nodes of the right types, new ones among them."""
    places, stored = arranger.places, arranger.graph.nodes

    def some(kind: int) -> int:
        first, end = places.first_nodes[kind : kind + 2].tolist()
        return int(draw.choice([*range(first, end), *(stored + k for k, one in enumerate(new_types) if one == kind)]))

    own = [place for place in range(len(places.rules)) if all(place not in each for each in places.reverses)]
    relations = draw.choice(own, count).tolist()
    return [(one, some(int(places.sources[one])), some(int(places.targets[one]))) for one in relations]
