"""examples/reviews keeps working: its tables are what make.py writes, its manifest fits them, and its page is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from tests.support.graphs.several_types import load_types
from tests.support.pages.pages import ROOT, anchors, links

from gnnserve_api.http.protocol import TypedOverlay
from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.predict import read_any_overlay
from gnnserve_worker.graph.store import GraphData

FOLDER = ROOT / "examples" / "reviews"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def graph() -> GraphData:
    """The graph as generation reads it."""
    source = load_manifest(FOLDER / "reviews.yaml").spec.graph.source.typed
    assert source is not None
    return load_types(source)


@pytest.mark.parametrize("name", ["users.csv", "products.csv", "reviews.csv"])
def test_tables_are_those_that_the_script_writes(name: str, tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "make.py"))["make"](tmp_path)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


def test_the_graph_is_what_the_page_says(graph: GraphData) -> None:
    users, products = graph.types
    reviews = graph.relations[0].lists.edges
    assert f"{users.nodes:,} users, {products.nodes:,} products and {reviews:,} reviews" in PAGE
    assert f"{len(graph.splits.test):,} test users" in PAGE
    assert f"{graph.nodes:,} nodes of 2 types, {graph.edges:,} edges by 2 relations" in PAGE
    assert users.ids is not None
    asked = re.findall(r"user/(u\d+)", PAGE)
    assert asked
    assert users.ids.find_texts(asked).min() >= 0


def test_the_new_user_reviews_products_of_the_graph(graph: GraphData) -> None:
    brought = read_any_overlay(FOLDER / "new-user.json")
    assert isinstance(brought, TypedOverlay)
    users, products = graph.types
    assert users.ids is not None and products.ids is not None
    assert users.ids.find_texts(["new"]).tolist() == [-1]
    assert [node.id for node in brought.nodes] == ["user/new"]
    assert {edge[:2] for edge in brought.edges} == {("user/new", "reviews")}
    reviewed = [str(target).removeprefix("product/") for _, _, target in brought.edges]
    assert products.ids.find_texts(reviewed).min() >= 0


def test_links_of_the_page_lead_somewhere() -> None:
    for file, anchor in links(PAGE):
        target = FOLDER / file
        assert target.exists(), file
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor
