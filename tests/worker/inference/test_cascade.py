"""Cascades: each answer is a stage's, the least sure nodes are passed on, and nothing else is read for that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.generation.learning import labels_of
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.overlays.overlays import arrange_overlay
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.errors import InputError
from gnnserve_api.families import POINTS
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import Inference, infer_batch, with_cascades
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.checks import cascade_misfit
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of
from gnnserve_worker.tasks.classify_nodes.labels import fit_temperature
from gnnserve_worker.tasks.deciding import BY_CLASS, class_confidences, threshold_for

GRAPH = planted_graph([1, 5, 8], nodes=300)
CASCADES = [
    {"first": "mlp2-int8", "then": "x1", "passOnPercents": [10, 40]},
    {"first": "mlp0", "then": "projected", "passOnPercents": [30]},
]
MLP2, MLP2_MORE, MLP0 = "mlp2-int8-then-x1-p10", "mlp2-int8-then-x1-p40", "mlp0-then-projected-p30"
SEEDS = np.arange(300, dtype=np.int64)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("cascade") / "repository", "default", "tiny")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> RevisionManifest:
    uri = write_npz(tmp_path_factory.mktemp("graph") / "graph.npz", npz_arrays(GRAPH)).as_uri()
    variants = {
        "pruning": {"factors": [1]},
        "oneRow": [{"hops": 0}, {"hops": 2}],
        "storage": ["float32", "int8"],
        "cascades": CASCADES,
    }
    model = {"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 20}}
    return generate(service_of(uri, model=model, variants=variants), repository)


@pytest.fixture(scope="module")
def loaded(repository: Repository, manifest: RevisionManifest) -> LoadedRevision:
    return load_revision(repository, manifest.revision)


@pytest.fixture(scope="module")
def served(loaded: LoadedRevision) -> ServedRevision:
    return served_revision(loaded)


def cascade_named(manifest: RevisionManifest, name: str) -> CascadeManifest:
    return next(cascade for cascade in manifest.cascades if cascade.name == name)


def answers_of(
    served: ServedRevision, cascade: CascadeManifest, seeds: np.ndarray, view: BatchView | None = None
) -> tuple[Inference, Inference, Inference]:
    """The cascade's answers to the same batch, and those of its stages."""
    found = [served.compute.infer(name, seeds, 7, view=view) for name in (cascade.name, cascade.first, cascade.then)]
    return found[0], found[1], found[2]


def assert_each_is_a_stages(served: ServedRevision, cascade: CascadeManifest, *of: Inference) -> np.ndarray:
    """Returns which of the seeds were passed on."""
    answer, first, then = of
    is_passed_on = class_confidences(first.scores, cascade.temperature) < np.float32(cascade.threshold)
    expected = np.where(is_passed_on[:, None], then.scores, first.scores)
    np.testing.assert_allclose(answer.scores, expected, rtol=1e-6, atol=1e-6)
    return is_passed_on


# --- calibration


def test_the_temperature_of_scores_that_were_multiplied_is_the_factor() -> None:
    draw = np.random.default_rng(0)
    scores = 2 * draw.standard_normal((4000, 5)).astype(np.float32)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    labels = np.array([draw.choice(5, p=each / each.sum()) for each in shares.astype(np.float64)])
    assert fit_temperature(scores, labels) == pytest.approx(1, abs=0.1)
    assert fit_temperature(3 * scores, labels) == pytest.approx(3 * fit_temperature(scores, labels), rel=1e-3)


def test_the_temperature_stays_within_bounds_where_all_or_none_are_right() -> None:
    scores = np.eye(3, dtype=np.float32)
    assert fit_temperature(scores, np.arange(3)) == pytest.approx(0.05)
    assert fit_temperature(scores, np.roll(np.arange(3), 1)) == pytest.approx(20)


def test_a_threshold_passes_on_the_stated_share_of_the_least_confident() -> None:
    scores = np.zeros((200, 2), np.float32)
    scores[:, 0] = np.random.default_rng(0).permutation(200) / 20
    for percent, count in {1: 2, 10: 20, 50: 100, 99: 198}.items():
        sure = class_confidences(scores, 1.5)
        below = sure < np.float32(threshold_for(sure, percent))
        assert below.sum() == count
        assert scores[below, 0].max() < scores[~below, 0].min()


def test_nodes_of_equal_confidence_stay_together() -> None:
    same = class_confidences(np.zeros((50, 2), np.float32), 1)
    assert not (same < threshold_for(same, 50)).any()


# --- what is generated


def test_they_stand_behind_the_variants_that_they_consist_of(manifest: RevisionManifest) -> None:
    assert [variant.name for variant in manifest.profile.variants] == [
        *(variant.name for variant in manifest.variants), MLP0, MLP2, MLP2_MORE,
    ]  # fmt: skip
    families = {cascade.name: cascade.family for cascade in manifest.cascades}
    assert families == {
        MLP0: "cascade",
        MLP2: "stored-graph-cascade",
        MLP2_MORE: "stored-graph-cascade",
    }
    assert not any(POINTS[family].capabilities.embeddings for family in families.values())


