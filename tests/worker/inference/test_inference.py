"""One batch through one variant: what is answered depends on the revision, the seeds and the key alone."""

from __future__ import annotations

import math
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.graphs.graphs import (
    dense_features,
    graph_of,
    network_manifest,
    random_graph,
    random_tensors,
    revision_in_memory,
    table_of,
)
from tests.support.machine.waiting import WAIT_S

from gnnserve_api.variants import Storage
from gnnserve_worker import parallel
from gnnserve_worker.inference import batch as inference_module
from gnnserve_worker.inference.batch import (
    Chunks,
    Inference,
    StageTimes,
    infer_batch,
    infer_each,
    plan_chunks,
    warm_up,
)
from gnnserve_worker.kernel_cache import KERNELS
from gnnserve_worker.kernels.view import SampleView
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.network import Activations
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, distinct_share, sample_neighbours

NODES, WIDTH = 300, 8
VARIANTS = {"x1": 8, "x2": 4, "x8": 1}
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])


def _revision(
    architecture: str = "GraphSAGE", fanouts: tuple[int, ...] = (4, 3), *, mean_degree: float = 12, hidden: int = 8
) -> LoadedRevision:
    return revision_in_memory(
        random_graph(NODES, seed=1, mean_degree=mean_degree),
        dense_features(NODES, WIDTH, seed=2),
        network_manifest(architecture, fanouts, hidden=hidden),
        VARIANTS,
    )


def _use(monkeypatch: pytest.MonkeyPatch, *, threads: int) -> None:
    monkeypatch.setattr(parallel, "thread_count", lambda: threads)
    monkeypatch.setattr(inference_module, "thread_count", lambda: threads)


def _use_chunks(monkeypatch: pytest.MonkeyPatch, count: int, *, share: bool) -> None:
    monkeypatch.setattr(inference_module, "plan_chunks", lambda *_, **__: Chunks(count, share))


def _assert_same(one: Inference, other: Inference) -> None:
    """But for the order of sums: a product of other rows beside it, or other addresses, may add differently."""
    _assert_close(one.scores, other.scores)
    assert one.embeddings is not None
    assert other.embeddings is not None
    _assert_close(one.embeddings, other.embeddings)


def _assert_close(one: np.ndarray, other: np.ndarray) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * float(np.abs(other).max()))


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


@pytest.mark.parametrize("seeds", [1, 200])
def test_a_one_layer_network_answers_without_embeddings(seeds: int) -> None:
    answer = infer_batch(_revision(fanouts=(5,)), "x1", np.arange(seeds), key=1)

    assert answer.scores.shape == (seeds, 3)
    assert answer.embeddings is None


@ARCHITECTURES
def test_each_variant_samples_its_own_hops(architecture: str) -> None:
    revision, fewer = _revision(architecture), _revision(architecture, (2, 2))
    x1 = revision.variants["x1"]
    both = replace(revision, variants={**revision.variants, "x1-f2x2": replace(x1, name="x1-f2x2", fanouts=(2, 2))})
    seeds = np.arange(NODES)

    for name, alone, like in (("x1-f2x2", fewer, "x1"), ("x1", revision, "x1"), ("x1-f2x2", fewer, "x1")):
        found, expected = infer_batch(both, name, seeds, key=3), infer_batch(alone, like, seeds, key=3)
        np.testing.assert_array_equal(found.scores, expected.scores)
        assert found.gathered_bytes == expected.gathered_bytes


