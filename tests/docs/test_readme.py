"""README.md fits a newcomer's minutes, and what it shows works: its links, its manifest, its model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.pages.pages import ROOT, anchors, code_blocks, links, read_page

from gnnserve_api.manifest import load_manifest
from gnnserve_describe import Wishes, describe
from gnnserve_describe.write import MANIFEST
from gnnserve_worker.graph.sources.load import load_source

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900


def test_it_is_read_in_five_minutes() -> None:
    assert len([word for word in README.split() if re.search(r"\w", word)]) <= MOST_WORDS


def test_its_links_lead_somewhere() -> None:
    for file, anchor in links(README):
        assert (ROOT / file).exists(), file
        if anchor:
            assert anchor in anchors((ROOT / file).read_text(encoding="utf-8")), f"{file}#{anchor}"


def test_the_manifest_of_ten_lines_serves_two_tables(tmp_path: Path) -> None:
    (manifest,) = code_blocks(README, "yaml")
    assert manifest in code_blocks(read_page("own-graph.md"), "yaml")
    assert len(manifest.splitlines()) <= 10
    for name in ("nodes.csv", "edges.csv"):
        (tmp_path / name).symlink_to(ROOT / "examples" / "accounts" / name)
    (tmp_path / "accounts.yaml").write_text(manifest)
    graph = load_source(load_manifest(tmp_path / "accounts.yaml").spec.graph.source, Path("unused"))
    assert graph.graph.nodes == 1_500


def test_the_model_of_ten_lines_is_described(tmp_path: Path) -> None:
    (program,) = code_blocks(README, "python")
    assert program in code_blocks(read_page("own-model.md"), "python")
    assert len(program.splitlines()) <= 10
    made: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), made)  # noqa: S102  (our own page)
    describe(made["model"], made["data"], tmp_path / "mine", Wishes(nodes=16))
    assert load_manifest(tmp_path / "mine" / MANIFEST).spec.model.program is not None
