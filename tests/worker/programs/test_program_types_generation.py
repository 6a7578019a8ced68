"""Programs over several types, from a manifest to a server's answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from msgspec import UNSET
from tests.support.changes.living import ROOM_BYTES, write_and_apply
from tests.support.generation.learning import labels_of
from tests.support.graphs.several_types import write_hetero
from tests.support.programs.generated_programs import ProgramWorker
from tests.support.programs.program_types import (
    CLASSES,
    COLUMNS,
    COUNTS,
    FEATURES,
    FREE,
    HIDDEN,
    RELATIONS,
    USERS,
    Model,
    example,
    program_of,
    whole_graph,
)
from tests.support.programs.program_types_generated import Given, GrownGraph, contract, graph_parts, hetero_data, tables
from tests.support.programs.programs import export
from tests.support.serving.questions import question_of
from tests.support.serving.secured_worker import started

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Scope
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation.node_rows import node_rows
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.generation.training_set import fit_normalization, training_set
from gnnserve_worker.graph.change_batch import encode_batch
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.revision_files import RowLayout
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.changes.reading import read_changes
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.requests import Question
from gnnserve_worker.serving.security.credentials import Credentials


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return program_of(tmp_path_factory)


@pytest.fixture(scope="module")
def expected(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Scores and embeddings of all users."""
    with torch.no_grad():
        found = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})
    return found[0].numpy(), found[1].numpy()


@pytest.fixture
def given(tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray]) -> Given:
    return Given(tmp_path, program, expected[0], hetero_data)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.campaign
@pytest.mark.parametrize("source", [hetero_data, tables])
def test_a_server_gives_what_the_module_gives_over_the_whole_graph(
    tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray], source: Callable[[Path], Any]
) -> None:
    made = Given(tmp_path, program, expected[0], source)
    revision = made.generate(contract())
    (variant,) = revision.variants
    assert (variant.name, variant.family, variant.columns) == ("x1", "program", max(COLUMNS.values()))
    (compared,) = revision.compared  # type: ignore[misc]
    assert compared.difference_permille <= 0.01
    assert find(made.service(contract()), made.repository) == revision
    worker = ProgramWorker(load_revision(made.repository, revision.revision))
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)
        nodes = [each if isinstance(each, str) else int(each) for each in made.ids]
        body = json.dumps({"nodes": nodes, "return": ["scores", "embeddings"]})
        connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    worker.loaded.variants["x1"].network.runner.close()  # type: ignore[attr-defined]
    assert_close(np.array(answer["scores"]), expected[0])
    assert_close(np.array(answer["embeddings"]), expected[1])


def test_storages_and_smaller_fanouts_are_made_beside_it(given: Given, expected: tuple[np.ndarray, np.ndarray]) -> None:
    variants = {"storage": ["float32", "int8"], "fanouts": [[2, 1]]}
    revision = given.generate(contract(), variants=variants)
    names = {variant.name for variant in revision.profile.variants}
    assert names == {*given.service(contract(), variants=variants).spec.possible_variants()}
    assert names == {"x1", "x1-int8", "x1-f2x1", "x1-int8-f2x1"}
    loaded = load_revision(given.repository, revision.revision)
    rounded = infer_batch(loaded, "x1-int8", np.arange(USERS), 1).scores
    assert 0 < np.abs(rounded - expected[0]).max() < 0.1 * np.abs(expected[0]).max()


def test_another_program_over_types_is_a_variant_beside_it(
    given: Given, expected: tuple[np.ndarray, np.ndarray]
) -> None:
    """The same file, which samples two neighbours by each relation and hop."""
    file = (given.folder / "expected.npz").as_uri()
    entry = {"program": {"uri": given.program.as_uri(), **contract(fanouts=[2, 2])}, "expected": {"uri": file}}
    revision = given.generate(contract(), variants={"given": [entry]})
    assert [(one.name, one.fanouts) for one in revision.variants] == [("x1", (-1, -1)), ("given-1", (2, 2))]
    loaded = load_revision(given.repository, revision.revision)
    assert_close(infer_batch(loaded, "x1", np.arange(USERS), 1).scores, expected[0])
    assert infer_batch(loaded, "given-1", np.arange(USERS), 1).scores.shape == expected[0].shape
    for one in loaded.programs:
        one.close()