def test_it_is_sample_gather_and_infer_one_after_the_other() -> None:
    revision, seeds = _revision(), np.array([5, 9, 5])
    graph, variant, scratch = revision.graph, revision.variants["x2"], Activations()
    plan = plan_chunks(3, (4, 3), variant.network.bytes_per_row, revision.reading.effective_nodes, 1)
    sample = sample_neighbours(graph.indptr, graph.indices, seeds, (4, 3), 77, Scratch(), share=plan.share)
    scores, embeddings = np.empty((3, 3), np.float32), np.empty((3, 8), np.float32)
    combined = variant.network.gather(variant.table, sample, scratch)
    variant.network.infer(combined, sample, scratch, scores, embeddings)

    answer = infer_each(revision, "x2", seeds, key=77)

    assert answer.embeddings is not None
    _assert_close(answer.scores, scores)
    _assert_close(answer.embeddings, embeddings)
    assert answer.gathered_bytes == (len(sample.nodes) + len(sample.neighbours)) * 4 * 4  # columns of four bytes


def test_equal_keys_give_equal_answers() -> None:
    revision, seeds = _revision(), np.arange(200)

    first, second = (infer_batch(revision, "x1", seeds, key=5) for _ in range(2))

    _assert_same(first, second)
    assert first.gathered_bytes == second.gathered_bytes


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
    together = infer_batch(revision, "x1", seeds, key=5)

    _assert_same(together, alone)


@ARCHITECTURES
@pytest.mark.parametrize("fanouts", [(4, 3), (3, 2, 2), (-1, -1)], ids=str)
def test_neither_chunks_nor_sharing_change_an_answer(
    monkeypatch: pytest.MonkeyPatch, architecture: str, fanouts: tuple[int, ...]
) -> None:
    revision, seeds = _revision(architecture, fanouts, mean_degree=5), np.resize(np.arange(NODES)[::-1], NODES + 50)
    _use_chunks(monkeypatch, 1, share=False)
    whole = infer_each(revision, "x2", seeds, key=5)
    assert np.ptp(whole.scores) > 0

    for count, share in ((1, True), (2, False), (2, True), (7, False), (7, True), (len(seeds), False)):
        _use_chunks(monkeypatch, count, share=share)
        in_chunks = infer_each(revision, "x2", seeds, key=5)

        _assert_same(in_chunks, whole)
        if share:
            assert in_chunks.gathered_bytes < whole.gathered_bytes
        else:
            assert in_chunks.gathered_bytes == whole.gathered_bytes


@pytest.mark.parametrize("share", [False, True])
def test_variants_of_equal_key_draw_equal_neighbours(monkeypatch: pytest.MonkeyPatch, share: bool) -> None:
    """The bytes that two variants read differ by their columns alone."""
    _use_chunks(monkeypatch, 5, share=share)
    revision, seeds = _revision(fanouts=(4, 3)), np.arange(NODES)

    read = {name: infer_batch(revision, name, seeds, key=5).gathered_bytes for name in VARIANTS}

    assert read["x1"] == 2 * read["x2"] == 8 * read["x8"]


@ARCHITECTURES
@pytest.mark.parametrize("storage", list(Storage), ids=str)
def test_every_storage_is_served_as_the_machine_prefers(architecture: str, storage: Storage) -> None:
    plain = _revision(architecture)
    compute = preferred_compute(storage)
    manifest = network_manifest(architecture, plain.variants["x1"].fanouts)
    tensors = random_tensors(manifest, WIDTH, seed=WIDTH)  # those of x1
    network = build_network(manifest, tensors, WIDTH, projected=False, compute=compute)
    table = table_of(dense_features(NODES, WIDTH, seed=2), storage)
    stored = LoadedVariant("stored", table, WIDTH, manifest.fanouts, network)
    revision = replace(plain, variants={**plain.variants, "stored": stored})
    seeds = np.arange(NODES)

    scores = infer_batch(revision, "stored", seeds, key=5).scores

    expected = infer_batch(revision, "x1", seeds, key=5).scores
    tolerance = 1e-5 if storage is Storage.FLOAT32 else 3e-2
    np.testing.assert_allclose(scores, expected, rtol=0, atol=tolerance * float(np.abs(expected).max()))


@pytest.mark.parametrize("infer", [infer_batch, infer_each], ids=["batch", "each"])
@pytest.mark.parametrize("share", [False, True])
def test_repeated_seeds_have_equal_answers_each_of_its_own(
    monkeypatch: pytest.MonkeyPatch, share: bool, infer: Any
) -> None:
    _use_chunks(monkeypatch, 1, share=share)

    answer = infer(_revision(), "x1", np.array([7, 3, 7, 7]), key=1)

    for rows in (answer.scores, answer.embeddings):
        np.testing.assert_allclose(rows[[0, 0]], rows[[2, 3]], rtol=1e-5)
        assert not np.allclose(rows[0], rows[1])
        rows[0] = 7.0
        assert not np.allclose(rows[0], rows[2])


@pytest.mark.parametrize("fanouts", [(4, 3), (-1, -1), (5,)], ids=str)
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_seed_that_is_asked_for_again_and_again_is_computed_once(
    monkeypatch: pytest.MonkeyPatch, fanouts: tuple[int, ...], chunks: int
) -> None:
    _use_chunks(monkeypatch, chunks, share=False)
    revision, once = _revision(fanouts=fanouts), np.array([9, 250, 31, 7])
    seeds = np.random.default_rng(0).choice(once, 1000)
    seeds[:4] = once

    answer = infer_batch(revision, "x1", seeds, key=5)

    expected = infer_each(revision, "x1", seeds, key=5)
    _assert_close(answer.scores, expected.scores)
    assert (answer.embeddings is None) == (expected.embeddings is None) == (len(fanouts) == 1)
    if answer.embeddings is not None and expected.embeddings is not None:
        _assert_close(answer.embeddings, expected.embeddings)
    assert answer.gathered_bytes == infer_each(revision, "x1", once, key=5).gathered_bytes


@pytest.mark.parametrize("count", [1, 200])
def test_embeddings_that_nobody_wants_are_not_copied(count: int) -> None:
    revision, seeds = _revision(), np.arange(count)

    answer = infer_batch(revision, "x1", seeds, key=1, with_embeddings=False)

    assert answer.embeddings is None
    _assert_close(answer.scores, infer_batch(revision, "x1", seeds, key=1).scores)


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


def test_seeds_as_they_come_out_of_a_request_are_served() -> None:
    """They are read-only, and may be a view into something else."""
    revision, seeds = _revision(), np.arange(0, NODES, 7)
    expected = infer_batch(revision, "x1", seeds, key=1).scores

    from_bytes = infer_batch(revision, "x1", np.frombuffer(seeds.tobytes(), dtype=np.int64), key=1)
    strided = infer_batch(revision, "x1", np.arange(NODES)[::7], key=1)

    _assert_close(from_bytes.scores, expected)
    _assert_close(strided.scores, expected)


@pytest.mark.parametrize("chunks", [1, 4])
def test_stage_times_add_up_to_what_passed(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    _use_chunks(monkeypatch, chunks, share=False)
    times = infer_batch(_revision(), "x1", np.arange(NODES), key=1).times

    assert min(times.sample_ms, times.gather_ms, times.compute_ms) > 0
    assert times.total_ms == pytest.approx(times.sample_ms + times.gather_ms + times.compute_ms)
    assert (times + times).total_ms == pytest.approx(2 * times.total_ms)


def test_warming_up_runs_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(inference_module, "infer_each", lambda _revision, name, _seeds, key: ran.append(name))
    monkeypatch.setattr(inference_module, "infer_batch", lambda *_, **__: None)

    warm_up(_revision())

    assert ran == list(VARIANTS)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN", "GAT"])
def test_after_warming_up_a_request_with_a_seed_of_its_own_compiles_nothing(architecture: str) -> None:
    """Not even where no variant can answer requests with an overlay, as in revisions of earlier versions and of SGC."""
    revision = _revision(architecture)
    assert all(variant.rows is None for variant in revision.variants.values())

    warm_up(revision)

    compiled = {name: set(kernel.signatures) for name, kernel in KERNELS.items()}
    assert compiled["gnnserve_worker.sampling.neighbours._sample"]
    assert compiled["gnnserve_worker.kernels.view.sample_seen"]  # with a view
    for name in revision.variants:
        for seeds in (np.array([3]), np.array([5, 3, 5, 1])):
            view = view_of(NODES, [Part(len(seeds), None, seed=7)], seeds)
            infer_batch(revision, name, seeds, key=1, view=view)
    assert {name: set(kernel.signatures) for name, kernel in KERNELS.items()} == compiled


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
def test_warming_up_samples_every_variant_by_a_view_and_without(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    sampled: list[bool] = []
    revision = _revision(architecture)
    sample = revision.reading.sample

    def noted(*given: Any, view: SampleView | None, **options: Any) -> NeighbourSample:
        sampled.append(view is not None)
        return sample(*given, view=view, **options)

    _use(monkeypatch, threads=1)

    warm_up(replace(revision, reading=replace(revision.reading, sample=noted)))

    assert sampled.count(True) == len(VARIANTS)
    assert sampled.count(False) >= len(VARIANTS)


@pytest.mark.campaign
@ARCHITECTURES
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("fanouts", [(4, 3), (3, 2, 2), (-1, -1)], ids=str)
@pytest.mark.parametrize("with_embeddings", [False, True], ids=["scores", "and embeddings"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_once_warm_nothing_is_allocated_but_the_answer(
    monkeypatch: pytest.MonkeyPatch, architecture: str, share: bool, fanouts: tuple[int, ...],
    with_embeddings: bool, chunks: int,
) -> None:  # fmt: skip
    _use_chunks(monkeypatch, chunks, share=share)
    _use(monkeypatch, threads=1)  # so that it is the same thread's memory that grows
    revision, seeds = _revision(architecture, fanouts, mean_degree=5, hidden=128), np.resize(np.arange(NODES), 600)
    for _ in range(6):
        infer_each(revision, "x1", seeds, key=1, with_embeddings=with_embeddings)

    tracemalloc.start()
    try:
        answer = infer_each(revision, "x1", seeds, key=1, with_embeddings=with_embeddings)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (answer.embeddings is not None) == with_embeddings
    answer_bytes = answer.scores.nbytes + (0 if answer.embeddings is None else answer.embeddings.nbytes)
    assert answer_bytes <= peak_bytes < answer_bytes + 16 * 1024


def test_answers_are_no_views_of_what_is_computed_in() -> None:
    revision = _revision()
    first = infer_batch(revision, "x1", np.arange(20), key=1)
    assert first.embeddings is not None
    scores, embeddings = first.scores.copy(), first.embeddings.copy()

    for key in range(4):
        infer_batch(revision, "x1", np.arange(100, 120), key=key)

    np.testing.assert_array_equal(first.scores, scores)
    np.testing.assert_array_equal(first.embeddings, embeddings)


def test_two_threads_compute_in_arrays_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when one serves while another warms up the next revision. Each is held between its stages for the other."""
    _use_chunks(monkeypatch, 1, share=False)
    revisions = {"GraphSAGE": _revision(), "GIN": _revision("GIN", (3, 2, 2))}
    expected = {name: infer_batch(revision, "x1", np.arange(90), key=3) for name, revision in revisions.items()}
    both_sampled = threading.Barrier(2, timeout=WAIT_S)

    def sample_and_wait(*args: Any, **kwargs: Any) -> NeighbourSample:
        sample = sample_neighbours(*args, **kwargs)
        both_sampled.wait()
        return sample

    revisions = {
        name: replace(one, reading=replace(one.reading, sample=sample_and_wait)) for name, one in revisions.items()
    }
    found: dict[str, list[Inference]] = {}
    threads = [
        threading.Thread(
            target=lambda name=name: found.update(
                {name: [infer_batch(revisions[name], "x1", np.arange(90), key=3) for _ in range(20)]}
            )
        )
        for name in revisions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(found) == set(revisions)
    for name, answers in found.items():
        for answer in answers:
            _assert_same(answer, expected[name])


MANY = 1e12
"""Effective nodes of a graph so large that nothing is met twice."""


@pytest.mark.parametrize(
    ("seeds", "row_bytes", "threads", "chunks"),
    [
        pytest.param(0, 1000, 8, 1, id="no seeds"),
        pytest.param(1, 1000, 8, 1, id="one seed is one chunk"),
        pytest.param(63, 100, 8, 1, id="too few to share"),
        pytest.param(64, 100, 8, 2, id="enough for two threads"),
        pytest.param(1024, 1, 2, 2, id="one chunk for each thread"),
        pytest.param(1024, 1, 3, 3, id="of any number"),
        pytest.param(1024, 2**20 // (26 * 100), 2, 11, id="more where the cache asks for it"),
        pytest.param(5, 2**20, 1, 5, id="seeds so costly that each is a chunk"),
        pytest.param(5, 2**30, 1, 5, id="seeds that fit no cache"),
    ],
)
def test_chunks_stay_in_the_cache(seeds: int, row_bytes: int, threads: int, chunks: int) -> None:
    """At the fan-outs (25, 10) a seed has 26 rows: itself and 25 neighbours."""
    assert plan_chunks(seeds, (25, 10), row_bytes, MANY, threads) == Chunks(chunks, share=False)


@pytest.mark.parametrize(("seeds", "threads", "chunks"), [(1, 2, 1), (256, 2, 2), (1024, 4, 4)])
def test_rows_are_made_in_as_few_chunks_as_there_are_threads(seeds: int, threads: int, chunks: int) -> None:
    assert plan_chunks(seeds, (25, 10), 2**20, MANY, threads, makes_rows=True) == Chunks(chunks, share=False)


@pytest.mark.parametrize("effective_nodes", [10.0, MANY, math.inf])
@pytest.mark.parametrize(("seeds", "threads", "chunks"), [(1, 2, 1), (64, 2, 2), (10_000, 2, 2), (10_000, 4, 4)])
def test_of_the_full_neighbourhood_everything_is_shared(
    effective_nodes: float, seeds: int, threads: int, chunks: int
) -> None:
    assert plan_chunks(seeds, (-1, -1), 10**6, effective_nodes, threads) == Chunks(chunks, share=True)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_nodes_are_shared_where_enough_of_them_are_met_again(threads: int) -> None:
    """And then in as few chunks as there are threads, because what two chunks meet is computed twice."""
    plans = {nodes: plan_chunks(1024, (25, 10), 2048, nodes, threads) for nodes in np.geomspace(10, 1e9, 60).tolist()}

    for nodes, plan in plans.items():
        assert plan.share == (distinct_share(1024 * 26 // threads, nodes) < 0.95)
        assert not plan.share or plan.count == threads
    assert {plan.share for plan in plans.values()} == {True, False}


@pytest.mark.parametrize("chunks", [1, 3, 7, 100])
def test_chunks_cover_the_batch_in_about_equal_parts(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    _use_chunks(monkeypatch, chunks, share=False)
    revision, seeds = _revision(), np.arange(100)
    parts: list[list[int]] = []
    infer_for_real = inference_module._infer_chunk

    def infer_chunk(*args: Any, **kwargs: Any) -> tuple[StageTimes, int]:
        parts.append(args[2].tolist())
        return infer_for_real(*args, **kwargs)

    monkeypatch.setattr(inference_module, "_infer_chunk", infer_chunk)
    infer_batch(revision, "x1", seeds, key=1)

    sizes = [len(part) for part in parts]
    assert sorted(node for part in parts for node in part) == seeds.tolist()
    assert all(part == list(range(part[0], part[-1] + 1)) for part in parts)
    assert len(parts) == chunks
    assert max(sizes) - min(sizes) <= 1
