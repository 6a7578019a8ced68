"""examples/accounts keeps working: its tables are what make.py writes, and its files fit each other."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.support.machine.fake_server import Asked, Told, fake_server, variants_body
from tests.support.pages.pages import ROOT, anchors, links
from tests.support.profiles import profile
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, with_overlays

from gnnserve_api.files.repository import NodeIdKind, SourceColumn
from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.predict import read_any_overlay
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.serving.http.codecs.json import JsonCodec

FOLDER = ROOT / "examples" / "accounts"
CLASSES = ("fraud", "legitimate")
TESTED = 300


@pytest.fixture
def graph() -> GraphData:
    """The graph as generation reads it."""
    return load_source(load_manifest(FOLDER / "accounts.yaml").spec.graph.source, Path("unused"))


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv"])
def test_tables_are_those_that_the_script_writes(name: str, tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "make.py"))["make"](tmp_path)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_graph_is_what_the_page_says(graph: GraphData) -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"{graph.graph.nodes:,} nodes, {graph.graph.edges:,} edges" in page
    assert graph.classes == CLASSES
    assert len(graph.splits.test) == TESTED
    for file, anchor in links(page):
        target = FOLDER / file
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor


def test_the_new_account_is_read_by_the_command_and_by_the_server(graph: GraphData) -> None:
    file = FOLDER / "new-account.json"
    brought = read_any_overlay(file)
    columns = tuple(SourceColumn(column.name, column.width, column.fill) for column in graph.feature_columns)
    ends: list[int] = []

    def arrange(
        features: np.ndarray, _overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray, *_: np.ndarray
    ) -> tuple[Overlay, np.ndarray]:
        ends.extend(edges.ravel())
        return Overlay(len(features), features, edges.ravel(), len(features), len(edges)), seeds

    support = OverlaySupport(FeatureColumns(len(columns), columns), arrange)
    worker = FakeWorker(nodes=graph.graph.nodes, ids=graph.ids)
    body = {"nodes": [node.id for node in brought.nodes], "overlay": json.loads(file.read_bytes())}
    question = question_of(
        JsonCodec(), json.dumps(body).encode(), with_overlays(worker.revision(), support), max_nodes=1
    )
    new = graph.graph.nodes
    assert question.nodes.tolist() == [new]
    assert ends.count(new) == len(brought.edges)
    assert [graph.classes[graph.labels[end]] for end in ends if end != new] == ["fraud"] * len(brought.edges)


def test_the_program_asks_without_transfers_and_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    def fraud_where_there_are_edges(asked: Asked) -> Told:
        if asked.path == "/v1/variants":
            return Told(body=variants_body(profile(), node_ids=NodeIdKind.STRINGS, classes=CLASSES))
        is_fraud = "edges" in asked.body["overlay"] if "overlay" in asked.body else True
        label, scores = ("fraud", [1.0, 0.0]) if is_fraud else ("legitimate", [0.0, 1.0])
        count = len(asked.body["nodes"])
        return Told(body={"labels": [label] * count, "scores": [scores] * count})

    with fake_server(fraud_where_there_are_edges) as server:
        runpy.run_path(str(FOLDER / "ask.py"))["main"](server.url)
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[2 if line.startswith("without") else 3] for line in told[:2]] == ["legitimate", "fraud"]
    assert told[2].endswith("230 of 300 right (76.7%), 0 of 70 frauds found")
    assert told[3].endswith("70 of 300 right (23.3%), 70 of 70 frauds found")
    asked = [request.body for request in server.asked if request.method == "POST"]
    assert [len(body["nodes"]) for body in asked] == [1, 1, TESTED, TESTED]
