"""What does not look inside a model holds for programs, over one type and over several: every form of a request, the
pages and tables that tell of a revision, and a second revision beside the first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conformance.forms import FORMS, Asked, Said, in_json, serving
from tests.support.programs import generated_programs as one_type
from tests.support.programs import program_types_generated as several_types
from tests.support.programs.program_types import Model, program_of, whole_graph
from tests.support.serving.serving import Client, FakeWorker, running, service
from tests.support.serving.traced import KeptTraces, traced
from typer.testing import CliRunner

from gnnserve_api.spec.service import GNNService
from gnnserve_cli.main import app
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.canary import CanaryShare
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.metrics.metrics import ServingMetrics

pytestmark = pytest.mark.campaign("published")

BESIDE = {
    "storage": ["float32", "int8"],
    "oneRow": [{"hops": 0}],
    "cascades": [{"first": "mlp0", "then": "x1", "passOnPercents": [50]}],
}
NODES = (3, 8, 3, 40)


class Worker(FakeWorker):
    """A `FakeWorker` over a revision."""

    def __init__(self, loaded: LoadedRevision) -> None:
        super().__init__()
        self._served = served_revision(loaded)

    def revision(self) -> ServedRevision:
        return self._served


@dataclass(frozen=True, slots=True)
class Published:
    """Revisions of a service: of a program, of another one, and of a network that is described."""

    repository: Repository
    program: str
    other: str
    described: str
    named: tuple[Any, ...]
    """`NODES` as requests in JSON call them."""
    scores: np.ndarray
    """What the program's module gives for `NODES`."""

    def worker(self, revision: str) -> Any:
        return Worker(load_revision(self.repository, revision))


def of_one_type(factory: pytest.TempPathFactory) -> Published:
    made = one_type.Given(factory.mktemp("one_type"), one_type.Models(factory), "SAGE")
    training = {"training": {"epochs": 2}}
    program = made.generate(one_type.contract(), variants=BESIDE, model=training)
    other = made.generate(one_type.contract(embeddings=None))
    described = described_by(made.service({}), {}, made.repository)
    scores = made.module.over(one_type.FEATURES, one_type.EDGES)[0]
    return Published(made.repository, program.revision, other.revision, described, NODES, scores[[*NODES]])


def of_several_types(factory: pytest.TempPathFactory) -> Published:
    with torch.no_grad():
        scores = Model().eval()(**{name: torch.tensor(array) for name, array in whole_graph().items()})[0].numpy()
    folder = factory.mktemp("several_types")
    made = several_types.Given(folder, program_of(factory), scores, several_types.hetero_data)
    training = {"training": {"epochs": 2}}
    program = made.generate(several_types.contract(), variants=BESIDE, model=training)
    other = made.generate(several_types.contract(embeddings=None))
    described = described_by(made.service({}), {"edgeColumns": "Ignore"}, made.repository)
    named = tuple(f"user/{node}" for node in NODES)
    return Published(made.repository, program.revision, other.revision, described, named, scores[[*NODES]])


def described_by(of: GNNService, source: dict[str, Any], repository: Repository) -> str:
    """Generate a network over the graph of a service. `source`: other fields of its heteroData."""
    spec = of.model_dump(by_alias=True, exclude_none=True)
    spec["spec"]["model"] = {"hidden": 8, "fanouts": [3, 2], "training": {"epochs": 1}}
    spec["spec"]["variants"] = {"pruning": {"factors": [1]}}
    if source:
        spec["spec"]["graph"]["source"]["typed"]["heteroData"] |= source
    return generate(GNNService.model_validate(spec), repository).revision


@pytest.fixture(scope="module", params=[of_one_type, of_several_types])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    made: Published = request.param(tmp_path_factory)
    return made