def test_scores_that_differ_are_refused_with_the_worst_node_by_its_id(
    tmp_path: Path, program: Path, expected: tuple[np.ndarray, np.ndarray]
) -> None:
    wrong = expected[0].copy()
    wrong[17] += 3 * np.abs(wrong).max()
    refusal = Given(tmp_path, program, wrong, tables).refusal(contract())
    assert "scores of 1 of 90 nodes differ by more than 0.01 permille" in refusal
    assert "node 'u17', class" in refusal


def test_fewer_hops_than_layers_are_named_as_the_cause(given: Given) -> None:
    assert "set spec.model.program.hops to 2" in given.refusal(contract(hops=1))


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("x_user", {"type": "buyer"}, "x_user is of type 'buyer'; the graph has 'user', 'item'"),
        ("x_user", {"type": "item"}, "x_user takes 5 columns, and nodes of type 'item' have 3 features"),
        ("buys", {"relation": {"source": "item", "name": "buys", "target": "user"}}, "buys is of relation 'item buys"),
        (
            "attr",
            {"relation": {"source": "user", "name": "knows", "target": "user"}},
            "attr is features of edges of user knows user, which have none; let the source read them",
        ),
        (
            "time",
            {"relation": {"source": "user", "name": "knows", "target": "user"}},
            "time is times of edges of user knows user, which have none; let the source read them",
        ),
    ],
)
def test_a_contract_that_does_not_fit_the_types_is_refused_by_name(
    given: Given, name: str, changed: dict[str, Any], words: str
) -> None:
    program = contract()
    (one,) = (each for each in program["inputs"] if each["name"] == name)
    one |= changed
    assert words in given.refusal(program)