def test_a_stage_that_is_added_unasked_is_kept(manifest: RevisionManifest) -> None:
    assert "projected" in {variant.name for variant in manifest.variants}


def test_the_profile_says_what_both_stages_take(manifest: RevisionManifest) -> None:
    profile = manifest.profile.variant(MLP2)
    first, then = manifest.profile.variant("mlp2-int8"), manifest.profile.variant("x1")
    assert profile.cascade is not None
    assert (profile.cascade.first, profile.cascade.then) == ("mlp2-int8", "x1")
    assert profile.cascade.passed_on == pytest.approx(0.1, abs=0.02)
    assert profile.size_bytes == first.size_bytes + then.size_bytes
    assert profile.memory_bytes == first.memory_bytes + then.memory_bytes
    assert first.latency[-1].gathered_bytes < profile.latency[-1].gathered_bytes < then.latency[-1].gathered_bytes
    more = manifest.profile.variant(MLP2_MORE)
    assert profile.latency[-1].gathered_bytes < more.latency[-1].gathered_bytes
    assert 0.7 < min(first.validation_accuracy, then.validation_accuracy) <= profile.validation_accuracy


def test_the_profile_is_of_what_is_served(manifest: RevisionManifest, served: ServedRevision) -> None:
    nodes = GRAPH.splits.validation
    scores = served.compute.infer(MLP2, nodes, key=0).scores
    assert manifest.profile.variant(MLP2).validation_accuracy == np.mean(scores.argmax(axis=1) == GRAPH.labels[nodes])


# --- answers


@pytest.mark.parametrize("name", [MLP2, MLP2_MORE, MLP0])
def test_each_answer_is_that_of_a_stage(served: ServedRevision, name: str) -> None:
    cascade = cascade_named(served.manifest, name)
    passed_on = assert_each_is_a_stages(served, cascade, *answers_of(served, cascade, SEEDS))
    assert 0 < passed_on.sum() < len(SEEDS)


@pytest.mark.parametrize(("threshold", "stage"), [(0.0, 1), (2.0, 2)], ids=["nothing", "everything"])
def test_nothing_or_everything_may_be_passed_on(served: ServedRevision, threshold: float, stage: int) -> None:
    cascade = msgspec.structs.replace(cascade_named(served.manifest, MLP2), threshold=threshold, name="changed")
    infer = with_cascades(served.compute.infer, [cascade], BY_CLASS)
    stages = [served.compute.infer(name, SEEDS, 7) for name in (cascade.first, cascade.then)]
    answer = infer("changed", SEEDS, 7)
    np.testing.assert_array_equal(answer.scores, stages[stage - 1].scores)
    assert answer.gathered_bytes == sum(each.gathered_bytes for each in stages[:stage])
    assert answer.embeddings is None


def test_repeated_seeds_get_equal_answers(served: ServedRevision) -> None:
    cascade = cascade_named(served.manifest, MLP2_MORE)
    seeds = np.concatenate([SEEDS[:40], SEEDS[:40], SEEDS[:10]])
    answers = answers_of(served, cascade, seeds)
    passed_on = assert_each_is_a_stages(served, cascade, *answers)
    assert passed_on.any()
    np.testing.assert_array_equal(answers[0].scores[:40], answers[0].scores[40:80])
    np.testing.assert_array_equal(answers[0].scores[:10], answers[0].scores[80:])


def test_one_seed_is_answered_by_one_stage_or_both(served: ServedRevision) -> None:
    cascade = cascade_named(served.manifest, MLP2_MORE)
    passed_on = [
        assert_each_is_a_stages(served, cascade, *answers_of(served, cascade, SEEDS[i : i + 1]))[0] for i in range(40)
    ]
    assert True in passed_on
    assert False in passed_on


def test_a_requests_seed_draws_for_both_stages_whatever_the_batch_is(served: ServedRevision) -> None:
    cascade = cascade_named(served.manifest, MLP2_MORE)

    def asked(before: int, key: int) -> np.ndarray:
        seeds = np.concatenate([SEEDS[100 : 100 + before], SEEDS[:60]])
        view = view_of(served.graph.nodes, [*([Part(before, None, None)] if before else []), Part(60, None, 5)], seeds)
        return served.compute.infer(cascade.name, seeds, key, view=view).scores[before:]

    np.testing.assert_allclose(asked(0, key=1), asked(30, key=2), rtol=1e-5, atol=1e-6)


