"""Samples become a program's inputs: each node once, by type, seeds first; edges hop by hop, with what they have."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.graphs.graphs import dense_features, graph_of
from tests.support.programs.programs import GRAPH_INPUTS, manifest_of

from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    GraphSchema,
    PayloadManifest,
    TypeManifest,
    one_type,
    relation_manifest,
)
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, RelationKey, contract_problems
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.programs.contract import LaidOut, lay_out
from gnnserve_worker.programs.numbering import first_leaf_of, number_sample, relations_of, seed_rows
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots, weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.sampling.relations import sample_relations

USERS, ITEMS = 6, 4
ENDS = {("user", "knows", "user"): 12, ("item", "bought_by", "user"): 14, ("user", "buys", "item"): 14}
KEYS = [RelationKey(*ends) for ends in ENDS]
PAYLOAD = PayloadManifest(("price", "stars"), "at", 14)
SCHEMA = GraphSchema(
    (TypeManifest("user", USERS, 3, "Positions"), TypeManifest("item", ITEMS, 2, "Positions")),
    tuple(
        relation_manifest(*ends, count, None, AS_LISTED, *((PAYLOAD,) if ends[1] == "buys" else ()))
        for ends, count in ENDS.items()
    ),
)
ROWS = {"user": dense_features(USERS, 3, 1), "item": dense_features(ITEMS, 2, 2)}


def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
    """Rows of nodes by names in the one numbering of all types."""
    assert not own
    return ROWS["item"][names - USERS] if kind else ROWS["user"][names]


def typed_graph() -> tuple[Graph, EdgePayload]:
    """Edges drawn at random, between the same two nodes several times too."""
    random = np.random.default_rng(8)
    lists: list[list[list[int]]] = [[[], []] for _ in range(USERS)] + [[[]] for _ in range(ITEMS)]
    first = {"user": 0, "item": USERS}
    counts = {"user": USERS, "item": ITEMS}
    slots = dict(zip(ENDS, (0, 1, 0), strict=True))
    for (source, name, target), count in ENDS.items():
        for _ in range(count):
            node = first[target] + int(random.integers(counts[target]))
            lists[node][slots[source, name, target]].append(first[source] + int(random.integers(counts[source])))
    plain = graph_of([one for node in lists for one in node])
    is_bought = np.repeat(np.arange(len(plain.indptr) - 1) >= 2 * USERS, np.diff(plain.indptr))
    rows = np.full(len(plain.indices), -1, np.int32)
    rows[is_bought] = random.permutation(14)
    payload = EdgePayload(("price", "stars"), dense_features(14, 2, 9), "at", np.arange(100, 114))
    return Graph(plain.indptr, plain.indices, SCHEMA, rows), payload


GRAPH, BOUGHT = typed_graph()
INPUTS = (
    ProgramInput("x_user", InputRole.FEATURES, "user"),
    ProgramInput("x_item", InputRole.FEATURES, "item"),
    *(ProgramInput(key.name, InputRole.EDGES, relation=key) for key in KEYS),
    ProgramInput("attr", InputRole.EDGE_FEATURES, relation=KEYS[2]),
    ProgramInput("time", InputRole.EDGE_TIMES, relation=KEYS[2]),
    ProgramInput("buys_1", InputRole.EDGES, relation=KEYS[2], hops=1),
    ProgramInput("time_1", InputRole.EDGE_TIMES, relation=KEYS[2], hops=1),
    ProgramInput("users", InputRole.NODES_PER_HOP, "user"),
    ProgramInput("items", InputRole.NODES_PER_HOP, "item"),
    ProgramInput("bought", InputRole.EDGES_PER_HOP, relation=KEYS[1]),
    ProgramInput("seeds", InputRole.SEED_COUNT),
)


def laid_out(seeds: list[int], fanouts: tuple[int, ...], *, share: bool) -> LaidOut:
    sample = sample_relations(
        GRAPH.indptr, GRAPH.indices, np.array(seeds, np.int64), fanouts, 0, Scratch(), layout=GRAPH.layout, share=share,
        names_positions=True,
    )  # fmt: skip
    sample = msgspec.structs.replace(sample, payload=gather_payload(GRAPH, (None, None, BOUGHT), sample))
    return lay_out(manifest_of(INPUTS, hops=len(fanouts)), SCHEMA, sample, read)


def scores_by(arrays: Any, layers: int) -> np.ndarray:
    """Two numbers of each user after so many layers of sums, each relation with a factor of its own."""
    users, items = arrays["x_user"][:, :2], arrays["x_item"]
    for _ in range(layers):
        of_users, of_items = users.copy(), items.copy()
        np.add.at(of_users, arrays["knows"][1], 0.3 * users[arrays["knows"][0]])
        np.add.at(of_users, arrays["bought_by"][1], 0.2 * items[arrays["bought_by"][0]])
        worth = arrays["attr"] * (arrays["time"][:, None] - 90) * 0.1
        np.add.at(of_items, arrays["buys"][1], worth * users[arrays["buys"][0]])
        users, items = of_users, of_items
    return users


def whole() -> dict[str, np.ndarray]:
    """The whole graph as a program's inputs, each type from 0."""
    lists = np.repeat(np.arange(len(GRAPH.indptr) - 1), np.diff(GRAPH.indptr))
    of = {
        "knows": (lists < 2 * USERS) & (lists % 2 == 0),
        "bought_by": (lists < 2 * USERS) & (lists % 2 == 1),
        "buys": lists >= 2 * USERS,
    }
    sources = np.where(GRAPH.indices < USERS, GRAPH.indices, GRAPH.indices - USERS)
    targets = np.where(lists < 2 * USERS, lists // 2, lists - 2 * USERS)
    arrays = {name: np.stack([sources[mask], targets[mask]]) for name, mask in of.items()}
    rows = GRAPH.payload_rows[of["buys"]]
    return {
        **arrays, "x_user": ROWS["user"], "x_item": ROWS["item"],
        "attr": BOUGHT.features[rows], "time": BOUGHT.times[rows],
    }  # fmt: skip


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("seeds", [[3], [5, 0, 2], [1, 4, 1]])
def test_several_types_score_as_over_the_whole_graph(seeds: list[int], layers: int, share: bool) -> None:
    laid = laid_out(seeds, (-1,) * layers, share=share)
    expected = scores_by(whole(), layers)[seeds]
    np.testing.assert_allclose(scores_by(laid.arrays, layers)[laid.seeds], expected, rtol=1e-5, atol=1e-5)


def test_counts_add_up_hop_by_hop() -> None:
    laid = laid_out([5, 0, 2], (-1, -1), share=True)
    arrays = laid.arrays
    assert arrays["seeds"].shape == () and int(arrays["seeds"]) == arrays["users"][0] == 3
    assert laid.seeds.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(arrays["x_user"][:3], ROWS["user"][[5, 0, 2]])
    assert arrays["items"][0] == 0 and arrays["items"].shape == (3,)
    for kind in ("user", "item"):
        assert arrays[f"{kind}s"].sum() == len(arrays[f"x_{kind}"])
        assert len(np.unique(arrays[f"x_{kind}"], axis=0)) == len(arrays[f"x_{kind}"]), "a node is there twice"
    assert arrays["bought"].sum() == arrays["bought_by"].shape[1]
    ends = np.cumsum([0, *arrays["bought"]])
    first = [set(arrays["bought_by"][1, begin:end].tolist()) for begin, end in pairwise(ends)]
    assert not first[0] & first[1], "edges of a node stand in the hop that it has"
    # Items are read from the second hop on.
    assert arrays["buys_1"].shape == (2, 0) and arrays["time_1"].shape == (0,)
    assert {array.flags["C_CONTIGUOUS"] for array in arrays.values()} == {True}


@pytest.mark.parametrize("share", [True, False])
def test_a_node_is_one_whichever_hop_it_is_in(share: bool) -> None:
    """Node 0 reads itself and 1, which reads 0 twice: a program that adds self-loops finds the one that is there."""
    graph = graph_of([[0, 1], [0, 0]])
    numbered = number_sample(sample(graph, [0], (-1, -1), share=share), relations_of(one_type(2, 4)))
    assert [each.tolist() for each in numbered.nodes] == [[0, 1]]
    assert numbered.edges[0].tolist() == [[0, 1, 0, 0], [0, 0, 1, 1]]
    assert numbered.edges_per_hop.tolist() == [[2, 2]]
    assert numbered.nodes_per_hop.tolist() == [[1, 1, 0]]


def test_views_keep_nodes_apart() -> None:
    """Two requests that see the same node have it twice, each with its own list."""
    drawn = sample(graph_of([[1, 2], [0], [1]]), [0, 0], (-1, -1), share=False)
    views = np.array([0, 1, 0, 0, 1, 1], np.int32)
    numbered = number_sample(msgspec.structs.replace(drawn, views=views), relations_of(one_type(3, 4)))
    assert numbered.nodes[0].tolist() == [0, 0, 1, 2, 1, 2]
    assert numbered.seeds.tolist() == [0, 1]
    assert set(map(tuple, numbered.edges[0].T.tolist())) == {
        (2, 0), (3, 0), (4, 1), (5, 1), (0, 2), (2, 3), (1, 4), (4, 5),
    }  # fmt: skip


@pytest.mark.parametrize("fanouts", [(2, 2), (-1,), (0, 0), (3, 1, 2)])
def test_samples_without_edges_and_of_any_depth_are_laid_out(fanouts: tuple[int, ...]) -> None:
    drawn = sample(graph_of([[1, 2, 0], [], [0, 0]]), [1, 0], fanouts, share=True)
    features = dense_features(3, 4, 0)
    program = manifest_of(hops=len(fanouts))
    laid = lay_out(program, one_type(3, 5), drawn, lambda names, kind, own=False: features[names])
    assert laid.arrays["x"].shape[1] == 4
    assert laid.arrays["edge_index"].max(initial=0) < len(laid.arrays["x"])
    assert laid.arrays["edge_index"].dtype == np.int64


@pytest.mark.parametrize("fanouts", [(-1,), (-1, -1), (2, 2, 2)])
@pytest.mark.parametrize("has_views", [False, True])
@pytest.mark.parametrize("share", [True, False])
def test_nodes_and_edges_are_numbered_as_a_plain_reading_does(
    fanouts: tuple[int, ...], *, has_views: bool, share: bool
) -> None:
    for seed in range(5):
        seeds = np.random.default_rng(seed).integers(0, USERS + ITEMS, 4)
        drawn = sample_relations(
            GRAPH.indptr, GRAPH.indices, seeds, fanouts, seed, Scratch(), layout=GRAPH.layout, share=share
        )
        if has_views:
            # Whatever they would be: a name in another view is another node.
            drawn = msgspec.structs.replace(drawn, views=np.arange(len(drawn.nodes), dtype=np.int32) % 2)
        found, expected = number_sample(drawn, relations_of(SCHEMA)), numbered_plainly(drawn)
        assert [each.tolist() for each in found.nodes] == expected[0]
        assert [each.T.tolist() for each in found.edges] == expected[1]
        assert [each.tolist() for each in found.places] == expected[2]
        assert found.seeds.tolist() == expected[3]


def numbered_plainly(
    drawn: NeighbourSample,
) -> tuple[list[list[int]], list[list[list[int]]], list[list[int]], list[int]]:
    """Names by type, edges and their places by relation, and the numbers of the seeds."""
    relations, first_leaf, rows = relations_of(SCHEMA), first_leaf_of(drawn), len(drawn.nodes)
    kind_of = np.repeat(np.arange(len(drawn.type_ends)) % 2, np.diff(drawn.type_ends, prepend=0)).tolist()
    views = np.zeros(rows, np.int32) if drawn.views is None else drawn.views
    numbers: dict[tuple[int, int], int] = {}
    nodes: list[list[int]] = [[], []]
    kept = []

    def number_of(key: tuple[int, int], kind: int) -> int:
        if key not in numbers:
            numbers[key] = len(nodes[kind])
            nodes[kind].append(key[0])
        return numbers[key]

    for row in range(rows):
        kept.append((int(drawn.nodes[row]), int(views[row])) not in numbers)
        number_of((int(drawn.nodes[row]), int(views[row])), kind_of[row])
    edges: list[list[list[int]]] = [[] for _ in KEYS]
    places: list[list[int]] = [[] for _ in KEYS]
    for row in range(rows):
        for slot in range(relations.stride):
            relation = relations.relation_of[kind_of[row] * relations.stride + slot]
            begin, end = drawn.segments[row * relations.stride + slot : row * relations.stride + slot + 2]
            for edge in range(begin, end):
                if edge < first_leaf:
                    child = int(drawn.children[edge])
                    source = numbers[int(drawn.nodes[child]), int(views[child])]
                else:
                    key = (int(drawn.neighbours[edge]), int(views[row]))
                    source = number_of(key, relations.source_of[relation])
                if kept[row]:
                    edges[relation].append([source, numbers[int(drawn.nodes[row]), int(views[row])]])
                    places[relation].append(edge)
    return nodes, edges, places, [numbers[int(drawn.nodes[row]), int(views[row])] for row in seed_rows(drawn)]


def test_payload_that_was_not_drawn_is_told() -> None:
    drawn = sample(graph_of([[0]]), [0], (-1,), share=True)
    program = manifest_of((ProgramInput("attr", InputRole.EDGE_FEATURES),), hops=1)
    with pytest.raises(ValueError, match="attr reads what edges have"):
        lay_out(program, one_type(1, 1), drawn, lambda names, kind, own=False: np.zeros((1, 1)))


def sample(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], *, share: bool) -> NeighbourSample:
    return sample_neighbours(graph.indptr, graph.indices, np.array(seeds), fanouts, 0, Scratch(), share=share)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((GRAPH_INPUTS[0], GRAPH_INPUTS[0]), "'x' is given 2 times"),
        ((*GRAPH_INPUTS, ProgramInput("rows", InputRole.ROWS)), "rows are by layer as gnnserve export writes them"),
        ((ProgramInput("x", InputRole.FEATURES, "shop"),), "x is of type 'shop'; the graph has ''"),
        (
            (ProgramInput("e", InputRole.EDGES, relation=RelationKey("a", "b", "c")),),
            "e is of relation 'a b c'; the graph has '  '",
        ),
        ((ProgramInput("e", InputRole.EDGES, hops=3),), "e has hops 3; .* may have 1 to 2"),
        ((ProgramInput("x", InputRole.FEATURES, hops=1),), "x has hops 1; .* leave it out"),
        ((ProgramInput("e", InputRole.LAYER_EDGES),), "e is LayerEdges of layer None; give a layer, 1 to 2"),
        ((ProgramInput("w", InputRole.NORMALISED_WEIGHTS, without_self=True),), "w has withoutSelf, .* leave it out"),
    ],
)
def test_contracts_that_cannot_be_are_told(inputs: tuple[ProgramInput, ...], words: str) -> None:
    (problem,) = contract_problems(manifest_of(inputs), one_type(5, 5, 3))
    assert re.search(words, problem), problem


def test_inputs_by_layer_are_of_graphs_of_one_type() -> None:
    inputs = (ProgramInput("rows", InputRole.ROWS), ProgramInput("edges_1", InputRole.LAYER_EDGES, layer=1))
    (problem,) = contract_problems(manifest_of(inputs), SCHEMA)
    assert "rows, edges_1 are by layer, which programs over one type have" in problem


def test_weights_of_neighbours_are_of_graphs_of_one_type() -> None:
    (problem,) = contract_problems(manifest_of((ProgramInput("w", InputRole.NORMALISED_WEIGHTS),)), SCHEMA)
    assert re.match("w is weights of neighbours, which samples over one type have, .*set readsDegrees", problem)


@pytest.mark.parametrize("fanouts", [(-1, -1), (1, 2)])
def test_weights_are_of_the_edges_and_nodes_as_they_are_numbered(fanouts: tuple[int, ...]) -> None:
    graph = graph_of([[1, 2, 2], [0, 1], [], [0]])
    roots = inverse_roots(graph.indptr, graph.indices)
    drawn = weigh(sample(graph, [3, 1], fanouts, share=True), graph.indptr, roots, Scratch())
    inputs = (
        *GRAPH_INPUTS,
        ProgramInput("weights", InputRole.NORMALISED_WEIGHTS),
        ProgramInput("own", InputRole.NORMALISED_WEIGHTS, of_targets=True),
    )
    program = manifest_of(inputs)
    laid = lay_out(program, one_type(4, 6, 1), drawn, lambda names, kind, own=False: names[:, None].astype(np.float32))
    names = laid.arrays["x"][:, 0].astype(np.int64)
    rows = len(laid.arrays["own"])
    np.testing.assert_allclose(laid.arrays["own"], roots[names[:rows]] ** 2, rtol=1e-6)
    sources, targets = names[laid.arrays["edge_index"]]
    lengths = np.diff(graph.indptr)[targets]
    counts = np.bincount(laid.arrays["edge_index"][1], minlength=len(names))[laid.arrays["edge_index"][1]]
    expected = np.where(sources == targets, 0, roots[sources] * roots[targets] * lengths / counts)
    np.testing.assert_allclose(laid.arrays["weights"], expected, rtol=1e-6)


def test_contracts_are_kept_as_json() -> None:
    program = manifest_of(INPUTS, hops=3, reads_degrees=True)
    assert contract_problems(program, SCHEMA) == []
    assert msgspec.json.decode(msgspec.json.encode(program), type=ProgramManifest) == program
    assert (program.sampled_hops, program.reads_payload, program.is_layered) == (4, True, False)
    assert b'"is":"Features"' in msgspec.json.encode(program)