def test_features_of_each_type_are_scaled_by_those_of_its_own(given: Given, model: Model) -> None:
    seen = {"user": np.arange(USERS // 3), "item": np.arange(COUNTS["item"])}
    method = Normalization.STANDARDIZE
    scaled = {name: fit_normalization(FEATURES[name], method, seen[name]).features for name in COUNTS}
    arrays = whole_graph() | {f"x_{name}": np.asarray(scaled[name]) for name in COUNTS}
    with torch.no_grad():
        scores = model(**{name: torch.tensor(array) for name, array in arrays.items()})[0].numpy()
    given.expect(scores)
    assert "set spec.graph.normalization to Standardize" in given.refusal(contract())
    revision = given.generate(contract(), normalization="Standardize")
    assert_close(
        infer_batch(load_revision(given.repository, revision.revision), "x1", np.arange(USERS), 1).scores, scores
    )
    assert revision.row_source is not None
    assert revision.row_source.types is not UNSET
    assert [one.normalization for one in revision.row_source.types] == ["Standardize"] * 2


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory, program: Path, expected: tuple[np.ndarray, np.ndarray]
) -> tuple[Given, RevisionManifest]:
    made = Given(tmp_path_factory.mktemp("published"), program, expected[0], hetero_data)
    return made, made.generate(contract(), updates=UPDATES, variants=STORED)


STORED = {"storage": ["float32", "int8"]}


@pytest.fixture(scope="module")
def loaded(published: tuple[Given, RevisionManifest]) -> LoadedRevision:
    return load_revision(published[0].repository, published[1].revision)


def read(served: ServedRevision, body: dict[str, Any]) -> Question:
    return question_of(JsonCodec(), json.dumps(body).encode(), served, max_nodes=1_000)


def test_requests_that_bring_nodes_and_edges_are_answered_as_torch_does_over_the_grown_graph(
    loaded: LoadedRevision, model: Model
) -> None:
    served, draw = served_revision(loaded), np.random.default_rng(11)
    warm_up(loaded)
    for _ in range(10):
        grown, wanted, questions = [GrownGraph() for _ in range(3)], [], []
        for graph in grown:
            overlay = graph.drawn(draw)
            places = draw.integers(0, len(graph.users), 5)
            nodes = [f"user/{graph.users[place]}" for place in places]
            questions.append(read(served, {"nodes": nodes, "overlay": overlay}))
            wanted.append(graph.scores(model)[places])
        seeds = np.concatenate([one.nodes for one in questions])
        view = view_of(
            loaded.graph.nodes, [Part(len(one.nodes), one.overlay, one.wishes.seed) for one in questions], seeds
        )
        assert_close(infer_batch(loaded, "x1", seeds, 0, view=view).scores, np.concatenate(wanted))


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"nodes": [{"id": "user/90", "features": [1.0]}]}, "overlay.nodes[0].features"),
        ({"nodes": [{"id": "item/40"}]}, "overlay.nodes[0].features: it is missing"),
        (
            {"edges": [["item/3", "bought_by", "user/7"]]},
            "edgeFeatures[0]: it is missing; edges of item bought_by user have 2 ",
        ),
        ({"edges": [["item/3", "buys", "user/7"]]}, "overlay.edges[0]"),
    ],
)
def test_what_is_wrong_with_what_a_request_brings_is_told_by_its_place(
    loaded: LoadedRevision, overlay: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        read(served_revision(loaded), {"nodes": ["user/7"], "overlay": overlay})
    assert words in str(caught.value)


UPDATES = {"log": {"sqlite": {}}}
JSON, BINARY = b"application/json", CHANGES_TYPE.encode()
UID = "f7b4c2a0-0000-4000-8000-000000000003"


class Follower:
    """A worker over a service that has a log of changes, and what the graph should be."""

    def __init__(self, folder: Path, made: Given, revision: RevisionManifest) -> None:
        self.repository, self.revision = made.repository, revision
        self.service = made.service(contract(), updates=UPDATES, variants=STORED)
        self.updates = UpdatesOptions(SqliteFile(folder / "log.sqlite"), UID, ROOM_BYTES)
        self.plain, self.draw, self._sequence = GrownGraph(), np.random.default_rng(5), 0
        self.start()

    def start(self) -> None:
        """Open the newest revision, and apply what the log has beyond it."""
        loaded = load_revision(self.repository, self.revision.revision, ROOM_BYTES)
        self.living = LivingRevision(loaded, ROOM_BYTES)
        with opened_log(self.updates.log, UID) as log:
            catch_up(log, self.living, lambda _: None)
        self.served = served_revision(loaded, self.living)

    def change(self, count: int) -> None:
        batches = []
        for _ in range(count):
            body = json.dumps(self.plain.drawn_changes(self.draw)).encode()
            payload, batch = read_changes(body, JSON, self.served)
            assert encode_batch(read_changes(payload, BINARY, self.served)[1]) == payload
            batches.append(batch)
        self._sequence = write_and_apply(self.updates, self._sequence, self.living, batches)

    def assert_it_answers(self, model: Model) -> None:
        wanted = self.plain.scores(model)
        question = read(self.served, {"nodes": [f"user/{node}" for node in self.plain.users]})
        assert_close(self.served.compute.infer("x1", question.nodes.copy(), 0).scores, wanted)
        rounded = self.served.compute.infer("x1-int8", question.nodes.copy(), 0).scores
        assert 0 < np.abs(rounded - wanted).max() < 0.1 * np.abs(wanted).max()


def test_changes_are_followed_and_folded_into_the_graph_and_found_again_by_a_worker_that_starts(
    tmp_path: Path, published: tuple[Given, RevisionManifest], model: Model
) -> None:
    follower = Follower(tmp_path, *published)
    follower.change(4)
    follower.assert_it_answers(model)
    follower.start()
    follower.assert_it_answers(model)
    for _ in range(2):
        follower.revision = compact(follower.service, follower.repository, follower.updates)
        follower.start()
        assert follower.living.offset == follower.living.base_offset
        follower.assert_it_answers(model)
        follower.change(3)
        follower.assert_it_answers(model)
    overlay = follower.plain.drawn(follower.draw)
    nodes = [f"user/{node}" for node in follower.plain.users]
    question = read(follower.served, {"nodes": nodes, "overlay": overlay})
    seeds = question.nodes.copy()
    view = view_of(follower.served.graph.first_new, [Part(len(seeds), question.overlay, None)], seeds)
    found = follower.served.compute.infer("x1", seeds, 0, view=view).scores
    assert_close(found, follower.plain.scores(model))


def walks(hops: int) -> np.ndarray:
    """What a one-row network of that many hops reads of users, as they are in the source: their own features, and of
    each type the means that walks meet."""
    arrays = whole_graph()

    def mean(relation: Any, rows: np.ndarray) -> np.ndarray:
        sums, counts = np.zeros((COUNTS[relation.target], rows.shape[1])), np.zeros(COUNTS[relation.target])
        source, target = arrays[relation.name]
        np.add.at(sums, target, rows[source])
        np.add.at(counts, target, 1)
        found: np.ndarray = sums / np.maximum(counts, 1)[:, None]
        return found

    knows, bought, buys = RELATIONS
    users, items, blocks = {"user": FEATURES["user"]}, {"item": FEATURES["item"]}, [FEATURES["user"]]
    for _ in range(hops):
        of_users = {"user": [mean(knows, users["user"])]}
        of_users["item"] = [mean(knows, users["item"])] if "item" in users else []
        for origin, rows in items.items():
            of_users[origin].append(mean(bought, rows))
        items = {origin: mean(buys, rows) for origin, rows in users.items()}
        users = {origin: np.mean(parts, axis=0) for origin, parts in of_users.items()}
        blocks += [users[origin] for origin in COUNTS]
    return np.concatenate(blocks, 1)


@pytest.mark.campaign
@pytest.mark.parametrize("scope", ["Inductive", "Transductive"])
def test_one_row_variants_and_cascades_stand_beside_it(
    given: Given, expected: tuple[np.ndarray, ...], scope: str
) -> None:
    cascades = [{"first": "mlp0", "then": "x1", "passOnPercents": [50]}]
    variants = {"oneRow": [{"hops": 0}, {"hops": 2}], "cascades": cascades, "storage": ["float32", "int8"]}
    training = {"training": {"epochs": 3, "scope": scope}}
    service = given.service(contract(), variants=variants, updates=UPDATES, model=training)
    revision = generate(service, given.repository)
    assert {one.name for one in revision.profile.variants} == {*service.spec.possible_variants()}
    assert revision.training is not None
    assert [{*run.tried} for run in revision.training.runs] == [{"labels", "scores", "both"}] * 2
    loaded = load_revision(given.repository, revision.revision, ROOM_BYTES)
    assert_close(infer_batch(loaded, "x1", np.arange(USERS), 1).scores, expected[0])
    # What it reads of a node is what was trained on: the stored product is that of features as they are.
    living = LivingRevision(loaded, ROOM_BYTES)
    served, draw = served_revision(loaded, living), np.random.default_rng(3)
    row = draw.normal(size=5).astype(np.float32)
    overlay = {"nodes": [{"id": "user/900", "features": FEATURES["user"][7].tolist()}],
               "overrides": [{"id": "user/8", "features": row.tolist()}]}  # fmt: skip
    question = read(served, {"nodes": ["user/900", "user/7", "user/8"], "overlay": overlay})
    seeds = question.nodes.copy()
    view = view_of(served.graph.first_new, [Part(3, question.overlay, None)], seeds)
    found = served.compute.infer("mlp0", seeds, 0, view=view).scores
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)
    before = served.compute.infer("mlp0", np.array([8]), 0).scores
    assert np.abs(found[2] - before[0]).max() > 1e-3
    body = {"nodes": [{"id": "user/900", "features": row.tolist()}], "removedNodes": ["user/3"],
            "overrides": [{"id": "user/8", "features": row.tolist()}]}  # fmt: skip
    living.apply(1, [read_changes(json.dumps(body).encode(), JSON, served)[1]])
    changed = served.compute.infer("mlp0", read(served, {"nodes": ["user/900", "user/8"]}).nodes, 0).scores
    np.testing.assert_allclose(changed, found[[2, 2]], rtol=0, atol=1e-6)