def test_overlays_are_seen_by_both_stages(served: ServedRevision, loaded: LoadedRevision) -> None:
    """Of two requests, each with new nodes, beside nodes of the stored graph."""
    assert served.manifest.edge_rules is not None
    assert isinstance(GRAPH.features, np.ndarray)
    parts, seeds = [], []
    for request in range(2):
        features = GRAPH.features[50 * request : 50 * request + 20].astype(np.float32)
        edges = np.array([[3 * k, 300 + k] for k in range(20)])
        asked = np.concatenate([np.arange(300, 320), SEEDS[:10]])
        overlay, numbered = arrange_overlay(
            loaded.graph, served.manifest.edge_rules, features, np.zeros(0, np.int64), edges, asked
        )
        parts.append(Part(len(numbered), overlay, None))
        seeds.append(numbered)
    both = np.concatenate(seeds)
    view = view_of(served.graph.nodes, parts, both)
    cascade = cascade_named(served.manifest, MLP0)
    passed_on = assert_each_is_a_stages(served, cascade, *answers_of(served, cascade, both, view))
    for request in range(2):
        assert 0 < passed_on[30 * request : 30 * request + 20].sum() < 20


def test_networks_are_answered_for_as_they_were(served: ServedRevision, loaded: LoadedRevision) -> None:
    plain = partial(infer_batch, loaded)
    assert with_cascades(plain, (), BY_CLASS) is plain
    expected = infer_batch(loaded, "x1", SEEDS, 7)
    answer = served.compute.infer("x1", SEEDS, 7)
    np.testing.assert_array_equal(answer.scores, expected.scores)
    assert answer.embeddings is not None


# --- refusals


def spec_of(**variants: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}, "variants": variants})


@pytest.mark.parametrize(
    ("cascade", "message"),
    [
        (
            {"first": "mlp9", "then": "x1"},
            r"cascades\[0\]\.first: mlp9 is none .* choose from x1, x2, x4, x8, projected",
        ),
        ({"first": "x4", "then": "x3"}, r"cascades\[0\]\.then: x3 is none of the variants that are made"),
        ({"first": "x8-then-x1-p5", "then": "x1"}, "or is a cascade itself"),
    ],
)
def test_a_stage_must_be_a_variant_that_is_made(cascade: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_cascades(spec_of(cascades=[cascade]))


def test_nodes_of_several_classes_have_no_one_confidence() -> None:
    several = labels_of(replace(GRAPH, labels=np.eye(3, dtype=np.uint8)[GRAPH.labels]))
    with pytest.raises(InputError, match="nodes of this graph may have several classes"):
        several.check(spec_of(cascades=[{"first": "x8", "then": "x1"}]).variants)
    several.check(spec_of().variants)


def test_an_unknown_stage_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH)).as_uri()
    service = service_of(uri, variants={"cascades": [{"first": "mlp2", "then": "x1"}]})
    monkeypatch.setattr("gnnserve_worker.generation.train.train", None)
    with pytest.raises(InputError, match="mlp2 is none"):
        generate(service, Repository(tmp_path / "repository", "default", "tiny"))


def test_a_damaged_cascade_is_told(manifest: RevisionManifest) -> None:
    cascade = manifest.cascades[0]
    assert cascade_misfit(cascade, manifest.variants) is None
    assert "has no variant 'x9'" in str(cascade_misfit(msgspec.structs.replace(cascade, then="x9"), manifest.variants))
    assert "temperature 0" in str(cascade_misfit(msgspec.structs.replace(cascade, temperature=0), manifest.variants))


# --- what an answer rests on


@pytest.mark.parametrize(
    ("named", "explained"),
    [(MLP0, "projected"), ("x1", "x1"), (None, {"x1", "x1-int8", "projected", "projected-int8"}), ("mlp0", None)],
)
def test_what_is_explained_reads_edges(
    loaded: LoadedRevision, named: str | None, explained: str | set[str] | None
) -> None:
    """Also where a cascade is the most accurate: its first stage is sure of most nodes, and reads no edge."""
    best = [
        msgspec.structs.replace(each, validation_accuracy=1.0) if each.name in {MLP0, "mlp0"} else each
        for each in loaded.manifest.profile.variants
    ]
    profile = msgspec.structs.replace(loaded.manifest.profile, variants=tuple(best))
    served = served_revision(replace(loaded, manifest=msgspec.structs.replace(loaded.manifest, profile=profile)))

    async def ask() -> dict[str, Any]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(served)
            body = {"node": 3} if named is None else {"node": 3, "variant": named}
            told: dict[str, Any] = (await client.http.post("/v1/explain", json=body)).json()
            return told

    told = asyncio.run(ask())
    influences = [abs(each.get("influence", 0)) for each in told["neighbours"]]
    if explained is None:
        assert told["unexplained"] == "variant mlp0 reads no edges: name another one, or none"
        assert "variant" not in told and not any("influence" in each for each in told["neighbours"])
    else:
        assert told["variant"] in (explained if isinstance(explained, set) else {explained})
        assert max(influences) > 1e-4
