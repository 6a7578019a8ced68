"""examples/shop keeps working: its tables are what make.py writes, its manifest fits them, and its page is true."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import pytest
from tests.support.graphs.links import load_links
from tests.support.pages.pages import ROOT, anchors, links

from gnnserve_api.manifest import load_manifest

FOLDER = ROOT / "examples" / "shop"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["users.csv", "items.csv", "bought.csv"])
def test_tables_are_those_that_the_script_writes(name: str, tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "make.py"))["main"](tmp_path)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_page_asks_about_pairs_of_the_graph() -> None:
    spec = load_manifest(FOLDER / "shop.yaml").spec
    assert spec.task.links is not None
    graph, parted, _ = load_links(spec.graph.source, spec.task.links, Path("unused"))
    assert graph.ids is not None
    assert (parted.first.nodes, parted.second.nodes) == (600, 240)
    pairs = re.findall(r"(user/\w+):(item/\w+)", PAGE)
    assert len(pairs) == 3
    assert graph.ids.find_texts([end for pair in pairs for end in pair]).min() >= 0
    with (FOLDER / "bought.csv").open(encoding="utf-8") as file:
        bought = {(f"user/{row['user']}", f"item/{row['item']}") for row in csv.DictReader(file)}
    assert [pair in bought for pair in pairs] == [True, False, False]


def test_links_of_the_page_lead_somewhere() -> None:
    for file, anchor in links(PAGE):
        target = FOLDER / file
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor
