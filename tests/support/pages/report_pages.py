"""Reports over repositories that tests write: pages, and printed text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import msgspec
from tests.support.pages.reports import manifest_of
from typer.testing import CliRunner

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import (
    GRAPH_SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    NodeIdKind,
    RevisionManifest,
    sealed,
)
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_cli.main import app
from gnnserve_cli.render import output
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.data import Report
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.terminal import render_report
from gnnserve_worker.repository import paths

_RUN = CliRunner()


def report_of(subject: ReportSubject, **options: object) -> Report:
    return build_report(subject, "gnnserve test", **options)  # type: ignore[arg-type]


def printed(report: Report) -> str:
    console = output()
    console.width = 200
    with console.capture() as captured:
        for renderable in render_report(report):
            console.print(renderable)
    return captured.get()


class Page(HTMLParser):
    """Checks that what is opened is closed, and collects what matters."""

    VOID = frozenset({"meta", "line", "rect", "path", "circle", "br", "img", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.names: list[str] = []
        self.tags: set[str] = set()
        self.labels: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in {"href", "src", "srcset", "data", "action"}:
                self.links.append(value or "")
            if name == "id":
                self.names.append(value or "")
            if name == "aria-label" and tag == "svg":
                self.labels.append(value or "")
            assert not name.startswith("on"), name
            assert name != "style"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"th", "td"}:
            self.cells.append(data)


def write_repository(root: Path, manifest: RevisionManifest, service: str = "digits") -> None:
    """A revision and its graph, as far as a report reads them."""
    folder = root / "default" / service
    revision = folder / "revisions" / manifest.revision
    revision.mkdir(parents=True)
    (revision / "revision.json").write_bytes(msgspec.json.encode(sealed(manifest)))
    graph = folder / "graphs" / manifest.graph
    graph.mkdir(parents=True, exist_ok=True)
    (graph / "graph.json").write_bytes(msgspec.json.encode(sealed(graph_manifest(manifest.graph))))


def graph_manifest(digest: str, classes: Classes = tuple(range(10))) -> GraphManifest:
    return GraphManifest(
        schema_version=GRAPH_SCHEMA_VERSION, digest=digest, source="builtin Digits", nodes=1797, edges=24_680,
        features=64,
        classes=classes, multi_label=False, train_nodes=1078, validation_nodes=359, test_nodes=360,
        files={name: FileEntry(bytes=64, sha256="0" * 64) for name in paths.GRAPH_FILES},
        node_ids=NodeIdKind.POSITIONS,
    )  # fmt: skip


def run(*arguments: object, code: int = 0) -> str:
    result = _RUN.invoke(app, ["report", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def served_answer() -> VariantsAnswer:
    manifest = manifest_of(others=1)
    return VariantsAnswer(
        service="default/digits", revision="r1", recipe="c1", nodes=1797, features=64, classes=tuple(range(10)),
        multi_label=False, profile=manifest.profile, provenance=provenance_of(manifest, "builtin Digits", 24_680, 1078),
        node_ids=NodeIdKind.POSITIONS,
    )  # fmt: skip
