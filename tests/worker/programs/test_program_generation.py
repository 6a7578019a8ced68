"""Programs from a manifest to a published revision that serves what their models give."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch_geometric.nn as pyg
import yaml
from tests.support.changes.living import ROOM_BYTES, batch_of, ids_of
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.machine import fork_server
from tests.support.programs.generated_programs import (
    CLASSES,
    COLUMNS,
    EDGES,
    FEATURES,
    GRAPH,
    NODES,
    Given,
    Headed,
    Models,
    ProgramWorker,
    contract,
)
from tests.support.programs.programs import export, export_over_graph, manifest_of
from tests.support.serving.secured_worker import started

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat
from gnnserve_api.files.programs import ProgramOutput
from gnnserve_api.pods.generation import decode_result
from gnnserve_api.pods.interface import PodExit
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.folding import fold
from gnnserve_worker.export.write import export_variant
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.generation.programs import prepared, running
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores
from gnnserve_worker.generation.training_set import fit_normalization
from gnnserve_worker.graph.change_batch import encode_batch
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.programs.failure import ProgramFailedError, ProgramFailure
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.security.credentials import Credentials

UID = "f7b4c2a0-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory)


@pytest.fixture
def given(tmp_path: Path, models: Models) -> Callable[..., Given]:
    return lambda name, scores=None: Given(tmp_path, models, name, scores)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize(("name", "more"), [("SAGE", {}), ("GCN", {"readsDegrees": True})])
def test_a_program_is_published_and_gives_what_its_module_gives(
    given: Callable[..., Given], name: str, more: dict[str, Any]
) -> None:
    made = given(name)
    revision = made.generate(contract(**more))
    (variant,) = revision.variants
    assert (variant.name, variant.family, variant.columns) == ("x1", "program", COLUMNS)
    assert variant.fanouts == (-1,) * (2 + bool(more))
    scores, embeddings = made.module.over(FEATURES, EDGES)
    found = made.scores(revision, "x1", range(NODES))
    assert_close(found[0], scores)
    assert_close(found[1], embeddings)
    (compared,) = revision.compared  # type: ignore[misc]
    assert compared.tolerance_permille == 0.01
    assert compared.difference_permille <= 0.01
    assert revision.training is None
    assert find(made.service(contract(**more)), made.repository) == revision


def test_a_program_that_gives_scores_alone_says_what_gives_embeddings(given: Callable[..., Given]) -> None:
    made, without = given("SAGE"), contract()
    del without["embeddings"]
    revision = made.generate(without)
    served = ProgramWorker(load_revision(made.repository, revision.revision)).revision()
    with pytest.raises(
        RequestError,
        match="the program gives scores alone; leave embeddings out; for a service that has some, describe a module",
    ):
        served.task.check_outputs(("embeddings",), ("return[0]",))
    with pytest.raises(RequestError, match="describe a module whose forward returns"):
        served.task.recommending.check_computed(revision.revision)


def test_a_server_answers_about_nodes_that_only_the_request_has(given: Callable[..., Given]) -> None:
    made = given("GCN")
    revision = made.generate(contract(readsDegrees=True))
    own = np.random.default_rng(8).normal(size=(2, COLUMNS)).astype(np.float32)
    brought = [[7, NODES], [NODES, NODES + 1], [12, NODES + 1], [NODES, 7]]
    overlay = {
        "nodes": [{"id": NODES + place, "features": own[place].tolist()} for place in range(2)],
        "edges": brought,
    }
    asked = [NODES, NODES + 1, 7, 3]
    worker = ProgramWorker(load_revision(made.repository, revision.revision))
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)
        body = json.dumps({"nodes": asked, "overlay": overlay, "return": ["scores", "embeddings"]})
        connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    worker.loaded.variants["x1"].network.runner.close()  # type: ignore[attr-defined]
    edges = np.concatenate([EDGES, np.array(brought, np.int64).T], axis=1)
    scores, embeddings = made.module.over(np.concatenate([FEATURES, own]), edges)
    assert_close(np.array(answer["scores"]), scores[asked])
    assert_close(np.array(answer["embeddings"]), embeddings[asked])


def test_what_does_not_look_inside_is_made_beside_a_program(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    variants = {
        "storage": ["float32", "int8"],
        "fanouts": [[2, 1]],
        "oneRow": [{"hops": 0}],
        "cascades": [{"first": "mlp0", "then": "x1", "passOnPercents": [50]}],
    }
    revision = made.generate(contract(), variants=variants, model={"training": {"epochs": 3}})
    names = [variant.name for variant in revision.profile.variants]
    assert sorted(names) == sorted(made.service(contract(), variants=variants).spec.possible_variants())
    assert {variant.weights for variant in revision.variants if variant.family.startswith("program")} == {
        "variants/x1/model.onnx"
    }
    assert revision.training is not None
    (run,) = revision.training.runs
    assert set(run.tried) == {"labels", "scores", "both"}
    scores = made.module.over(FEATURES, EDGES)[0]
    assert_close(made.scores(revision, "x1", range(NODES))[0], scores)
    rounded = made.scores(revision, "x1-int8", range(NODES))[0]
    assert 0 < np.abs(rounded - scores).max() < 0.1 * np.abs(scores).max()


class Small(torch.nn.Module):
    """One convolution, which stands in for two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.only = pyg.SAGEConv(COLUMNS, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.only(x, edge_index)
        return scores


def small_beside(made: Given, *, off: float = 0.0) -> dict[str, Any]:
    """An entry of variants.given, whose files are written beside the model's. `off`: how far its first expected score
    is from what it gives."""
    module = Small().eval()
    export_over_graph(module, COLUMNS, made.folder / "small.onnx", ("logits",))
    with torch.no_grad():
        scores = module(torch.tensor(FEATURES), torch.tensor(EDGES)).numpy()
    wanted = scores.copy()
    wanted[0, 0] += off
    np.savez(made.folder / "small.npz", nodes=np.arange(NODES), scores=wanted)
    np.save(made.folder / "scores.npy", scores)
    program = {"uri": (made.folder / "small.onnx").as_uri(), **contract(hops=1)}
    del program["embeddings"]
    return {"program": program, "expected": {"uri": (made.folder / "small.npz").as_uri()}, "name": "small"}


def test_another_program_is_a_variant_that_is_compared_measured_and_served_beside_the_model(
    given: Callable[..., Given],
) -> None:
    made = given("GCN")
    entry = small_beside(made)
    variants = {"given": [entry], "storage": ["float32", "int8"]}
    revision = made.generate(contract(readsDegrees=True), variants=variants)
    assert [one.name for one in revision.variants] == ["x1", "x1-int8", "small", "small-int8"]
    assert {one.name for one in revision.profile.variants} == {one.name for one in revision.variants}
    by_name = {one.name: one for one in revision.variants}
    assert by_name["small"].weights == by_name["small-int8"].weights == "variants/small/small.onnx"
    assert (len(by_name["x1"].fanouts), len(by_name["small"].fanouts)) == (3, 1)
    assert {*revision.tables} == {"features-float32", "features-int8"}, "both read all columns"
    assert [one.weights for one in revision.compared] == ["spec.model", "small"]  # type: ignore[union-attr]
    assert {*revision.given} == {"small"}
    loaded = made.loaded(revision)
    assert_close(infer_batch(loaded, "x1", np.arange(NODES), 1).scores, made.module.over(FEATURES, EDGES)[0])
    assert_close(infer_batch(loaded, "small", np.arange(NODES), 1).scores, np.load(made.folder / "scores.npy"))
    assert len(loaded.programs) == 2, "a process each"
    for one in loaded.programs:
        one.close()
    assert find(made.service(contract(readsDegrees=True), variants=variants), made.repository) == revision
    # Another file of it is another revision.
    shutil.copy(made.folder / "model.onnx", made.folder / "small.onnx")
    assert find(made.service(contract(readsDegrees=True), variants=variants), made.repository) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": [{"name": "x", "is": "Features"}]}, "given[0].program.inputs: the program takes edge_index, x"),
        ({"sha256": "0" * 64}, "expected 0000"),
        ({"uri": "file:///none.onnx"}, "spec.variants.given[0].program.uri"),
    ],
)
def test_another_program_that_does_not_fit_is_refused_by_its_own_field(
    given: Callable[..., Given], changes: dict[str, Any], words: str
) -> None:
    made = given("SAGE")
    entry = small_beside(made)
    refusal = made.refusal(contract(), variants={"given": [{**entry, "program": {**entry["program"], **changes}}]})
    assert words in refusal
    assert "spec.variants.given[0].program" in refusal