@pytest.mark.campaign
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_what_one_row_variants_read_are_means_of_each_type_by_walks(given: Given, hops: int) -> None:
    spec = given.service(contract()).spec
    data = load_source(spec.graph.source, given.repository.downloads)
    subject = training_set(data, labels_of(data), CLASSES, Scope.TRANSDUCTIVE, Normalization.DISABLED)
    rows = node_rows(subject, Scope.TRANSDUCTIVE, RowLayout.BY_TYPE).rows_of(spec.model.one_row(hops), {})
    np.testing.assert_allclose(rows.served, walks(hops), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rows.served, rows.trained)


def test_one_row_variants_of_nodes_that_have_nothing_to_read_are_refused(given: Given) -> None:
    spec = given.service(contract()).spec
    data = load_source(spec.graph.source, given.repository.downloads)
    bare = replace(data, types=tuple(replace(kind, features=None) for kind in data.types))
    subject = training_set(bare, labels_of(bare), CLASSES, Scope.TRANSDUCTIVE, Normalization.DISABLED)
    rows = node_rows(subject, Scope.TRANSDUCTIVE, RowLayout.BY_TYPE)
    with pytest.raises(InputError, match=r"spec\.variants\.oneRow: nodes of type 'user' have no features"):
        rows.rows_of(spec.model.one_row(1), {})


