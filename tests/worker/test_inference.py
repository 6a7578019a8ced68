"""One batch through one variant: what is answered depends on the revision, the seeds and the key alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.support.graphs import dense_features, graph_of, network_manifest, random_graph, revision_in_memory

from gnnserve_worker import parallel
from gnnserve_worker.graph.gather import gather_tree
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.sampling.tree import sample_tree
from gnnserve_worker.serving import inference as inference_module
from gnnserve_worker.serving.inference import Inference, chunk_bounds, infer_batch, warm_up

NODES, WIDTH = 300, 8
VARIANTS = {"x1": 8, "x2": 4, "x8": 1}
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])


def _revision(
    architecture: str = "GraphSAGE", fanouts: tuple[int, ...] = (4, 3), *, mean_degree: float = 12
) -> LoadedRevision:
    return revision_in_memory(
        random_graph(NODES, seed=1, mean_degree=mean_degree),
        dense_features(NODES, WIDTH, seed=2),
        network_manifest(architecture, fanouts),
        VARIANTS,
    )


def _use(monkeypatch: pytest.MonkeyPatch, *, threads: int) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: threads)
    monkeypatch.setattr(inference_module, "thread_count", lambda: threads)


def _assert_same(one: Inference, other: Inference) -> None:
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-5)
    assert one.embeddings is not None
    assert other.embeddings is not None
    np.testing.assert_allclose(one.embeddings, other.embeddings, rtol=1e-4, atol=1e-5)
    assert one.gathered_bytes == other.gathered_bytes


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(4, 3), (3, 2, 2), (-1, -1), (400, 400)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seeds", [1, 2, 500])
def test_every_seed_gets_scores_and_an_embedding(
    architecture: str, fanouts: tuple[int, ...], variant: str, seeds: int
) -> None:
    revision = _revision(architecture, fanouts, mean_degree=4)

    answer = infer_batch(revision, variant, np.arange(seeds) % NODES, key=1)

    assert answer.scores.shape == (seeds, 3)
    assert answer.embeddings is not None
    assert answer.embeddings.shape == (seeds, 8)
    assert answer.scores.dtype == answer.embeddings.dtype == np.float32
    assert np.isfinite(answer.scores).all()


def test_a_one_layer_network_answers_without_embeddings() -> None:
    answer = infer_batch(_revision(fanouts=(5,)), "x1", np.arange(200), key=1)

    assert answer.scores.shape == (200, 3)
    assert answer.embeddings is None


def test_it_is_sample_gather_and_infer_one_after_the_other() -> None:
    revision, seeds = _revision(), np.array([5, 9, 5])
    graph = revision.graph
    tree = sample_tree(graph.indptr, graph.indices, seeds, (4, 3), 77)
    batch = gather_tree(revision.table, 4, tree, mean=True)

    answer = infer_batch(revision, "x2", seeds, key=77)

    np.testing.assert_array_equal(answer.scores, revision.variants["x2"].network.infer(batch)[0])
    assert answer.gathered_bytes == batch.gathered_bytes


def test_equal_keys_give_equal_answers() -> None:
    revision, seeds = _revision(), np.arange(200)

    first, second = (infer_batch(revision, "x1", seeds, key=5) for _ in range(2))

    np.testing.assert_array_equal(first.scores, second.scores)


def test_other_keys_draw_other_neighbours() -> None:
    revision, seeds = _revision(), np.arange(200)

    assert not np.allclose(
        infer_batch(revision, "x1", seeds, key=5).scores, infer_batch(revision, "x1", seeds, key=6).scores
    )


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(4, 3), (3, 2, 2), (-1, -1)], ids=str)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch, architecture: str, fanouts: tuple[int, ...], threads: int
) -> None:
    """Otherwise the accuracy in a profile would depend on the machine that measured it."""
    revision, seeds = _revision(architecture, fanouts), np.arange(NODES)
    _use(monkeypatch, threads=1)
    alone = infer_batch(revision, "x1", seeds, key=5)

    _use(monkeypatch, threads=threads)
    shared = infer_batch(revision, "x1", seeds, key=5)

    np.testing.assert_allclose(shared.scores, alone.scores, rtol=1e-4, atol=1e-5)


@ARCHITECTURES
def test_chunks_change_no_answer(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    revision, seeds = _revision(architecture), np.arange(NODES)[::-1]
    _use(monkeypatch, threads=1)
    whole = infer_batch(revision, "x2", seeds, key=5)

    monkeypatch.setattr(inference_module, "_CHUNK_BYTES", 4096)
    in_chunks = infer_batch(revision, "x2", seeds, key=5)

    _assert_same(in_chunks, whole)


def test_variants_of_equal_key_draw_equal_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """However their chunks differ: the bytes that two variants read differ by their columns alone."""
    monkeypatch.setattr(inference_module, "_CHUNK_BYTES", 4096)
    revision, seeds = _revision(fanouts=(4, 3)), np.arange(NODES)

    read = {name: infer_batch(revision, name, seeds, key=5).gathered_bytes for name in VARIANTS}

    assert read["x1"] == 2 * read["x2"] == 8 * read["x8"]


def test_duplicates_are_answered_one_by_one() -> None:
    """With every neighbour taken, equal seeds have equal answers."""
    revision = _revision(fanouts=(400, 400), mean_degree=4)

    answer = infer_batch(revision, "x1", np.array([7, 3, 7, 7]), key=1)

    np.testing.assert_allclose(answer.scores[[0, 0]], answer.scores[[2, 3]], rtol=1e-5)
    assert not np.allclose(answer.scores[0], answer.scores[1])


@ARCHITECTURES
def test_a_fanout_beyond_every_degree_equals_the_full_neighbourhood(architecture: str) -> None:
    seeds = np.array([7, 3, 7, 299, 0])
    sampled = infer_batch(_revision(architecture, (400, 400), mean_degree=4), "x1", seeds, key=1)

    full = infer_batch(_revision(architecture, (-1, -1), mean_degree=4), "x1", seeds, key=2)

    np.testing.assert_allclose(sampled.scores, full.scores, rtol=1e-4, atol=1e-4)


def test_a_graph_of_one_node_is_served() -> None:
    revision = revision_in_memory(
        graph_of([[]]), dense_features(1, WIDTH, 0), network_manifest("GraphSAGE", (4, 3)), VARIANTS
    )

    warm_up(revision)

    assert infer_batch(revision, "x1", np.array([0, 0]), key=1).scores.shape == (2, 3)


@pytest.mark.parametrize("fanouts", [(4, 3, 2), (-1, -1, -1)], ids=str)
def test_a_component_smaller_than_the_depth_is_served(fanouts: tuple[int, ...]) -> None:
    """The last hops find no new node."""
    revision = revision_in_memory(
        graph_of([[1], [0], []]), dense_features(3, WIDTH, 0), network_manifest("GraphSAGE", fanouts), VARIANTS
    )

    assert np.isfinite(infer_batch(revision, "x1", np.array([0, 2]), key=1).scores).all()


def test_stage_times_add_up_to_what_passed() -> None:
    times = infer_batch(_revision(), "x1", np.arange(NODES), key=1).times

    assert min(times.sample_ms, times.gather_ms, times.compute_ms) > 0
    assert times.total_ms == pytest.approx(times.sample_ms + times.gather_ms + times.compute_ms)


def test_warming_up_runs_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(inference_module, "infer_batch", lambda _revision, name, _seeds, key: ran.append(name))

    warm_up(_revision())

    assert ran == list(VARIANTS)


@pytest.mark.parametrize(
    ("seeds", "most", "threads", "chunks"),
    [
        pytest.param(1, 1000, 8, 1, id="one seed is one chunk"),
        pytest.param(63, 1000, 8, 1, id="too few to share"),
        pytest.param(64, 1000, 8, 2, id="enough for two threads"),
        pytest.param(1024, 2000, 2, 2, id="one chunk for each thread"),
        pytest.param(1024, 100, 2, 11, id="more where the cache asks for it"),
        pytest.param(5, 1, 1, 5, id="seeds so costly that each is a chunk"),
    ],
)
def test_chunks_cover_the_batch_in_about_equal_parts(seeds: int, most: int, threads: int, chunks: int) -> None:
    bounds = chunk_bounds(seeds, most, threads)

    sizes = [stop - start for start, stop in pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(sizes)) == (0, seeds, chunks)
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
