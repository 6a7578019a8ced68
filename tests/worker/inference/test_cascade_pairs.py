"""Cascades where pairs are scored: a pair of which the cheap variant is sure is its own, the others are the dear one's,
and only nodes of these are computed by both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.generation.one_row_links import links_service
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.graphs.links import load_links
from tests.support.graphs.several_types import shop, write_folder
from tests.support.machine.waiting import until_holds
from tests.support.serving.pair_workers import BINARY, on_worker
from tests.support.serving.posted_labels import WRITING, evaluated, send_pairs
from tests.support.serving.questions import question_of
from tests.support.serving.serving import Client, OpenedWorker, running

from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.links import LinkCalibration
from gnnserve_api.files.repository import PAIRS_SCHEMA_VERSION, RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import with_cascades
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.tasks.deciding import SeedPairs, each_alone, in_turn
from gnnserve_worker.tasks.score_links.deciding import ByPair, log_odds, pair_confidences
from gnnserve_worker.tasks.score_links.metrics import roc_auc
from gnnserve_worker.tasks.score_links.pairs import PairForm, form_pairs

NODES = 200
GRAPH = planted_graph([1, 5, 8], nodes=NODES)
FEW, MORE = "mlp0-then-x1-p10", "mlp0-then-x1-p60"
PAIRS = np.random.default_rng(1).integers(0, NODES, (60, 2))


Generated = tuple[RevisionManifest, LoadedRevision, GNNService]


@dataclass
class RevisionWorker:
    """In the place of `FakeWorker`, for servers of tests."""

    loaded: LoadedRevision
    updates: None = None
    gate: threading.Event = field(default_factory=threading.Event)

    def revision(self) -> ServedRevision:
        return served_revision(self.loaded)


@pytest.fixture(scope="module")
def generated(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Generated]:
    folder = tmp_path_factory.mktemp("pairs")
    uri = write_npz(folder / "graph.npz", npz_arrays(GRAPH)).as_uri()
    service = service_of(
        uri,
        model={"hidden": 16, "fanouts": [-1, -1], "training": {"epochs": 6, "learningRate": 0.02}},
        task={"links": {"dimensions": 8, "decoder": "DistMult"}},
        variants={
            "pruning": {"factors": [1]},
            "oneRow": [{"hops": 0}],
            "cascades": [{"first": "mlp0", "then": "x1", "passOnPercents": [10, 60]}],
        },
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        repository = Repository(folder / "repository", "default", "tiny")
        manifest = generate(service, repository)
        yield manifest, load_revision(repository, manifest.revision), service


@pytest.fixture(scope="module")
def served(generated: Generated) -> ServedRevision:
    return served_revision(generated[1])


# --- what decides


CASCADE = CascadeManifest("c", "cascade", "a", "b", 1.0, 0.8)


def decides() -> ByPair:
    steep, flat = LinkCalibration(2.0, 0.0), LinkCalibration(1.0, -1.0)
    return ByPair.of(build_decoder("Dot", {}, 1), {"a": steep, "b": flat}, [CASCADE])


def test_a_pair_is_sure_by_the_likelier_of_link_and_none() -> None:
    odds = np.array([0.0, 3.0, -3.0, np.log(4)], np.float32)
    np.testing.assert_allclose(pair_confidences(odds), [0.5, 0.9525741, 0.9525741, 0.8], rtol=1e-6)


def test_nodes_of_unsure_pairs_go_through_both_stages_and_those_whose_pair_is_not_whole() -> None:
    # Log-odds of the pairs: 2 · 1 · 1 = 2 (sure), 2 · 0.1 = 0.2, and a node alone.
    outputs = np.array([[1.0], [1.0], [0.1], [1.0], [5.0], [6.0]], np.float32)
    pairs = SeedPairs(np.array([0, 2]), np.array([1, 3]), np.array([5]))
    assert decides().passed_on(CASCADE, outputs, pairs).tolist() == [2, 3, 5]
    joined = decides().joined(outputs, np.array([2, 3, 5]), np.array([[7.0], [0.5], [9.0]], np.float32))
    scorer = decides().scorers["c"]
    # The second stage's score of nodes 2 and 3 is 3.5, less 1. Of sure pairs, and of those that have no other, the
    # first one's are left.
    scores = scorer.score(joined[[0, 2, 2]], joined[[1, 3, 4]])
    np.testing.assert_allclose(scores, [2.0, 2.5, 1.0], rtol=1e-6)
    whole = scorer.score_all(joined[[0, 2]], joined[[1, 3, 4]])
    np.testing.assert_allclose(whole, [[2.0, 2.0, 10.0], [0.2, 2.5, 1.0]], rtol=1e-6)


def test_pairs_of_a_piece_of_a_request_are_those_that_it_has_whole() -> None:
    form = PairForm(np.array([0, 1, 2, 0]), np.array([1, 2, 3, 3]))
    found = form.within(1, 3)
    assert (found.first.tolist(), found.second.tolist(), found.alone.tolist()) == ([0], [1], [0, 1])
    whole = form.within(0, 4)
    assert (whole.first.tolist(), whole.alone.tolist()) == ([0, 1, 2, 0], [])


@pytest.mark.parametrize("count", [0, 1, 4, 5])
def test_where_nothing_is_said_seeds_are_pairs_in_turn(count: int) -> None:
    pairs = in_turn(count)
    ends = [*pairs.first.tolist(), *pairs.second.tolist(), *pairs.alone.tolist()]
    assert sorted(ends) == [*range(count)]
    assert (pairs.second - pairs.first == 1).all()
    assert each_alone(count).alone.tolist() == [*range(count)]


# --- generated


def test_cascades_of_pairs_are_measured_as_others_are(
    generated: Generated,
) -> None:
    manifest, loaded, service = generated
    assert manifest.schema_version == PAIRS_SCHEMA_VERSION
    assert [(one.name, one.temperature) for one in manifest.cascades] == [(FEW, 1.0), (MORE, 1.0)]
    profile = {one.name: one for one in manifest.profile.variants}
    links = load_links(service.spec.graph.source, service.spec.task.links, Path("unused")).links  # type: ignore[arg-type]
    for name, share in {FEW: 0.1, MORE: 0.6}.items():
        told, figures = profile[name].cascade, profile[name].validation_figures
        assert told is not None and figures is not None and profile[name].test_figures is not None
        assert told.passed_on == pytest.approx(share, abs=0.02)
        assert figures.links == len(links.validation)
        assert profile[name].validation_accuracy == figures.roc_auc
    stages = [profile[name].validation_accuracy for name in ("mlp0", "x1")]
    assert min(stages) - 0.05 <= profile[MORE].validation_accuracy <= max(stages) + 0.05
    # What is measured is what is served, pair by pair.
    served = served_revision(loaded)
    scores = [
        answered(served, MORE, np.stack([part.first, part.second], 1))
        for part in (links.validation, links.validation_negatives)
    ]
    assert roc_auc(*scores) == pytest.approx(profile[MORE].validation_accuracy, abs=1e-3)


# --- answers


def answered(served: ServedRevision, variant: str, pairs: np.ndarray) -> np.ndarray:
    """Scores of pairs of one batch, as the engine makes it."""
    nodes, form = form_pairs(np.ascontiguousarray(pairs.reshape(-1), np.int64))
    infer = served.compute.infer
    if variant in served.paired:
        infer = served.infer_by(variant, form.within(0, len(nodes)))
    outputs = infer(variant, nodes.copy(), 0).scores
    scores: np.ndarray = served.task.links.score_by(variant, outputs, form.first, form.second)  # type: ignore[attr-defined]
    return scores


def expected(served: ServedRevision, cascade: CascadeManifest, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of each pair by the stage that is to answer, and which pairs are passed on."""
    calibrations = served.task.links.calibrations  # type: ignore[attr-defined]
    first, then = (
        log_odds(answered(served, name, pairs), calibrations[name]) for name in (cascade.first, cascade.then)
    )
    is_unsure = pair_confidences(first) < np.float32(cascade.threshold)
    return np.where(is_unsure, then, first), is_unsure


@pytest.mark.parametrize("name", [FEW, MORE])
def test_each_pair_is_answered_by_a_stage(served: ServedRevision, name: str) -> None:
    cascade = served.paired[name]
    wanted, passed_on = expected(served, cascade, PAIRS)
    assert 0 < passed_on.sum() < len(PAIRS)
    np.testing.assert_allclose(answered(served, name, PAIRS), wanted, rtol=1e-4, atol=1e-5)


def test_an_answer_does_not_depend_on_what_is_asked_beside_it(served: ServedRevision) -> None:
    """A sure pair of two nodes, either of which stands in an unsure one too, is the first stage's all the same."""
    together = answered(served, MORE, PAIRS)
    alone = np.concatenate([answered(served, MORE, PAIRS[place : place + 1]) for place in range(len(PAIRS))])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_twice_where_all_are_sure(served: ServedRevision) -> None:
    sure = msgspec.structs.replace(served.paired[FEW], threshold=0.0)
    unsure = msgspec.structs.replace(served.paired[FEW], threshold=2.0)
    nodes, form = form_pairs(np.ascontiguousarray(PAIRS.reshape(-1), np.int64))
    seen: list[str] = []

    def infer(variant: str, seeds: np.ndarray, key: int, **more: Any) -> Any:
        seen.append(variant)
        return served.compute.infer(variant, seeds, key, **more)

    for cascade, stages in ((sure, ["mlp0"]), (unsure, ["mlp0", "x1"])):
        decided = ByPair.of(
            served.task.links.decoder, served.task.links.calibrations, [cascade]  # type: ignore[attr-defined]
        )  # fmt: skip
        with_cascades(infer, [cascade], decided, lambda count: form.within(0, count))(FEW, nodes.copy(), 0)
        assert seen == stages
        seen.clear()