def test_another_program_whose_folder_says_what_does_not_fit_is_refused_once_that_is_read(
    given: Callable[..., Given],
) -> None:
    """What the manifest itself says is refused by its rules."""
    made = given("SAGE")
    entry, folder = small_beside(made), made.folder / "small"
    folder.mkdir()
    shutil.move(made.folder / "small.onnx", folder / "small.onnx")
    program = {**entry["program"], "uri": "small.onnx"}
    beside = {**entry, "program": {"uri": folder.as_uri()}}
    for scores, fanouts, words in (
        (4, [], "spec.variants.given[0].program.scores: has 4 columns, and that of spec"),
        (
            CLASSES,
            [[2, 2]],
            "spec.variants.fanouts[0]: [2, 2] has 2 numbers, and spec.variants.given[0].program 1 hops",
        ),
    ):
        described = {**program, "scores": {"name": "logits", "columns": scores}}
        (folder / "manifest.yaml").write_text(yaml.safe_dump({"spec": {"model": {"program": described}}}))
        assert words in made.refusal(contract(), variants={"given": [beside], "fanouts": fanouts})


def test_expected_scores_of_another_program_are_its_own(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    refusal = made.refusal(contract(), variants={"given": [small_beside(made, off=5.0)]})
    assert "spec.variants.given[0].expected: scores of 1 of 90 nodes differ" in refusal


def test_a_program_may_sample_neighbours_where_it_counts_no_edges(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    (variant,) = made.generate(contract(fanouts=[2, 2])).variants
    assert variant.fanouts == (2, 2)


def test_scores_that_differ_are_refused_with_the_worst_nodes(given: Callable[..., Given]) -> None:
    scores = Headed(pyg.SAGEConv).over(FEATURES, EDGES)[0]
    scores[17] += 3 * np.abs(scores).max()
    refusal = given("SAGE", scores).refusal(contract())
    assert "spec.model.expected: scores of 1 of 90 nodes differ by more than 0.01 permille" in refusal
    assert "node 17, class" in refusal


def test_layers_that_count_edges_are_named_as_the_cause(given: Callable[..., Given]) -> None:
    refusal = given("GCN").refusal(contract())
    assert "over 3 hops in place of 2 the scores are equal to " in refusal
    assert "set spec.model.program.readsDegrees to true, where layers count edges" in refusal


def test_a_norm_over_the_whole_graph_is_named_as_the_cause(given: Callable[..., Given]) -> None:
    refusal = given("LayerNorm").refusal(contract())
    assert "over the whole graph at once the scores are equal to " in refusal
    assert "LayerNorm(mode='node')" in refusal


def test_fewer_hops_than_layers_are_named_as_the_cause(given: Callable[..., Given]) -> None:
    refusal = given("SAGE").refusal(contract(hops=1))
    assert "or set spec.model.program.hops to 2, the number of layers that read neighbours" in refusal


def test_features_that_were_scaled_are_named_as_the_cause(given: Callable[..., Given]) -> None:
    scaled = fit_normalization(GRAPH.features, Normalization.ROW_NORMALIZE, np.arange(NODES)).features
    refusal = given("SAGE", Headed(pyg.SAGEConv).over(np.asarray(scaled), EDGES)[0]).refusal(contract())
    assert "set spec.graph.normalization to RowNormalize" in refusal


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ({"scores": {"name": "logits", "columns": 4}}, "outputs.logits: it has 3 columns, and the contract says 4"),
        ({"scores": {"name": "scores", "columns": 3}}, "no 'scores'"),
        ({"inputs": [{"name": "x", "is": "Features"}]}, "the program takes edge_index, x"),
        (
            {"inputs": [{"name": "x", "is": "Features"}, {"name": "edge_index", "is": "Edges"},
                        {"name": "e", "is": "EdgeFeatures"}]},
            "the program takes edge_index, x, and the contract describes e, edge_index, x",
        ),
        ({"inputs": [{"name": "x", "is": "Features", "type": "paper"}, {"name": "edge_index", "is": "Edges"}]},
         "x is of type 'paper'"),
        ({"sha256": "0" * 64}, "expected 0000"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_published(
    given: Callable[..., Given], program: dict[str, Any], words: str
) -> None:
    assert words in given("SAGE").refusal(contract(**program))


def test_a_program_of_other_classes_is_refused_with_both_numbers(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    write_npz(made.folder / "graph.npz", npz_arrays(GRAPH) | {"labels": GRAPH.labels % 2})
    assert "scores.columns: is 3, and nodes have 2 classes" in made.refusal(contract())


def test_a_program_of_other_features_is_refused_with_both_widths(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    write_npz(made.folder / "graph.npz", npz_arrays(planted_graph((0, 1, 2), nodes=NODES, columns=COLUMNS + 1, seed=4)))
    assert f"x takes {COLUMNS} columns, and nodes have {COLUMNS + 1} features" in made.refusal(contract())


def test_the_folder_of_describe_stands_in_place_of_a_contract(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    folder = made.folder / "described"
    folder.mkdir()
    shutil.move(made.folder / "model.onnx", folder / "model.onnx")
    described = {"spec": {"model": {"program": {"uri": "model.onnx", **contract()}}}}
    (folder / "manifest.yaml").write_text(yaml.safe_dump(described))
    first = made.generate({"uri": folder.as_uri()})
    assert_close(made.scores(first, "x1", [5, 8])[0], made.module.over(FEATURES, EDGES)[0][[5, 8]])
    # What the folder says is part of the revision's identity.
    described["spec"]["model"]["program"].pop("embeddings")
    (folder / "manifest.yaml").write_text(yaml.safe_dump(described))
    assert find(made.service({"uri": folder.as_uri()}), made.repository) is None


def test_an_export_is_served_again_by_its_folder(given: Callable[..., Given], tmp_path: Path) -> None:
    made, scaling = given("SAGE"), "L2RowNormalize"
    trained = {"hidden": 8, "fanouts": [-1, -1], "training": {"epochs": 1}}
    uri, others = (made.folder / "graph.npz").as_uri(), Repository(tmp_path / "trained", "default", "tiny")
    service = service_of(uri, model=trained, normalization=scaling,
                         variants={"pruning": {"factors": [1]}, "projection": "Disabled"})  # fmt: skip
    loaded = load_revision(others, generate(service, others).revision, build=build_exact)
    folder = made.folder / "exported"
    export_variant(loaded, "default/tiny", "x1", [ExportFormat.ONNX], folder, "a test")
    scores = infer_batch(loaded, "x1", np.arange(NODES), 1).scores
    np.savez(made.folder / "expected.npz", nodes=np.arange(NODES), scores=scores)
    revision = made.generate({"uri": folder.as_uri()}, normalization=scaling)
    found = made.loaded(revision)
    assert_close(infer_batch(found, "x1", np.arange(NODES), 1).scores, scores)
    # Columns are in rank order, and the table has them so.
    assert revision.tables["features-float32"].source_columns == loaded.manifest.ranking.columns  # type: ignore[union-attr]


def test_a_program_follows_changes_and_is_carried_over_the_graph_that_has_them(given: Callable[..., Given]) -> None:
    made = given("GCN")
    revision = made.generate(contract(readsDegrees=True))
    own = np.random.default_rng(8).normal(size=(1, COLUMNS)).astype(np.float32)
    brought: list[tuple[int | str, int | str]] = [(7, NODES), (12, NODES), (NODES, 3), (8, 3)]
    batch = batch_of(own, [NODES], edges=brought)
    edges = np.concatenate([EDGES, np.array(brought, np.int64).T], axis=1)
    scores = made.module.over(np.concatenate([FEATURES, own]), edges)[0]
    log = SqliteLog(made.folder / "log.sqlite", UID)
    log.append([Entry("tests", 1, batch.counts.items, encode_batch(batch))])
    loaded = load_revision(made.repository, revision.revision, ROOM_BYTES)
    folded = fold(loaded, [FEATURES], log, UID, ROOM_BYTES, silent)
    assert folded is not None
    made.repository.put_graph(folded.data)
    carried = carry_over(revision, loaded, folded, made.repository, silent)
    assert_close(infer_batch(made.loaded(carried), "x1", np.arange(NODES + 1), 1).scores, scores)
    living = LivingRevision(load_revision(made.repository, revision.revision, ROOM_BYTES), ROOM_BYTES)
    living.apply(1, [batch])
    positions = living.graph.ids.find(ids_of([3, 7, NODES]))
    assert positions is not None
    assert_close(infer_batch(living.loaded, "x1", positions, 1).scores, scores[[3, 7, NODES]])


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "has 0 documents"),
        ("spec: {}", "has no spec.model.program"),
        ("spec: {model: {program: {uri: model.onnx, hops: 2}}}", "must be given together"),
        ("spec: {model: {program: {uri: model.onnx, hops: many}}}", 'hops: found "many", expected a valid integer'),
        ("spec: {model: {program: {uri: ../model.onnx}}}", "expected a file beside it"),
    ],
)
def test_a_folder_that_says_something_else_is_refused(given: Callable[..., Given], document: str, words: str) -> None:
    made = given("SAGE")
    (made.folder / "manifest.yaml").write_text(document)
    assert words in made.refusal({"uri": made.folder.as_uri()})


def test_files_and_folders_are_told_apart(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    assert "names the folder" in made.refusal({"uri": made.folder.as_uri(), **contract()})
    assert "has neither manifest.yaml nor export.json" in made.refusal({"uri": made.folder.as_uri()})
    assert "says neither hops nor inputs nor scores" in made.refusal({})
    assert "seems to be a file of torch" in made.refusal({"uri": (made.folder / "model.pt").as_uri(), **contract()})


def test_memory_that_is_too_little_to_start_in_is_named(
    given: Callable[..., Given], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = given("SAGE")
    monkeypatch.setattr(prepared, "CHECKED_LANES", 64)  # each has a thread, whose stack takes megabytes
    found = made.refusal({**contract(), "limits": {"memory": "1Mi"}})
    assert "limits.memory: is too little: the program cannot be read within 1 MiB" in found
    assert "give it more" in found


class FailingRunner:
    """In the place of a process that takes so many rows in a run."""

    def __init__(self, most_rows: int, failure: ProgramFailure) -> None:
        self.most_rows, self.failure = most_rows, failure
        self.asked: list[int] = []

    def run(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        self.asked += rows
        if len(inputs["x"]) > self.most_rows:
            raise ProgramFailedError(self.failure, "took longer than 10 s")
        return tuple(inputs["x"][:count, : each.columns] for each, count in zip(outputs, rows, strict=True))


def scores_of(runner: FailingRunner, **more: Any) -> ProgramScores:
    program = manifest_of(**more)
    read = ProgramGraph(GRAPH.graph, [GRAPH.features], [None])
    return ProgramScores(program, read, runner, lambda node: f"n{node}")  # type: ignore[arg-type]


def test_nodes_that_are_too_many_for_a_run_are_computed_by_fewer() -> None:
    runner = FailingRunner(most_rows=40, failure=ProgramFailure.TIME_OUT)
    found = scores_of(runner).scores(np.arange(NODES))
    np.testing.assert_array_equal(found, FEATURES[:, :CLASSES])
    assert max(runner.asked) == NODES


@pytest.mark.parametrize(
    ("reads_degrees", "remedy"), [(False, "sample neighbours by spec.model.program.fanouts"), (True, "train a model")]
)
def test_a_node_that_is_too_much_for_a_run_is_named_with_what_it_reads(reads_degrees: bool, remedy: str) -> None:
    runner = FailingRunner(most_rows=2, failure=ProgramFailure.MEMORY)
    with pytest.raises(InputError, match=r"limits: node 'n\d+' has \d+ edges within \d hops, and .*") as caught:
        scores_of(runner, reads_degrees=reads_degrees).check_largest(np.arange(NODES))
    assert remedy in str(caught.value)


def test_a_node_without_neighbours_that_is_too_much_for_a_run_is_the_programs_own_doing() -> None:
    runner = FailingRunner(most_rows=0, failure=ProgramFailure.MEMORY)
    with pytest.raises(InputError, match="look for a constant of a huge size, or a loop that does not end") as caught:
        scores_of(runner, hops=0).scores(np.arange(1))
    assert "ask for fewer nodes" not in str(caught.value)


def test_a_neighbourhood_beyond_the_budget_is_refused_before_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_NEIGHBOURHOOD_EDGES", 5)
    runner = FailingRunner(most_rows=NODES, failure=ProgramFailure.MEMORY)
    with pytest.raises(InputError, match="more than the 5 that one node may have"):
        scores_of(runner).check_largest(np.arange(NODES))
    assert not runner.asked


def test_what_a_runtime_refuses_is_no_matter_of_limits() -> None:
    runner = FailingRunner(most_rows=0, failure=ProgramFailure.REFUSED)
    with pytest.raises(InputError, match="over this graph the program"):
        scores_of(runner).scores(np.arange(NODES))


def test_a_file_that_may_not_be_run_is_refused_before_the_graph_is_imported(given: Callable[..., Given]) -> None:
    made = given("SAGE")
    (made.folder / "graph.npz").write_bytes(b"no archive")
    model = onnx.load(made.folder / "model.onnx")
    model.graph.node[-1].op_type = "ImageDecoder"
    onnx.save(model, made.folder / "model.onnx")
    assert "ImageDecoder" in made.refusal(contract())


def test_a_program_may_read_no_neighbours_at_all(tmp_path: Path) -> None:
    torch.manual_seed(5)
    module = torch.nn.Linear(COLUMNS, CLASSES)
    export(module, {"input": FEATURES[:7]}, {"input": {0: "nodes"}}, tmp_path / "model.onnx", ("logits",))
    write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH))
    expected = module(torch.tensor(FEATURES)).detach().numpy()
    np.savez(tmp_path / "expected.npz", nodes=np.arange(NODES), scores=expected)
    program = {
        "uri": (tmp_path / "model.onnx").as_uri(),
        "hops": 0,
        "inputs": [{"name": "input", "is": "Features"}],
        "scores": {"name": "logits", "columns": CLASSES},
    }
    model = {"program": program, "expected": {"uri": (tmp_path / "expected.npz").as_uri()}}
    repository = Repository(tmp_path / "repository", "default", "tiny")
    revision = generate(service_of((tmp_path / "graph.npz").as_uri(), model=model), repository)
    loaded = load_revision(repository, revision.revision)
    assert_close(infer_batch(loaded, "x1", np.arange(NODES), 1).scores, expected)


def test_weights_in_a_file_beside_the_program_are_served_and_tell_revisions_apart(
    given: Callable[..., Given],
) -> None:
    made = given("SAGE")
    file = made.folder / "model.onnx"
    onnx.save(onnx.load(file), file, save_as_external_data=True, location="model.onnx.data", size_threshold=64)
    first = made.generate(contract())
    (variant,) = first.variants
    assert {variant.weights, variant.weights.replace("model.onnx", "model.onnx.data")} <= first.files.keys()
    nodes = [*range(NODES)]
    assert_close(made.scores(first, "x1", nodes)[0], made.module.over(FEATURES, EDGES)[0])
    # The source may be gone: a revision has all that it needs.
    weights = (made.folder / "model.onnx.data").read_bytes()
    (made.folder / "model.onnx.data").unlink()
    assert_close(made.scores(first, "x1", nodes)[0], made.module.over(FEATURES, EDGES)[0])
    # Weights that give other scores than the expected ones are another program's.
    (made.folder / "model.onnx.data").write_bytes(bytes(len(weights)))
    with pytest.raises(InputError, match="expected"):
        made.generate(contract())
    (made.folder / "model.onnx.data").write_bytes(weights)
    assert made.generate(contract()).revision == first.revision


def test_a_job_publishes_a_program_and_says_why_it_does_not(given: Callable[..., Given]) -> None:
    made = given("SAGE")

    def run() -> tuple[int, bytes]:
        environ = {
            **os.environ,
            "GNNSERVE_MANIFEST": made.service(contract()).model_dump_json(by_alias=True, exclude_none=True),
            "GNNSERVE_REPOSITORY": str(made.folder / "repository"),
            "GNNSERVE_TERMINATION_MESSAGE": str(made.folder / "termination-log"),
        }
        done = fork_server.completed("gnnserve_worker.pods.generate", env=environ)
        return done.returncode, (made.folder / "termination-log").read_bytes()

    code, message = run()
    assert code == PodExit.OK
    summary = decode_result(message)
    assert [variant.name for variant in summary.variants] == ["x1"]
    assert load_revision(made.repository, summary.revision).programs
    np.savez(made.folder / "expected.npz", nodes=np.arange(NODES), scores=made.module.over(FEATURES, EDGES)[0] + 1)
    code, message = run()
    assert code == PodExit.BAD_INPUT
    assert b"spec.model" in message
    assert [one.revision for one in made.repository.revisions()] == [summary.revision]
