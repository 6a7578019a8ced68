"""The synthetic graphs of the benchmarks: their invariants, and that probes have one right answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks import shapes
from benchmarks.shapes import FANOUTS, PROBES, Shape, exact_scores, power_law_graph, prepare, prepare_sources

from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_worker.graph.sources.load import load_source

SMALL = Shape("small", nodes=2_000, edges=20_000, features=12, hidden=8, classes=5)


@pytest.fixture(scope="module")
def graph() -> tuple[np.ndarray, np.ndarray]:
    return power_law_graph(SMALL)


def _links(graph: tuple[np.ndarray, np.ndarray]) -> set[tuple[int, int]]:
    indptr, indices = graph
    targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return set(zip(targets.tolist(), indices.tolist(), strict=True))


def test_a_graph_has_exactly_the_nodes_and_edges_of_its_shape(graph: tuple[np.ndarray, np.ndarray]) -> None:
    indptr, indices = graph
    assert (len(indptr), len(indices), indptr[-1]) == (SMALL.nodes + 1, SMALL.edges, SMALL.edges)
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)


def test_links_go_both_ways_without_loops_or_repetition(graph: tuple[np.ndarray, np.ndarray]) -> None:
    links = _links(graph)
    assert len(links) == SMALL.edges
    assert all((b, a) in links and a != b for a, b in links)


def test_degrees_are_skewed_and_tell_nothing_about_the_id(graph: tuple[np.ndarray, np.ndarray]) -> None:
    degrees = np.diff(graph[0])[:-PROBES]
    assert degrees.max() > 5 * degrees.mean()
    assert abs(np.corrcoef(np.arange(len(degrees)), degrees)[0, 1]) < 0.1


def test_probes_are_a_component_of_their_own_that_fits_the_fanouts(graph: tuple[np.ndarray, np.ndarray]) -> None:
    indptr, indices = graph
    assert set(np.diff(indptr)[-PROBES:].tolist()) == {6}
    assert max(np.diff(indptr)[-PROBES:]) <= min(FANOUTS)
    assert indices[indptr[SMALL.seeds_end] :].min() >= SMALL.seeds_end
    assert indices[: indptr[SMALL.seeds_end]].max() < SMALL.seeds_end


def test_the_same_shape_gives_the_same_graph_and_another_seed_another(graph: tuple[np.ndarray, np.ndarray]) -> None:
    again = power_law_graph(SMALL)
    assert all((one == other).all() for one, other in zip(graph, again, strict=True))
    other = Shape(**{**_as_dict(SMALL), "seed": 1})
    assert (power_law_graph(other)[1] != graph[1]).any()


def _as_dict(shape: Shape) -> dict[str, object]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def test_exact_scores_are_those_of_a_loop_over_nodes() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(6, 3)).astype(np.float32)
    neighbours = np.array([[1, 2], [0, 3], [4, 5], [5, 1], [2, 0], [3, 4]])
    weights = shapes.random_weights(Shape("six", 6, 12, features=3, hidden=4, classes=2))

    def layer(number: int, rows: list[np.ndarray], node: int) -> np.ndarray:
        mean = sum(rows[n] for n in neighbours[node]) / 2
        left, right = weights[f"convs.{number}.lin_l.weight"], weights[f"convs.{number}.lin_r.weight"]
        return np.asarray(left @ mean + weights[f"convs.{number}.lin_l.bias"] + right @ rows[node])

    hidden = [np.maximum(layer(0, list(features), node), 0) for node in range(6)]
    wanted = [layer(1, hidden, node) for node in range(6)]
    assert np.allclose(exact_scores(features, neighbours, weights), wanted, atol=1e-5)


def test_files_are_made_once_and_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "CACHE", tmp_path)
    files = prepare(SMALL)
    assert prepare(SMALL).folder == files.folder
    assert files.probe_scores().shape == (PROBES, SMALL.classes)
    features = files.folder / "features.npy"
    features.write_bytes(features.read_bytes()[:-1] + b"?")
    with pytest.raises(SystemExit, match=r"features\.npy is damaged"):
        prepare(SMALL)


def test_sources_are_a_graph_file_and_a_checkpoint_that_gnnserve_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "CACHE", tmp_path)
    folder = prepare_sources(prepare(SMALL))
    graph = load_source(GraphSource(npz=NpzSource(uri=(folder / "graph.npz").as_uri())), Path("unused"))
    assert (graph.graph.nodes, graph.graph.edges, len(graph.classes)) == (SMALL.nodes, SMALL.edges, SMALL.classes)
    assert {path.name for path in folder.iterdir()} == {"graph.npz", "checkpoint.safetensors", "sha256.json"}
    assert set(json.loads((folder / "sha256.json").read_text())) == {"graph.npz", "checkpoint.safetensors"}