class NormOfAll(Model):
    """Divides by the deviation of all users together."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = pyg.LayerNorm(HIDDEN)  # type: ignore[assignment]


def test_a_norm_over_all_nodes_of_a_type_is_named_as_the_cause(tmp_path: Path) -> None:
    model = NormOfAll().eval()
    program = export(model, example(), FREE, tmp_path / "model.onnx", ("scores", "hidden"))
    with torch.no_grad():
        scores = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})[0].numpy()
    refusal = Given(tmp_path, program, scores, hetero_data).refusal(contract())
    assert "over the whole graph at once the scores are equal to " in refusal


class TwoSums(torch.nn.Module):
    """Adds what users read by two relations, each by a weight of its own."""

    def forward(self, x: torch.Tensor, knows: torch.Tensor, likes: torch.Tensor) -> torch.Tensor:
        sums = [torch.zeros_like(x).index_add(0, ends[1], x[ends[0]]) for ends in (knows, likes)]
        return x + sums[0] + 3 * sums[1]


def test_relations_of_two_inputs_that_are_exchanged_are_named_as_the_cause(tmp_path: Path) -> None:
    x, knows = FEATURES["user"][:, :CLASSES], whole_graph()["knows"]
    arrays = {"x": np.ascontiguousarray(x), "knows": knows, "likes": (knows + 1) % USERS}
    parts = graph_parts(as_columns=False)
    parts.nodes = {"user": {**parts.nodes["user"], "features": arrays["x"]}}
    parts.edges = {
        ("user", name, "user"): dict(zip(("src", "dst"), arrays[name], strict=True)) for name in ("knows", "likes")
    }
    free = {"x": {0: "nodes"}, "knows": {1: "known"}, "likes": {1: "liked"}}
    program = export(TwoSums(), arrays, free, tmp_path / "model.onnx")
    scores = TwoSums()(*map(torch.tensor, arrays.values())).numpy()
    inputs = [{"name": "x", "is": "Features", "type": "user"}]
    for name, relation in (("knows", "likes"), ("likes", "knows")):
        key = {"source": "user", "name": relation, "target": "user"}
        inputs.append({"name": name, "is": "Edges", "relation": key})
    given = Given(tmp_path, program, scores, lambda folder: write_hetero(folder, parts))
    refusal = given.refusal({"hops": 1, "inputs": inputs, "scores": {"name": "scores", "columns": CLASSES}})
    assert "exchange the relations of knows and likes in spec.model.program.inputs" in refusal


def test_features_of_a_type_that_has_none_are_refused_by_its_name(given: Given) -> None:
    given.source["withoutFeatures"] = ["item"]
    assert "x_item is features of type 'item', whose nodes have none" in given.refusal(contract())