def shares_below(served: ServedRevision, name: str, pairs: np.ndarray) -> np.ndarray:
    """Share of the drawn pairs whose score is below that of each of `pairs`, float64 [pairs]."""
    measure = served.task.live_labels.measure()
    drawn = measure.nodes[np.stack([measure.drawn.first, measure.drawn.second], 1)]  # type: ignore[attr-defined]
    shares: np.ndarray = (answered(served, name, drawn) < answered(served, name, pairs)[:, None]).mean(axis=1)
    return shares


def test_labels_of_pairs_tell_how_right_a_cascade_is(served: ServedRevision) -> None:
    """What is computed while nothing is asked for has the rows of both stages, whatever pairs it is scored in."""
    measure = served.task.live_labels.measure()
    rows = served.infer_by(MORE, each_alone(len(measure.nodes)))(MORE, measure.nodes.copy(), 0).scores
    assert not len(measure.note(MORE, 0, rows))
    nodes, form = form_pairs(np.ascontiguousarray(PAIRS.reshape(-1), np.int64))
    scores = served.infer_by(MORE, each_alone(len(nodes)))(MORE, nodes.copy(), 0).scores
    found = measure.values(MORE, scores, form, np.ones(len(PAIRS), bool))
    np.testing.assert_allclose(found, shares_below(served, MORE, PAIRS), atol=0.01)


def test_labels_and_shadows_are_of_every_generated_variant(generated: Generated, served: ServedRevision) -> None:
    read = {(node, int(other)) for node in range(NODES) for other in served.graph.neighbours_of(node)}
    # A pair that the graph joins is no label, whichever of the two reads the other.
    joined = read | {(other, node) for node, other in read}
    pairs = sorted({(int(one), int(two)) for one, two in PAIRS if one != two} - joined)
    stated = generated[2].model_dump(mode="json", by_alias=True, exclude_none=True)
    stated["spec"]["routing"] = {**stated["spec"].get("routing", {}), "shadowPermille": 100}

    async def run() -> None:
        worker, service = OpenedWorker(served=served), GNNService.model_validate(stated)
        async with running(worker, service, write_access=Access((WRITING,))) as client:
            labels = [[*pair] for pair in pairs]
            assert (await send_pairs(client, labels, [True] * len(pairs))).json()["accepted"] == len(pairs)
            found = await evaluated(client)
            assert {"x1", "mlp0", FEW, MORE} <= {*found}
            for name, variant in found.items():
                right = shares_below(served, name, np.array(pairs)).mean()
                assert variant["labels"]["nodes"] == len(pairs)
                assert variant["labels"]["mean"] == pytest.approx(right, abs=0.01), name
            answer = await client.http.post("/v1/predict", json={"pairs": labels, "variant": "mlp0"})
            assert answer.status_code == 200, answer.text
            await until_holds(lambda: bool(client.model.watch.observed()), "a shadow is compared")
            told = {one["name"]: one for one in (await client.http.get("/v1/accuracy")).json()["variants"]}
            assert 0 <= told["mlp0"]["agreement"]["mean"] <= 1

    asyncio.run(run())


