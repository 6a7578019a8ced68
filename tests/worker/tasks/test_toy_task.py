"""A task that one file of tests alone knows (`tests/support/generation/odd_task.py`).

It goes from a manifest to a published revision, to its report, through every protocol, with what requests bring and
what changes leave behind, beside another revision and out of gnnserve, over one type and over several, without a line
elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.generation.odd_task import known_odd_classes
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.several_types import divided_shop, write_folder
from tests.support.serving.grpc_worker import listening
from tests.support.serving.serving import Client, FakeWorker, OpenedWorker, running
from tests.support.serving.serving import service as plain_service
from tests.support.serving.two_revisions import FIRST, SECOND, STAYS, DirectCalls

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat, ExportManifest
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.subject import load_subject
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.export.write import export_variant
from gnnserve_worker.generation.pipeline import find, generate, newest_version
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.process.canary import ServedCanary
from gnnserve_worker.serving.security.access import Access

pytestmark = pytest.mark.campaign("scene")

UID = "f7b4c2a0-0000-4000-8000-000000000001"
ROOM_BYTES = 1 << 26
WRITING = "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


@pytest.fixture(autouse=True, scope="module")
def _known() -> Iterator[None]:
    with known_odd_classes(), pytest.MonkeyPatch.context() as patched:
        patched.setenv(BUDGET_VARIABLE, "0.02")
        yield


@dataclass(frozen=True, slots=True)
class Source:
    """A graph, and what tells its odd nodes."""

    spec: dict[str, Any]
    features: np.ndarray
    """Of the nodes that have classes."""
    labels: np.ndarray
    begins: str = ""
    """What an id begins with."""
    relation: tuple[str, ...] = ()

    def id_of(self, node: int) -> Any:
        return f"{self.begins}{node}" if self.begins else node

    def like(self, *, odd: bool) -> np.ndarray:
        """Nodes of one class, which is odd or not."""
        return np.flatnonzero(self.labels == int(odd))

    def new(self, node: int, *, odd: bool) -> dict[str, Any]:
        """A new node as a request or a change brings it: it looks like nodes of that class, and is joined to five."""
        like = self.like(odd=odd)
        edges = [[self.id_of(int(other)), *self.relation, self.id_of(node)] for other in like[:5]]
        row = self.features[like].mean(axis=0).tolist()
        return {"nodes": [{"id": self.id_of(node), "features": row}], "edges": edges}


def one_type(folder: Path) -> Source:
    data = planted_graph((2, 5, 7), nodes=300)
    uri = write_npz(folder / "graph.npz", npz_arrays(data)).as_uri()
    assert data.features is not None
    return Source({"npz": {"uri": uri}}, np.asarray(data.features), data.labels)


def several_types(folder: Path) -> Source:
    parts = divided_shop()
    users = parts.nodes["user"]
    spec = {"typed": write_folder(folder / "graph", parts)}
    return Source(spec, users["features"], users["labels"], "user/", ("knows",))


def service(source: Source, **variants: Any) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "odd"},
            "spec": {
                "graph": {"source": source.spec},
                "model": {"hidden": 16, "fanouts": [5, 5], "training": {"epochs": 30, "batchSize": 64}},
                "variants": variants,
                "updates": {"log": {"sqlite": {}}},
            },
        }
    )


@dataclass(frozen=True, slots=True)
class Scene:
    folder: Path
    source: Source
    service: GNNService
    repository: Repository
    published: RevisionManifest

    @property
    def variant(self) -> str:
        return self.published.variants[0].name

    def served(self) -> ServedRevision:
        return served_revision(load_revision(self.repository, self.published.revision))


@pytest.fixture(scope="module", params=[one_type, several_types])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("odd")
    source: Source = request.param(folder)
    asked, repository = service(source), Repository(folder / "repository", "default", "odd")
    return Scene(folder, source, asked, repository, generate(asked, repository, HeardSteps()))


def assert_told(folder: Path, published: RevisionManifest) -> None:
    """The revision answers with one output of each node, mostly right, and its report can be drawn."""
    assert published.links is None
    assert published.profile.metric == "oddness"
    assert published.training is not None
    assert {run.learnt_from for run in published.training.runs} == {"odd classes"}
    assert {one.network.classes for one in published.variants} == {1}
    assert all(one.validation_accuracy > 0.8 for one in published.profile.variants)
    loaded = load_revision(Repository(folder / "repository", "default", "odd"), published.revision)
    found = infer_batch(loaded, published.variants[0].name, loaded.labels.splits.test, key=0).scores
    assert found.shape == (len(loaded.labels.splits.test), 1)
    subject = load_subject(folder / "repository", "odd", None)
    assert "accuracy" in build_page(build_report(subject, "gnnserve test"))


# --- what generation makes of it


def test_a_task_of_one_file_is_generated_found_and_reported(scene: Scene) -> None:
    assert_told(scene.folder, scene.published)
    assert find(scene.service, scene.repository) == scene.published
    assert scene.published.training is not None and scene.published.training.majority is None


def test_a_search_goes_without_an_accuracy_that_is_worth_nothing(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "odd")
    published = generate(service(one_type(tmp_path), search="Auto", budget={"seconds": 30, "variants": 2}), repository)
    assert published.profile.search is not None
    assert_told(tmp_path, published)


def test_a_task_refuses_what_it_has_no_use_for(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "odd")
    with pytest.raises(InputError, match="cascades: needs classes"):
        generate(service(one_type(tmp_path), cascades=[{"first": "x2", "then": "x1"}]), repository)


# --- what serving makes of it


def test_a_task_of_one_file_answers_in_every_protocol(scene: Scene) -> None:
    nodes, variant = [3, 1, 4, 1, 5], scene.variant
    wishes = {"seed": 7, "variant": variant}
    raw = np.array(nodes, "<i8").tobytes()
    told: dict[str, list[bool]] = {}
    codes: dict[str, str] = {}

    async def scenario() -> None:
        async with running(OpenedWorker(served=scene.served())) as client, listening(client) as calls:
            http, tensor = client.http, {"name": "nodes", "datatype": "INT64", "shape": [len(nodes)]}
            answer = await http.post("/v1/predict", json={"nodes": nodes, **wishes})
            told["JSON"] = answer.json()["odd"]
            named = [scene.source.id_of(node) for node in nodes]
            answer = await http.post("/v1/predict", json={"nodes": named, **wishes})
            told["JSON by the ids of the type"] = answer.json()["odd"]
            headers = {"content-type": "application/octet-stream", "gnnserve-seed": "7", "gnnserve-variant": variant}
            answer = await http.post("/v1/predict?return=odd", content=raw, headers=headers)
            told["binary"] = np.frombuffer(answer.content, bool).tolist()
            asked = {"inputs": [{**tensor, "data": nodes}], "parameters": {"seed": 7}}
            answer = await http.post(f"/v2/models/digits/versions/{variant}/infer", json=asked)
            told["Open Inference"] = answer.json()["outputs"][0]["data"]
            called = await calls.call(
                "ModelInfer", model_name="digits", model_version=variant, inputs=[tensor], raw_input_contents=[raw],
                parameters={"seed": {"int64_param": 7}},
            )  # fmt: skip
            told["gRPC"] = np.frombuffer(called.answer.raw_output_contents[0], bool).tolist()
            for path, body in {
                "/v1/predict": {"nodes": nodes, "return": ["labels"]},
                "/v1/labels": {"labels": [{"node": 1, "label": 3}]},
                "/v1/recommend": {"node": 1},
            }.items():
                refused = await http.post(path, json=body)
                assert 400 <= refused.status_code < 500, refused.text
                codes[path] = refused.json()["error"]["code"]
            explained = await http.post("/v1/explain", json={"node": 1})
            assert explained.json()["unexplained"] == "what is odd is not explained"
            schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
            assert {"OddRequest", "OddAnswer"} <= schemas.keys()
            assert (await http.get("/v1/variants")).json()["classes"] == []
            assert (await http.get("/explore")).status_code == 200

    asyncio.run(scenario())
    assert len(told["JSON"]) == len(nodes)
    assert {name for name, found in told.items() if found == told["JSON"]} == {*told}
    assert codes["/v1/predict"] == "InvalidValue"


async def ask(client: Client, node: Any, **fields: Any) -> bool:
    response = await client.http.post("/v1/predict", json={"nodes": [node], **fields})
    assert response.status_code == 200, response.text
    (odd,) = response.json()["odd"]
    return bool(odd)


def test_a_task_of_one_file_answers_about_nodes_that_requests_bring(scene: Scene) -> None:
    source, new = scene.source, len(scene.source.labels)

    async def scenario() -> dict[bool, bool]:
        async with running(OpenedWorker(served=scene.served())) as client:
            return {
                odd: await ask(client, source.id_of(new), overlay=source.new(new, odd=odd)) for odd in (True, False)
            }

    assert asyncio.run(scenario()) == {True: True, False: False}


def followed(scene: Scene, path: Path) -> tuple[ServedRevision, Updates]:
    """The revision as a server opens it that follows a log, and what follows it."""
    log = FollowedLog(UpdatesOptions(SqliteFile(path), UID, ROOM_BYTES))
    revision = log.open(lambda room: load_revision(scene.repository, scene.published.revision, room), served_revision)
    return revision, log.updates


def test_a_task_of_one_file_follows_changes_and_their_compaction(scene: Scene, tmp_path: Path) -> None:
    source, nodes = scene.source, len(scene.source.labels)
    path = tmp_path / "log.sqlite"
    revision, updates = followed(scene, path)

    async def scenario() -> list[bool]:
        worker = OpenedWorker(served=revision, updates=updates)  # type: ignore[arg-type]
        async with running(worker, write_access=Access((WRITING,))) as client:
            updates.start()
            revision.changes.log.follow(updates)
            told = []
            for offset, odd in enumerate((True, False), start=1):
                node = nodes + offset - 1
                sent = await client.http.post("/v1/changes", json=source.new(node, odd=odd), headers=HEADERS)
                assert sent.json()["offset"] == offset, sent.text
                told.append(await ask(client, source.id_of(node), minOffset=offset))
            assert "OddRequest" in (await client.http.get("/openapi.json")).json()["components"]["schemas"]
            await updates.close()
            return told

    assert asyncio.run(scenario()) == [True, False]
    for retrain in (False, True):
        options = UpdatesOptions(SqliteFile(path), UID, ROOM_BYTES)
        folded = compact(scene.service, scene.repository, options, scene.published.revision, retrain=retrain)
        assert newest_version(scene.service.spec, scene.repository, UID) == folded.graph
        loaded = load_revision(scene.repository, folded.revision)
        assert loaded.origin.made_of is not None and loaded.origin.made_of.offset == 2
        new = infer_batch(loaded, folded.variants[0].name, np.array([nodes, nodes + 1]), key=0)
        assert (new.scores[:, 0] > 0).tolist() == [True, False]


# --- beside another revision, and elsewhere


def test_a_task_of_one_file_shares_requests_with_a_revision_of_its_own_task_alone(scene: Scene) -> None:
    named = {name: plain_service().spec.routing_table(name) for name in (FIRST, SECOND)}

    async def scenario(second: Callable[[], ServedRevision]) -> tuple[str | None, set[str]]:
        async with running(OpenedWorker(served=scene.served())) as client:
            canary = ServedCanary(
                "digits", SECOND, client.engine, client.app.predict, DirectCalls(), 1.0, STAYS, lambda _: None
            )
            canary.open(50)
            canary.switch(second(), named[SECOND], 0.5)
            answered = set()
            for _ in range(4):
                response = await client.http.post("/v1/predict", json={"nodes": [scene.source.id_of(1)]})
                assert "odd" in response.json(), response.text
                answered.add(response.json()["revision"])
            return canary.route().problem, answered

    def of_its_task() -> ServedRevision:
        made = scene.served()
        return replace(made, manifest=msgspec.structs.replace(made.manifest, revision=SECOND))

    problem, answered = asyncio.run(scenario(of_its_task))
    assert problem is None
    assert answered == {scene.published.revision, SECOND}
    problem, answered = asyncio.run(scenario(FakeWorker(SECOND).revision))
    assert problem is not None and f"revision {SECOND} has another task" in problem
    assert answered == {scene.published.revision}


def test_a_task_of_one_file_is_exported(scene: Scene, tmp_path: Path) -> None:
    loaded = load_revision(scene.repository, scene.published.revision, build=build_exact)

    def export() -> ExportManifest:
        return export_variant(loaded, "default/odd", scene.variant, [*ExportFormat], tmp_path / "out", "a test")

    if scene.source.begins:  # over several types, of which one has no features
        with pytest.raises(InputError, match="nodes of type tag, which have no features"):
            export()
        return
    written = export()
    assert {check.format for check in written.checks} == {*ExportFormat}
    (scores,) = [one for one in written.outputs if one.name == "scores"]
    assert scores.meaning == "Above 0: the class of the node is odd."
    assert "softmax" not in (tmp_path / "out" / "README.md").read_text()
