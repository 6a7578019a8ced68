"""The reference pages say what the code says: every name of an interface is there, and no other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import typer.main
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families
from tests.support.pages.pages import DOCS, anchors, code_blocks, first_cells, links, read_page, section
from tests.support.serving.exposed import all_metrics, exposed, worker_metrics
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.families import POINTS
from gnnserve_api.files.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.repository import LATEST_SCHEMA_VERSION, SCHEMA_VERSION
from gnnserve_api.http.changes import (
    MOST_CLIENT_CHARACTERS,
    MOST_PAGE_RECORDS,
    MOST_WAIT_S,
    ChangeRecord,
    ChangesAnswer,
    ChangesPage,
    ChangesRequest,
    NewNode,
    NodeLabel,
)
from gnnserve_api.http.protocol import (
    AccuracyTier,
    ErrorDetail,
    NodeFeatures,
    NodesAnswer,
    PredictAnswer,
    PredictRequest,
    RequestOverlay,
    VariantsAnswer,
)
from gnnserve_api.limits import Batching, OverlayLimits
from gnnserve_api.manifest import load_manifest
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, Route, VariantRoute
from gnnserve_api.spec.graph import Normalization
from gnnserve_cli.changes.rows import ChangeKind
from gnnserve_cli.exits import MEANINGS
from gnnserve_cli.main import app
from gnnserve_worker.asking.question import MAX_LATENCY_MS, ErrorCode
from gnnserve_worker.generation import networks as _networks  # noqa: F401  (torch_geometric, its warnings silenced)
from gnnserve_worker.generation import profile as profile_module
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import MOST_ITEMS, ChangeCounts, decode_batch
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.scheduling.refusal import RefusalReason
from gnnserve_worker.serving.http.changes.reading import MOST_JSON_VALUES
from gnnserve_worker.serving.http.predict import MAX_BODY_BYTES
from gnnserve_worker.serving.http.replies import ERROR_STATUS, REFUSAL_STATUS
from gnnserve_worker.serving.metrics.counters import LATENCY_BUCKETS_S

HTTP, CLI, METRICS = read_page("http.md"), read_page("cli.md"), read_page("metrics.md")
UPDATES = read_page("updates.md")
REPOSITORY, DATA, MODELS = read_page("repository.md"), read_page("data.md"), read_page("models.md")
COMMANDS: dict[str, Any] = {
    f"{name} {inner}".strip(): command
    for name, outer in typer.main.get_command(app).commands.items()
    for inner, command in getattr(outer, "commands", {"": outer}).items()
}


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for file, anchor in links(read_page(name)):
        target = (DOCS / (file or name)).resolve()
        assert target.exists(), file
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{file}#{anchor}"


# HTTP


def test_every_error_code_is_explained_and_no_other() -> None:
    explained = first_cells(section(HTTP, "Errors"))
    assert sorted(explained) == sorted([*ErrorCode, *RefusalReason])


def test_status_codes_of_refusals_are_those_of_the_server() -> None:
    for code, status in {**REFUSAL_STATUS, **ERROR_STATUS}.items():
        assert f"| `{code}` | {status} |" in HTTP


def test_every_endpoint_is_listed_and_no_other() -> None:
    async def described() -> set[str]:
        async with running(FakeWorker()) as client:
            paths_of = (await client.http.get("/openapi.json")).json()["paths"]
        return {f"{method.upper()} {path}" for path, methods in paths_of.items() for method in methods}

    cells = first_cells(HTTP) + first_cells(read_page("open-inference.md"))
    listed = {name for name in cells if name.startswith(("GET ", "POST "))}
    assert listed == asyncio.run(described()) | {"GET /openapi.json", "GET /docs", "GET /", "GET /explore"}


def test_every_family_of_variants_is_on_the_page() -> None:
    listed = HTTP.partition("<!-- generated: families -->")[2].partition("<!-- end")[0]
    assert set(re.findall(r"`([a-z-]+)`", listed)) == set(POINTS)


@pytest.mark.parametrize(
    "message",
    [PredictRequest, Objective, PredictAnswer, NodesAnswer, VariantsAnswer, AccuracyTier, Profile, VariantProfile,
     LatencyProfile, Route, VariantRoute, AffineCost, Batching, ErrorDetail, OverlayLimits, RequestOverlay,
     NodeFeatures],
    ids=lambda message: message.__name__,
)  # fmt: skip
def test_every_field_of_a_message_is_on_the_page(message: type[msgspec.Struct]) -> None:
    named = {word for code in re.findall(r"`([^`\n]+)`", HTTP) for word in re.findall(r"\w+", code)}
    assert {field.encode_name for field in msgspec.structs.fields(message)} <= named


@pytest.mark.parametrize(
    "message",
    [ChangesRequest, NewNode, NodeLabel, ChangesAnswer, ChangesPage, ChangeRecord],
    ids=lambda message: message.__name__,
)
def test_every_field_of_changes_is_on_their_page(message: type[msgspec.Struct]) -> None:
    named = {word for code in re.findall(r"`([^`\n]+)`", UPDATES) for word in re.findall(r"\w+", code)}
    assert {field.encode_name for field in msgspec.structs.fields(message)} <= named


def test_the_program_of_the_page_makes_a_batch_that_is_understood() -> None:
    (program,) = code_blocks(UPDATES, "python")
    made: dict[str, Any] = {}
    exec(compile(program.partition("response =")[0], "docs/updates.md", "exec"), made)  # noqa: S102  (our own page)
    batch = decode_batch(made["body"])
    assert batch.counts == ChangeCounts(new_nodes=1, overrides=1, edges=2)
    assert batch.ids.integers is not None
    assert batch.ids.integers.tolist() == [5001, 3, 3, 5001, 7, 5001]
    assert np.isnan(batch.features).sum() == batch.features.shape[1] - 1


def test_limits_of_changes_are_on_their_page() -> None:
    for number in (MOST_ITEMS, MOST_JSON_VALUES, MOST_CLIENT_CHARACTERS, MOST_PAGE_RECORDS, MOST_WAIT_S):
        assert f"{number:,}" in UPDATES
    assert {kind.value for kind in ChangeKind} <= set(first_cells(UPDATES))


def test_limits_are_those_of_the_server() -> None:
    limits = section(HTTP, "Limits")
    assert f"({MAX_BODY_BYTES:,} bytes)" in limits
    assert f"at most {MAX_LATENCY_MS:,}" in HTTP


# Command line


def test_every_exit_code_is_on_the_page_with_its_meaning() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section(CLI, "Exit codes"), re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]


def test_every_command_has_a_section_and_a_row() -> None:
    assert re.findall(r"^## gnnserve ([\w ]+)$", CLI, re.MULTILINE) == list(COMMANDS)
    assert re.findall(r"^\| \[`gnnserve ([\w ]+)`\]", CLI, re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_of_a_command_are_those_in_its_section(command: str) -> None:
    options = [option for parameter in COMMANDS[command].params for option in parameter.opts if option[0] == "-"]
    described = [name.split()[0] for name in first_cells(section(CLI, f"gnnserve {command}")) if name[0] == "-"]
    assert sorted(described) == sorted(set(options) - {"--help"})


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_a_command_are_shown_without_a_value(command: str) -> None:
    assert {flag.metavar for flag in COMMANDS[command].params if getattr(flag, "is_flag", False)} <= {""}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    examples = code_blocks(section(CLI, f"gnnserve {command}"), "console")
    assert any(line.startswith(f"$ gnnserve {command} ") for block in examples for line in block.splitlines())


# Metrics


def test_metrics_of_the_page_are_those_that_are_exposed() -> None:
    rows = re.findall(r"^\| `(gnnserve_\w+)` \| (\w+) \| (.+?) \|", METRICS, re.MULTILINE)
    described = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert described == {(each.name, each.kind, frozenset(each.labels)) for each in exposed(worker_metrics())}


def test_openmetrics_has_the_metrics_of_the_text_format() -> None:
    """Its parser refuses what Prometheus would, and a whole scrape with it."""
    body, _ = all_metrics().expose("application/openmetrics-text; version=1.0.0")
    found = {
        family.name.removesuffix("_info") for family in openmetrics_parser.text_string_to_metric_families(body.decode())
    }
    text = text_string_to_metric_families(all_metrics().render().decode())
    assert found == {family.name.removesuffix("_info") for family in text if not family.name.endswith("_created")}


def test_the_text_and_the_queries_name_only_metrics_that_are_exposed() -> None:
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bgnnserve_\w+", METRICS)}
    assert named <= {each.name for each in exposed(worker_metrics())}


def test_buckets_are_listed() -> None:
    text = re.search(r"end at (.+?) milliseconds, and at (.+?) seconds", METRICS.replace("\n", " "))
    assert text is not None
    milliseconds, seconds = ([float(number) for number in re.findall(r"[\d.]+", part)] for part in text.groups())
    listed = [*(number / 1000 for number in milliseconds), *seconds]
    assert listed == pytest.approx(LATENCY_BUCKETS_S)


# Repository and data


def test_every_file_of_the_repository_is_in_its_layout() -> None:
    layout = code_blocks(REPOSITORY, "")[0]
    ids = {name for names in paths.ID_FILES.values() for name in names}
    tables = [paths.rows_of("<name>"), paths.own_rows_of("<name>"), paths.scales_of(paths.rows_of("<name>"))]
    files = [paths.GRAPH_COMMIT, paths.REVISION_COMMIT, *paths.GRAPH_FILES, *ids, *tables, paths.weights_of("<name>")]
    assert [file for file in files if file not in layout] == []


def test_the_schema_version_in_the_table_of_errors_is_the_present_one() -> None:
    assert f"does not fit schemaVersion {SCHEMA_VERSION}`" in REPOSITORY
    assert f"this gnnserve reads up to {LATEST_SCHEMA_VERSION}`" in REPOSITORY
    assert f"this gnnserve reads 3 to {LATEST_SCHEMA_VERSION}`" in REPOSITORY


def test_every_normalization_is_explained() -> None:
    explained = first_cells(section(DATA, "Normalization"))
    assert explained == list(Normalization)


def test_the_example_writes_a_graph_that_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = code_blocks(DATA, "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/data.md", "exec"), {})  # noqa: S102  (our own page)
    service = load_manifest(tmp_path / "communities.yaml")
    graph = load_source(service.spec.graph.source, Path("unused"))
    assert f"{graph.graph.nodes:,} nodes, {graph.graph.edges:,} edges" in DATA
    assert graph.labels[:3].tolist() == [2, 1, 1]


def test_the_example_of_given_weights_is_generated_and_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (make_graph,) = code_blocks(DATA, "python")
    (train,) = code_blocks(MODELS, "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile_module, "ROUNDS", (2, 2))
    for program in (make_graph, train):
        exec(compile(program, "docs/models.md", "exec"), {})  # noqa: S102  (our own page)
    service = load_manifest(tmp_path / "given.yaml")
    shown = generate(service, Repository(tmp_path / "repository", "default", "given")).profile
    assert {"x1", "x2-int8", "x8"} <= {variant.name for variant in shown.variants}
    assert shown.variant("x1").validation_accuracy > 0.95