def assert_close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_every_form_of_a_request_gets_what_the_module_gives(published: Published) -> None:
    async def ask() -> dict[str, Said]:
        found = {}
        async with serving(published.worker(published.program)) as client:
            for form in FORMS:
                nodes = published.named if form is in_json else NODES
                found[form.__name__] = await form(client, Asked(nodes, variant="x1"))
        return found

    for name, said in asyncio.run(ask()).items():
        assert (said.status, said.variant, said.revision) == (200, "x1", published.program), (name, said)
        assert_close(said.numbers, published.scores)


def test_an_objective_chooses_among_a_program_and_what_stands_beside_it(published: Published) -> None:
    async def ask() -> tuple[Any, Any]:
        async with running(published.worker(published.program)) as client:
            exact = await client.predict(published.named, objective={"accuracyTolerancePermille": 0})
            soon = await client.predict(published.named, objective={"latencyMs": 3_600_000})
            listed = await client.http.get("/v1/variants")
            return [one.json() for one in (exact, soon)], listed.json()

    answers, listed = asyncio.run(ask())
    names = {one["name"] for one in listed["profile"]["variants"]}
    assert names == {"x1", "x1-int8", "mlp0", "mlp0-int8", "mlp0-then-x1-p50"}
    assert all(answer["variant"] in names and answer["objectiveMet"] for answer in answers)


def test_a_trace_has_the_time_in_a_programs_process(published: Published) -> None:
    async def ask() -> KeptTraces:
        async with running(published.worker(published.program)) as client:
            sink = traced(client, sampled_permille=1000)
            for variant in ("x1", "mlp0"):
                assert (await client.predict(published.named, variant=variant)).status_code == 200
            return sink

    of_program, of_perceptron = asyncio.run(ask()).batches
    (run,) = of_program.runs
    assert of_program.started_ms <= run.began_ms < run.ended_ms <= of_program.finished_ms
    assert of_perceptron.runs == ()


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_pages_and_tables_tell_of_a_program_and_what_stands_beside_it(published: Published, tmp_path: Path) -> None:
    root, page = str(published.repository.folder.parent.parent), tmp_path / "page.html"
    chosen = ("--revision", published.program)
    report = json.loads(told("report", root, *chosen, "--json"))
    assert {one["name"] for one in report["variants"]} >= {"x1", "x1-int8", "mlp0", "mlp0-then-x1-p50"}
    told("report", root, *chosen, "--out", str(page))
    assert "mlp0-then-x1-p50" in page.read_text()
    assert "x1-int8" in told("report", root, *chosen)
    listed = told("variants", root)
    assert all(revision in listed for revision in (published.program, published.other, published.described))


@asynccontextmanager
async def sharing(first: Any, second: Any) -> AsyncIterator[Client]:
    """A service half of whose requests a second revision answers."""
    async with running(first) as client:
        metrics, revision = ServingMetrics("digits"), second.revision()
        model = client.engine.add("second", metrics, 1.0)
        metrics.show_revision(revision.manifest, 0.5)
        model.switch(revision, service().spec.routing_table(revision.manifest.revision))
        client.app.predict.canary = CanaryShare(client.app.predict, Predict("digits", model, metrics.counters), 50)
        yield client


@pytest.mark.parametrize(
    ("first", "second"), [("program", "other"), ("described", "program"), ("program", "described")]
)
def test_a_second_revision_answers_its_share_beside_a_program(published: Published, first: str, second: str) -> None:
    revisions = [getattr(published, name) for name in (first, second)]
    exact = {published.program, published.other}

    async def ask() -> list[dict[str, Any]]:
        async with sharing(*map(published.worker, revisions)) as client:
            asked = [await client.predict(published.named, **{"return": ["scores"]}) for _ in range(20)]
            assert all(one.status_code == 200 for one in asked), asked[0].text
            return [one.json() for one in asked]

    answers = asyncio.run(ask())
    counts = [sum(answer["revision"] == revision for answer in answers) for revision in revisions]
    assert counts == [10, 10]
    for answer in answers:
        if answer["revision"] in exact and answer["variant"] == "x1":
            assert_close(answer["scores"], published.scores)
