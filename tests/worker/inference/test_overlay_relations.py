"""Overlays over several types as the kernel arranges them, against the same in plain Python, edge by edge."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs.typed_lists import NODES, drawn_edges, over_types, random_lists, readings

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import one_type
from gnnserve_worker.graph.overlay import OverlayArranger, overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of


def arranged_plainly(
    arranger: OverlayArranger, new_types: list[int], overridden: list[int], edges: list[tuple[int, int, int]]
) -> tuple[list[int], list[list[int]]]:
    """What each overlay node stands for, and what each of its lists gains. `edges`: relation, source, target."""
    graph, places, stride, stored = arranger.graph, arranger.places, arranger.stride, arranger.graph.nodes
    stands_for = [-1 - kind for kind in new_types] + overridden
    gained: dict[tuple[int, int], list[int]] = {}
    for relation, source, target in edges:
        for by, reader, sender in readings(places, relation, source, target):
            if reader < stored and reader not in stands_for:
                stands_for.append(reader)
            place = stands_for.index(reader) if reader < stored else reader - stored
            if places.rules[by].duplicates is Duplicates.MERGE:
                kept = []
                if reader < stored:
                    begin, end = graph.indptr[int(places.list_by(by, np.array([reader]))[0]) :][:2]
                    kept = graph.indices[begin:end].tolist()
                if sender in [*kept, *gained.get((place, int(places.slot_of[by])), [])]:
                    continue
            gained.setdefault((place, int(places.slot_of[by])), []).append(sender)

    def called(node: int) -> int:
        if node >= stored:
            return stored + (node - stored) * stride
        return stored + stands_for.index(node) * stride if node in stands_for else node

    lists = [(place, slot) for place in range(len(stands_for)) for slot in range(stride)]
    return stands_for, [[called(one) for one in sorted(gained.get(each, []))] for each in lists]


def assert_alike(
    arranger: OverlayArranger, new_types: list[int], overridden: list[int], edges: list[tuple[int, int, int]]
) -> None:
    stride, stored, ends = arranger.stride, arranger.graph.nodes, np.array(edges, np.int64).reshape(-1, 3)
    features = np.zeros((len(new_types) + len(overridden), 2), np.float32)
    asked = np.arange(stored + len(new_types))
    overlay, seeds = arranger.arrange(
        features, np.array(overridden, np.int64), ends[:, 1:], asked, np.array(new_types, np.int64),
        np.ascontiguousarray(ends[:, 0]),
    )  # fmt: skip
    stands_for, lists = arranged_plainly(arranger, new_types, overridden, edges)
    assert overlay.origins[::stride].tolist() == stands_for
    assert (overlay.origins.reshape(-1, stride)[:, 1:] == -1).all()
    bounds = zip(overlay.starts[:-1], overlay.starts[1:], strict=True)
    assert [overlay.neighbours[begin:end].tolist() for begin, end in bounds] == lists
    given = len(new_types) + len(overridden)
    header = [len(lists), sum(map(len, lists)), given * stride, len(overridden), len(stands_for) - len(new_types)]
    assert overlay.packed[:5].tolist() == header
    wanted = [stored + stands_for.index(node) * stride if node in stands_for else node for node in range(stored)]
    assert seeds.tolist() == wanted + [stored + place * stride for place in range(len(new_types))]


@pytest.mark.parametrize("seed", range(20))
def test_overlays_over_several_types_are_arranged_as_by_hand(seed: int) -> None:
    draw = np.random.default_rng(seed)
    arranger = over_types(draw)
    stored = arranger.graph.nodes
    new_types = draw.integers(0, len(NODES), 4).tolist()
    edges = drawn_edges(arranger, draw, new_types)
    assert_alike(arranger, new_types, draw.choice(stored, 3, replace=False).tolist(), [*edges, *edges[:4]])
    assert_alike(arranger, [], [], [edge for edge in edges if max(edge[1:]) < stored])
    assert_alike(arranger, new_types, [], [])


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("self_loops", SelfLoops)
@pytest.mark.parametrize("duplicates", Duplicates)
def test_one_type_is_arranged_by_whichever_rules_its_edges_followed(
    direction: Direction, self_loops: SelfLoops, duplicates: Duplicates
) -> None:
    draw = np.random.default_rng(3)
    rules = EdgeRules(direction, duplicates, self_loops)
    arranger = overlay_arranger(random_lists(draw, 8, 8), places_of(one_type(8, 0, edge_rules=rules)))
    edges = [(0, source, target) for source, target in draw.integers(0, 11, (40, 2)).tolist()]
    assert_alike(arranger, [0, 0, 0], [5, 2], edges)