def test_every_protocol_answers_of_a_cascade_alike(generated: Generated, served: ServedRevision) -> None:
    wanted, _ = expected(served, served.paired[MORE], PAIRS)
    likely = 1 / (1 + np.exp(-wanted))

    async def scenario(client: Client) -> None:
        asked = {"variant": MORE}
        answer = (await client.http.post("/v1/predict", json={"pairs": PAIRS.tolist(), **asked})).json()
        assert answer["variant"] == MORE
        np.testing.assert_allclose(answer["scores"], wanted, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(answer["probabilities"], likely, rtol=1e-3, atol=1e-4)
        ids = PAIRS.astype("<i8").tobytes()
        raw = await client.http.post("/v1/predict", content=ids, headers={**BINARY, "gnnserve-variant": MORE})
        np.testing.assert_allclose(np.frombuffer(raw.content, "<f4"), wanted, rtol=1e-3, atol=1e-4)
        tensor = {"name": "pairs", "datatype": "INT64", "shape": [len(PAIRS), 2], "data": PAIRS.tolist()}
        path = f"/v2/models/{client.model.service}/versions/{MORE}/infer"
        found = (await client.http.post(path, json={"inputs": [tensor]})).json()["outputs"]
        np.testing.assert_allclose(found[0]["data"], wanted, rtol=1e-3, atol=1e-4)
        message = ModelInferRequest(
            model_name="links", inputs=[{"name": "pairs", "datatype": "INT64", "shape": [len(PAIRS), 2]}],
            raw_input_contents=[ids],
        )  # fmt: skip
        lane = client.model.lane
        assert lane is not None
        question = question_of(InferCodec(message.SerializeToString()), b"", lane.revision)
        assert len(question.form.within(0, len(question.nodes)).first) == len(PAIRS)

    on_worker(RevisionWorker(generated[1]), scenario)  # type: ignore[arg-type]


# --- over several types, with new ends


def test_over_types_pairs_with_new_ends_are_decided_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    parts = shop()
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        del parts.nodes["user"][name]
    cascades = [{"first": "mlp0", "then": "projected", "passOnPercents": [50]}]
    service = links_service(
        {"typed": write_folder(tmp_path / "shop", parts)}, {"relation": "buys"}, oneRow=[{"hops": 0}], cascades=cascades
    )
    repository = Repository(tmp_path / "repository", "default", "tiny")
    manifest = generate(service, repository)
    (cascade,) = manifest.cascades
    items = parts.nodes["item"]["features"]
    overlay = {"nodes": [{"id": "item/900", "features": items[4].tolist()}], "edges": [["user/3", "buys", "item/900"]]}
    pairs = [[f"user/{user}", item] for user in range(30) for item in ("item/900", "item/4")]

    async def scenario(client: Client) -> None:
        async def ask(variant: str) -> Any:
            body = {"pairs": pairs, "overlay": overlay, "variant": variant, "seed": 5}
            return (await client.http.post("/v1/predict", json=body)).json()

        answers = {name: np.array((await ask(name))["probabilities"]) for name in ("mlp0", "projected", cascade.name)}
        is_first = np.isclose(answers[cascade.name], answers["mlp0"], atol=1e-5)
        is_then = np.isclose(answers[cascade.name], answers["projected"], atol=1e-5)
        assert (is_first | is_then).all()
        assert 0 < is_first.sum() < len(pairs)

    on_worker(RevisionWorker(load_revision(repository, manifest.revision)), scenario)  # type: ignore[arg-type]


def test_of_a_cascade_the_stage_that_reads_edges_is_explained(generated: Generated) -> None:
    """A cascade gives no embeddings, of which explained scores are made; its stage does."""

    async def ask(variant: str) -> dict[str, Any]:
        async with running(RevisionWorker(generated[1])) as client:  # type: ignore[arg-type]
            body = {"pair": [3, 17], "variant": variant}
            told: dict[str, Any] = (await client.http.post("/v1/explain", json=body)).json()
            return told

    told = asyncio.run(ask(MORE))
    assert told["variant"] == "x1", told
    assert max(abs(each["influence"]) for each in told["neighbours"]) > 1e-4
    message = asyncio.run(ask("mlp0"))["error"]["message"]
    assert message.startswith(
        "variant: variant mlp0 cannot be explained: influences take requests with an overlay and embeddings; choose "
        "from x1"
    )
