"""`gnnserve variants`, from a server and from the files of a repository."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.support.machine.fake_server import Told, fake_server, variants_body
from tests.support.profiles import profile, revision_manifest, variant
from typer.testing import CliRunner

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.programs import MAX_HOPS, ProgramManifest, ProgramOutput
from gnnserve_api.files.repository import LATEST_SCHEMA_VERSION, PROGRAM, NodeIdKind, RevisionManifest, sealed
from gnnserve_api.variants import MAX_LAYERS, Storage
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.main import app
from gnnserve_cli.render import (
    Output,
    count,
    facts_table,
    format_bytes,
    format_ms,
    profile_tables,
    put,
    round_floats,
)

RELATION = ("source", "name", "target", "edges", "bothWays", "merges", "reverseOf")


def write_revision(root: Path, manifest: RevisionManifest, service: str = "digits") -> Path:
    file = root / "default" / service / "revisions" / manifest.revision / "revision.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(msgspec.json.encode(manifest))
    return file


def render(shown: Profile, width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        for renderable in profile_tables(shown, console):
            console.print(renderable)
    return capture.get().splitlines()


def test_a_server_shows_its_profile() -> None:
    with fake_server() as server:
        result = CliRunner().invoke(app, ["variants", server.url], env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.stderr
    assert "default/digits  revision r1" in result.output
    assert "1,797 nodes with 64 features" in result.output
    assert "node ids: 0 to 1796\nlabel: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9\n" in result.output
    assert "x16" in result.output
    assert "computed on" not in result.output, "an older server does not say"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_numbers_are_whole_where_a_terminal_is_too_narrow_for_them(is_terminal: bool) -> None:
    console = Output(width=30, file=StringIO(), force_terminal=is_terminal, no_color=True)
    put(console, *profile_tables(profile(), console), facts_table([("variant", "x1 of a revision with a name")]))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert not any("…" in line for line in lines)
    assert any("1.05 MiB" in line or "69.0 MiB" in line for line in lines)
    assert (console.width, len(lines[-1].rstrip()) <= 30) == (30, True)


def test_links_between_types_without_features_are_shown() -> None:
    body = variants_body(profile(variant(1, projected=True)), classes=()) | {"features": 0}
    ends = {name: {"type": name, "start": 0, "end": 9} for name in ("first", "second")}
    links = {"decoder": "Dot", "dimensions": 64, "relation": "buys", "validationLinks": 9, "testLinks": 9, **ends}
    with fake_server(lambda _: Told(body=body | {"links": links})) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert result.exit_code == 0, result.stderr
    assert "1,797 nodes without features\n" in result.output
    assert "links buys: Dot of embeddings with 64 columns" in result.output


@pytest.mark.parametrize(
    ("provenance", "body", "lines"),
    [
        pytest.param({"edgeRules": None}, {}, "", id="no edges are taken"),
        pytest.param(
            {
                "edgeRules": None, "assumptions": {"activation": "ReLU", "residual": "none"},
                "compared": [{"weights": "spec.model", "sha256": "0" * 64, "nodes": 9, "scores": "Logits",
                              "differencePermille": 0.25, "tolerancePermille": 1.0}],
            },
            {},
            "assumed of the weights: activation ReLU; residual none\n"
            "compared: spec.model: expected scores of 9 nodes equal within 0.25 permille (Logits)\n",
            id="weights that were trained elsewhere",
        ),
        pytest.param(
            {"edgeRules": {"direction": "Undirected", "duplicates": "Keep", "selfLoops": "Remove"}}, {},
            "edges: Undirected, an edge counts both ways; repeated ones count each; self-loops are left out\n",
            id="one type",
        ),
        pytest.param(
            {"edgeRules": {"direction": "Directed", "duplicates": "Merge", "selfLoops": "Keep"}},
            {"edgeFeatures": ["amount", "fee\n"], "edgeTime": "paid at"},
            "edges: Directed, the target of an edge reads its source; repeated ones count once; features amount, fee?; "
            "time paid at\n",
            id="what edges of one type have",
        ),
        pytest.param(
            {},
            {
                "relations": [
                    dict(zip(RELATION, ("user", "buys", "item", 9, False, False, None), strict=True)),
                    dict(zip(RELATION, ("item", "rev_buys", "user", 9, False, False, "buys"), strict=True)),
                    dict(zip(RELATION, ("user", "knows", "user", 9, True, True, None), strict=True))
                    | {"edgeTime": "since"},
                    dict(zip(RELATION[:4], ("user", "of an earlier server", "user", 9), strict=True)),
                ]
            },
            "edges of user buys item: as listed, rev_buys goes with it; repeated ones count each\n"
            "edges of user knows user: both ways; repeated ones count once; time since\n",
            id="several types",
        ),
    ],
)  # fmt: skip
def test_a_server_shows_what_its_provenance_says(provenance: dict[str, Any], body: dict[str, Any], lines: str) -> None:
    told = variants_body(profile()) | body
    told["provenance"] = told["provenance"] | provenance
    with fake_server(lambda _: Told(body=told)) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert result.exit_code == 0, result.stderr
    assert f"label: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9\n{lines}\n" in result.output


@pytest.mark.parametrize(("hops", "code"), [(MAX_HOPS + 1, 0), (MAX_HOPS + 2, ExitCode.RESOURCE)])
def test_a_program_may_read_as_many_hops_as_a_manifest(hops: int, code: int) -> None:
    body = variants_body(profile())
    program = ProgramManifest("model.onnx", "0" * 64, MAX_HOPS, (), ProgramOutput("scores", 4), None, True)
    told = {"architecture": PROGRAM, "fanouts": [-1] * hops, "program": msgspec.to_builtins(program)}
    network = {**body["provenance"]["network"], **told}
    body |= {"provenance": {**body["provenance"], "network": network}}
    with fake_server(lambda _: Told(body=body)) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert result.exit_code == code, result.stderr


@pytest.mark.parametrize(("layers", "code"), [(MAX_LAYERS, 0), (MAX_LAYERS + 1, ExitCode.RESOURCE)])
def test_a_network_may_have_as_many_layers_as_a_manifest(layers: int, code: int) -> None:
    body = variants_body(profile())
    network = {**body["provenance"]["network"], "fanouts": [2] * layers}
    body |= {"provenance": {**body["provenance"], "network": network}}
    with fake_server(lambda _: Told(body=body)) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert result.exit_code == code, result.stderr


def test_a_server_shows_on_what_it_computes() -> None:
    body = variants_body(profile()) | {"device": "NVIDIA \x1b[1mH200"}
    with fake_server(lambda _: Told(body=body)) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert "\ncomputed on NVIDIA ?[1mH200\n" in result.output


@pytest.mark.parametrize(
    ("node_ids", "classes", "line"),
    [
        pytest.param(
            NodeIdKind.INTEGERS, ("a", "[b]"), "node ids: integers of its source; GET /v1/nodes", id="integers"
        ),
        pytest.param(NodeIdKind.STRINGS, ("a", "[b]"), "node ids: texts of its source; GET /v1/nodes", id="texts"),
    ],
)
def test_a_server_shows_what_its_graph_calls_nodes_and_classes(
    node_ids: NodeIdKind, classes: tuple[str, ...], line: str
) -> None:
    told = Told(body=variants_body(profile(), 7, node_ids, classes))
    with fake_server(lambda _: told) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert f"{line} lists them\nlabel: a, [b]\n" in result.output


def test_of_many_classes_the_first_are_shown() -> None:
    with fake_server(lambda _: Told(body=variants_body(profile(), classes=tuple(range(1040))))) as server:
        result = CliRunner().invoke(app, ["variants", server.url])
    assert "label: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … 1,040 altogether\n" in result.output


def test_json_of_a_server_is_the_servers_own() -> None:
    with fake_server(lambda _: Told(body=variants_body(profile(), nodes=7))) as server:
        result = CliRunner().invoke(app, ["variants", server.url, "--json"])
    answer = json.loads(result.output)
    assert answer["nodes"] == 7
    assert [v["name"] for v in answer["profile"]["variants"]] == ["x1", "x2", "x4", "x8", "x16"]


def test_a_repository_lists_every_service_and_newest_revisions_first(tmp_path: Path) -> None:
    write_revision(tmp_path, revision_manifest("old", created_at="2026-01-01T00:00:00Z"))
    write_revision(tmp_path, revision_manifest("new", created_at="2026-02-01T00:00:00Z"))
    write_revision(tmp_path, revision_manifest("only"), service="papers")
    (tmp_path / "default" / "digits" / "revisions" / "unfinished").mkdir()
    listed = json.loads(CliRunner().invoke(app, ["variants", str(tmp_path), "--json"]).output)
    assert [(s["service"], [r["revision"] for r in s["revisions"]]) for s in listed] == [
        ("digits", ["new", "old"]),
        ("papers", ["only"]),
    ]
    table = CliRunner().invoke(app, ["variants", str(tmp_path)]).output
    assert table.index("default/digits  revision new") < table.index("default/digits  revision old")


def test_a_repository_shows_how_edges_count_where_a_revision_says_it(tmp_path: Path) -> None:
    rules = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
    write_revision(tmp_path, sealed(msgspec.structs.replace(revision_manifest("told"), edge_rules=rules)))
    write_revision(tmp_path, revision_manifest("silent"), service="papers")
    table = CliRunner().invoke(app, ["variants", str(tmp_path)]).output
    assert table.count("\nedges: Undirected, an edge counts both ways; repeated ones count each\n\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"schemaVersion": 3', id="half a file"),
        pytest.param(b'{"schemaVersion": 3, "recipe": "\xff"}', id="no UTF-8"),
    ],
)
def test_a_damaged_revision_is_named_and_hides_no_other(tmp_path: Path, content: bytes) -> None:
    write_revision(tmp_path, revision_manifest("good"))
    file = write_revision(tmp_path, revision_manifest("bad"))
    file.write_bytes(content)
    result = CliRunner().invoke(app, ["variants", str(tmp_path)])
    assert result.exit_code == 3
    assert f"error: {file}: is not valid JSON" in result.stderr
    assert "default/digits  revision good" in result.stdout
    as_json = CliRunner().invoke(app, ["variants", str(tmp_path), "--json"])
    assert as_json.exit_code == 3
    assert [r["revision"] for r in json.loads(as_json.stdout)[0]["revisions"]] == ["good"]


@pytest.mark.parametrize("unreadable", [".", "default", "default/digits/revisions"])
def test_a_folder_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreadable: str) -> None:
    write_revision(tmp_path, revision_manifest())
    forbidden, list_folder = tmp_path / unreadable, Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == forbidden:  # by hand, because root may read everything
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    result = CliRunner().invoke(app, ["variants", str(tmp_path)])
    assert result.exit_code == 3
    assert f"error: {forbidden}: cannot be read: permission denied; " in result.stderr
    assert f"this program runs as user {os.geteuid()}" in result.stderr


def test_a_newer_schema_is_named_before_its_unknown_fields(tmp_path: Path) -> None:
    file = write_revision(tmp_path, revision_manifest())
    file.write_text(json.dumps({"schemaVersion": LATEST_SCHEMA_VERSION + 1, "shards": []}))
    result = CliRunner().invoke(app, ["variants", str(tmp_path)])
    assert result.exit_code == 3
    assert f"reads up to {LATEST_SCHEMA_VERSION}: it was written by a newer gnnserve" in result.stderr


def test_an_edited_revision_is_not_shown_as_if_it_were_whole(tmp_path: Path) -> None:
    file = write_revision(tmp_path, revision_manifest())
    file.write_text(file.read_text().replace('"Inductive"', '"Transductive"'))
    result = CliRunner().invoke(app, ["variants", str(tmp_path)])
    assert result.exit_code == 3
    assert f"error: {file}: was altered: its checksum is" in result.stderr
    assert "x4" not in result.stdout


def test_a_revision_of_an_older_gnnserve_is_a_note_and_no_failure(tmp_path: Path) -> None:
    write_revision(tmp_path, revision_manifest("good"))
    file = write_revision(tmp_path, revision_manifest("old"))
    file.write_text(json.dumps({"schemaVersion": 1, "table": "tables/features.npy"}))
    result = CliRunner().invoke(app, ["variants", str(tmp_path)])
    assert result.exit_code == 0, result.stderr
    assert f"note: {file}: has schemaVersion 1, and this gnnserve reads 3 to {LATEST_SCHEMA_VERSION}" in result.stderr
    assert "generate again from its manifest" in result.stderr
    assert "default/digits  revision good" in result.stdout


@pytest.mark.parametrize(
    ("place", "code", "problem"),
    [
        pytest.param("nowhere", 2, "is no folder", id="a folder that does not exist"),
        pytest.param(".", 3, "gnnserve generate MANIFEST --repository", id="a folder without revisions"),
    ],
)
def test_places_without_variants_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, code: int, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["variants", place])
    assert result.exit_code == code
    assert problem in result.stderr


@pytest.mark.parametrize("width", [80, 100, 119, 120, 140])
def test_the_profile_fits_its_terminal_and_nothing_is_cut(width: int) -> None:
    # Wide values: a slow variant on a wide graph.
    slow = variant(1, features=65_536, p50_ms=1_234.5)
    # Long names: every storage of a large factor, and projected.
    stored = [variant(16, features=65_536, storage=storage) for storage in Storage]
    projected = [variant(1, 4096, storage=storage, projected=True) for storage in Storage]
    for lines in (render(profile(), width), render(profile(slow), width), render(profile(*stored, *projected), width)):
        assert max(map(len, lines)) <= width
        assert not any("…" in line for line in lines)


def test_a_wide_terminal_has_everything_of_a_variant_in_one_row() -> None:
    first = next(line for line in render(profile(), 140) if line.startswith("x4"))
    own, timings = "x4 float32 16 0.9740 0.9684 26.0 KiB 112 KiB", "1 0.218 0.306 0.022 0.065 0.131 17.2 KiB"
    assert " ".join(first.split()) == f"{own} {timings}"


def test_a_variant_without_test_nodes_shows_a_dash() -> None:
    untested = msgspec.structs.replace(variant(1), test_accuracy=None)
    assert " - " in "\n".join(render(profile(untested), 80))


def test_a_pipe_gets_whole_lines_and_no_padding() -> None:
    with fake_server() as server:
        lines = CliRunner().invoke(app, ["variants", server.url], env={"COLUMNS": None}).output.splitlines()
    row = next(line for line in lines if line.startswith("x4"))
    assert "x4 float32 16" in " ".join(row.split())
    assert len(row.split()) > 10
    assert all(line == line.rstrip() for line in lines)
    assert any(line.startswith("Measured on ") and line.endswith("threads.") for line in lines)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"),
     (1024, "1.00 KiB"), (17_664, "17.2 KiB"), (2**20 - 1, "1.00 MiB"), (2**40, "1024 GiB")],
)  # fmt: skip
def test_bytes_have_three_digits_and_a_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(("ms", "text"), [(0.0004, "0.000"), (0.2131, "0.213"), (12.345, "12.35"), (1234.5, "1,234")])
def test_milliseconds_have_at_most_four_digits(ms: float, text: str) -> None:
    assert format_ms(ms) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1 layer"), (2, "2 layers"), (0, "0 layers"), (1797, "1,797 layers")],
)
def test_nouns_agree_with_their_number(number: int, text: str) -> None:
    assert count(number, "layer") == text


def test_printed_figures_have_six_digits() -> None:
    measured = {"latencyMs": {"p50": 0.22268450038609444}, "shares": [1 / 3], "requests": 1_234_567, "lagMs": None}
    shown = {"latencyMs": {"p50": 0.222685}, "shares": [0.333333], "requests": 1_234_567, "lagMs": None}
    assert round_floats(measured) == shown
