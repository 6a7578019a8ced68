"""`/explore` and `POST /v1/explain`: what an edge is worth, and what real Chromium shows of a node."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
import pytest
from tests.support.generation.recommended_links import of_users, one_type, published
from tests.support.pages.browser import Browser, browser
from tests.support.pages.contrasts import CONTRASTS
from tests.support.serving.real_worker import NODES, RealWorker, load, publish
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import FakeWorker, running, without_overlays

from gnnserve_api.families import CHANGED_GRAPH
from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_types, publish_made_up_types
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.page import build_page
from gnnserve_worker.serving.security.credentials import Credentials

ACCEPTED = "accepted-0123456789"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return publish(tmp_path_factory.mktemp("repository"))


# What an edge is worth


def ask(revision: ServedRevision, *asked: tuple[str, dict[str, Any]]) -> list[httpx.Response]:
    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            return [await client.http.post(path, json=body) for path, body in asked]

    return asyncio.run(scenario())


def softmax(scores: list[float]) -> np.ndarray:
    shifted = np.exp(np.array(scores) - max(scores))
    return np.asarray(shifted / shifted.sum())


def test_an_influence_is_what_the_answer_loses_without_the_edge(repository: Repository) -> None:
    revision = load(repository)
    assert revision.graph.neighbours_of is not None
    listed = revision.graph.neighbours_of(17)
    neighbours = np.unique(listed).tolist()

    def without(left_out: int) -> np.ndarray:
        arrange = revision.compute.overlays.stand_in(17)
        assert not isinstance(arrange, str)
        overlay, seeds = arrange([listed[listed != left_out]])
        view = view_of(revision.graph.nodes, [Part(1, overlay, 0)], seeds)
        return softmax(revision.compute.infer("x1", seeds, 0, view=view).scores[0].tolist())

    (told,) = ask(revision, ("/v1/explain", {"node": 17, "variant": "x1"}))
    assert told.status_code == 200, told.text
    answer = told.json()
    whole, *rest = map(without, (-1, *neighbours))
    best = int(whole.argmax())
    expected = {each: whole[best] - one[best] for each, one in zip(neighbours, rest, strict=True)}
    assert answer["class"] == revision.task.classes[best]
    assert answer["probability"] == pytest.approx(whole[best], abs=1e-5)
    assert {each["id"]: each["influence"] for each in answer["neighbours"]} == pytest.approx(expected, abs=1e-5)
    sizes = [abs(each["influence"]) for each in answer["neighbours"]]
    assert sizes == sorted(sizes, reverse=True)
    assert revision.graph.labels is not None
    assert answer["label"] == revision.task.classes[int(revision.graph.labels[17])]
    assert answer["degree"] == len(revision.graph.neighbours_of(17))


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"node": 4000}, "node", "node 4000 is not in the graph"),
        ({"node": 1, "count": 0}, "count", "0 is out of range"),
        ({"node": 1, "count": 1000}, "count", "1000 is out of range"),
        ({"node": 1, "variant": "x9"}, "variant", "has no variant"),
        ({"node": "1"}, "node", 'expected an integer, got "1"; node ids of this graph are integers'),
        ({"node": 1, "count": "few"}, "count", "give a number from 1 to 100"),
        ({"nodes": [1]}, "nodes", "there is no such field; known are node, pair, count, variant"),
        ({"pair": [1, 2]}, "pair", "this service classifies nodes, and does not score pairs of them"),
        ({"pair": [1, 4000]}, "pair[1]", "node 4000 is not in the graph"),
        ({"pair": [1]}, "pair", "expected a pair, got [1]; give the ids of two nodes"),
        ({"node": 1, "pair": [1, 2]}, "pair", "node is given too; give one of them"),
        ({}, "node", "it is missing"),
    ],
)
def test_bad_requests_are_told(repository: Repository, body: dict[str, Any], field: str, words: str) -> None:
    (response,) = ask(load(repository), ("/v1/explain", body))
    assert (response.status_code, response.json()["error"]["field"]) == (400, field)
    assert words in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Users who know each other and buy items; every row of the table is the same, so that no edge has influence."""
    repository = Repository(tmp_path_factory.mktemp("typed"), "default", "shop")
    network = Model(hidden=8, fanouts=(2, 2)).network(2)
    variants = [MadeUpVariant("projected", 1, "projected", Storage.FLOAT32, "float32")]
    made = publish_made_up_types(repository, made_up_types(20, 2, 3, 2), network, variants)
    publish_embeddings(repository, "default/shop", made.revision, None, {}, "a test", silent)
    return repository


def test_over_several_types_neighbours_have_their_relation_and_are_tried_in_turns(typed: Repository) -> None:
    revision = load(typed)
    assert revision.graph.lists_by_relation is not None
    first, second = (listed.tolist() for _, listed in revision.graph.lists_by_relation(3))
    whole, some, *named = ask(
        revision,
        ("/v1/explain", {"node": 3}),
        ("/v1/explain", {"node": 3, "count": 2}),
        *(("/v1/explain", {"node": node, "count": 2}) for node in ("user/3", {"type": "user", "id": 3})),
    )
    told = whole.json()
    assert told["relations"] == [
        {"name": "knows", "type": "user", "degree": 2},
        {"name": "rev_buys", "type": "item", "degree": 2},
    ]
    assert (told["node"], told["degree"], told["variant"], told["class"]) == ("user/3", 4, "projected", told["class"])
    assert told["isAskedAbout"] is True
    assert [each["influence"] for each in told["neighbours"]] == [0.0] * 4  # and no rounding of sums in another order
    expected = {("knows", f"user/{one}") for one in first} | {("rev_buys", f"item/{one - 20}") for one in second}
    assert {(each["relation"], each["id"]) for each in told["neighbours"]} == expected
    assert {each["relation"] for each in some.json()["neighbours"]} == {"knows", "rev_buys"}
    assert [each.json() for each in named] == [some.json()] * 2


def test_a_node_of_a_type_without_answers_is_shown_with_its_neighbours_alone(typed: Repository) -> None:
    told, unknown = ask(load(typed), ("/v1/explain", {"node": "item/3"}), ("/v1/explain", {"node": "item/20"}))
    answer = told.json()
    assert told.status_code == 200, told.text
    assert answer["unexplained"] == "answers are about nodes of type user"
    assert {"class", "probability", "variant"}.isdisjoint(answer)
    assert answer["isAskedAbout"] is False
    assert all("influence" not in each and each["relation"] == "buys" for each in answer["neighbours"])
    assert (answer["label"], {each["label"] for each in answer["neighbours"]} <= {0, 1}) == (None, True)
    assert 'node "item/20" is not in the graph' in unknown.json()["error"]["message"]


# The page


def test_the_page_is_one_file_that_asks_for_nothing_else() -> None:
    page = build_page("a<b>&c", "explore.html")
    text = page.body.decode()
    assert not re.search(r"@import|url\(|//cdn|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "<b>" not in text.partition("<script>")[0]
    assert "unsafe" not in page.headers["content-security-policy"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as tab:
        yield tab


@pytest.fixture
def tab(chromium: Browser) -> Browser:
    chromium.open("about:blank")
    chromium.events.clear()
    chromium.resize(1200)
    return chromium


@pytest.fixture(scope="module")
def url(repository: Repository) -> Iterator[str]:
    with started(Credentials(), of=RealWorker(repository)) as served:  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{served.port}/explore"


def rows(tab: Browser, body: str) -> int:
    return int(tab.evaluate(f"document.querySelectorAll('#{body} tr').length"))


def wait_for_node(tab: Browser) -> None:
    tab.wait_for(
        "document.querySelectorAll('#answers tr').length === 2 && document.querySelectorAll('#neighbours tr').length "
        "> 0 && document.querySelectorAll('#recommended tr').length === 10"
    )


def test_a_node_is_found_and_shown_with_neighbours_answers_and_recommendations(tab: Browser, url: str) -> None:
    tab.open(url)
    tab.wait_for("document.querySelectorAll('#some button').length === 8")
    # It opens on the first node; what is typed finds others, and the button takes a whole id.
    wait_for_node(tab)
    assert tab.text("#said").startswith("Node 0, by revision ")
    field = "document.querySelector('#node')"
    tab.evaluate(f"{field}.value = '17'; {field}.dispatchEvent(new Event('input'))")
    tab.wait_for("document.querySelector('#some').textContent === 'With “17”:17117'")
    tab.evaluate("document.querySelector('#search button').click()")
    tab.wait_for("document.querySelector('#said').textContent.startsWith('Node 17, by revision ')")
    wait_for_node(tab)
    assert "neighbours" in tab.text("#explained")
    assert "120 nodes, all compared" in tab.text("#index")
    assert tab.evaluate("getComputedStyle(document.querySelector('#access')).display") == "none"
    assert [line.split()[0] for line in tab.text("#answers").splitlines() if line.strip()] == ["x1", "x2"]
    assert tab.evaluate("document.querySelectorAll('#picture line').length") == min(14, rows(tab, "neighbours"))
    # A neighbour leads to its own page, and back leads here again.
    tab.evaluate("document.querySelector('#neighbours button').click()")
    tab.wait_for("!document.querySelector('#said').textContent.startsWith('Node 17,')")
    wait_for_node(tab)
    tab.evaluate("history.back()")
    tab.wait_for("document.querySelector('#said').textContent.startsWith('Node 17,')")
    wait_for_node(tab)
    assert tab.complaints() == []
    host = urlsplit(url).netloc
    assert {urlsplit(each).netloc for each in tab.requested() if each.startswith("http")} == {host}


class BesideChanges(RealWorker):
    """Its x2 holds the graph as it was generated."""

    def revision(self) -> ServedRevision:
        still = load(self.repository)
        profile = without_overlays(still.manifest.profile, "x2")
        manifest = msgspec.structs.replace(still.manifest, profile=profile)
        return replace(still, manifest=manifest, changes=replace(still.changes, needed=CHANGED_GRAPH))


def test_a_variant_that_does_not_follow_changes_is_not_asked(tab: Browser, repository: Repository) -> None:
    with started(Credentials(), of=BesideChanges(repository)) as served:  # type: ignore[arg-type]
        tab.open(f"http://127.0.0.1:{served.port}/explore")
        tab.wait_for("document.querySelectorAll('#answers tr').length === 1")
        assert tab.text("#answers").startswith("x1")
        assert tab.text("#standing") == "Not asked, since they do not follow changes of the graph: x2."
        assert tab.complaints() == []


def test_recommendations_are_filtered_by_what_is_written(tab: Browser, url: str) -> None:
    def filtered(where: str, until: str) -> list[str]:
        """The nodes that are shown then."""
        tab.evaluate(f"document.querySelector('#where').value = '{where}'")
        tab.evaluate("document.querySelector('#filter button').click()")
        tab.wait_for(until)
        return [line.split()[0] for line in tab.text("#recommended").splitlines() if line.strip()]

    found = "document.querySelector('#index').textContent.startsWith('By embeddings')"
    told = "!/^(Searching|By)/.test(document.querySelector('#index').textContent)"
    tab.open(f"{url}#node=17")
    wait_for_node(tab)
    asked = {"node": 17, "count": 10, "filter": {"labels": [1, 2]}}
    answer = httpx.post(f"{url.removesuffix('explore')}v1/recommend", json=asked).json()
    assert filtered(" labels = 1,2 ;", found) == [str(one["id"]) for one in answer["items"]]
    assert filtered("price<", told) == []
    assert tab.text("#index") == "price<: no condition; give such as price<20, stock>=1, brand=3,5 or labels=7"
    assert filtered("price<20; labels=2", told) == []
    assert tab.text("#index").startswith("filter")  # the worker's own sentence
    assert len(filtered("", found)) == 10


def test_a_node_of_several_types_is_shown_by_relation_and_leads_to_those_of_others(
    tab: Browser, typed: Repository
) -> None:
    with started(Credentials(), of=RealWorker(typed)) as served:  # type: ignore[arg-type]
        tab.open(f"http://127.0.0.1:{served.port}/explore#node=3")
        tab.wait_for("document.querySelectorAll('#recommended tr').length === 10")
        assert tab.text("#relations") == "knows: 2 user · rev_buys: 2 item"
        assert [tab.text("#neighbours").count(one) for one in ("knows", "rev_buys")] == [2, 2]
        assert tab.text("#answers").startswith("projected")
        # An item has no answer of its own; its users lead on.
        to_item = (
            "[...document.querySelectorAll('#neighbours button')].find((one) => one.textContent.startsWith('item'))"
        )
        tab.evaluate(f"{to_item}.click()")
        tab.wait_for("document.querySelector('#said').textContent.startsWith('Node item/')")
        assert "answers are about nodes of type user" in tab.text("#explained")
        assert tab.evaluate(
            "document.querySelector('#s-answers').hidden && document.querySelector('#s-recommended').hidden"
        )
        tab.evaluate("document.querySelector('#neighbours button').click()")
        tab.wait_for("document.querySelector('#said').textContent.startsWith('Node user/')")
        assert tab.complaints() == []


@pytest.mark.parametrize(("types", "pair"), [(False, (17, 3)), (True, ("user/3", "item/5"))])
def test_a_pair_is_shown_with_the_neighbours_of_both_and_found_from_recommendations(
    tab: Browser, tmp_path: Path, types: bool, pair: tuple[Any, Any]
) -> None:
    made = published(tmp_path, of_users(tmp_path) if types else one_type(tmp_path, "Dot"))
    with started(Credentials(), of=RealWorker(made.repository)) as served:  # type: ignore[arg-type]
        address = f"http://127.0.0.1:{served.port}/"
        tab.open(f"{address}explore")
        tab.wait_for("document.querySelector('#said').textContent.startsWith('Node ')")
        first, second = pair
        tab.evaluate(
            f"document.querySelector('#node').value = '{first}'; document.querySelector('#other').value = '{second}'"
        )
        tab.evaluate("document.querySelector('#search button').click()")
        tab.wait_for("document.querySelector('#said').textContent.startsWith('Pair ')")
        tab.wait_for("document.querySelectorAll('#answers tr').length > 0")
        assert tab.text("#said").startswith(f"Pair {first} and {second}, by revision ")
        asked = {"pair": pair, "count": 50}
        told = httpx.post(f"{address}v1/explain", json=asked).json()
        assert f"score {told['score']:.3f}" in tab.text("#explained")
        assert {one["of"] for one in told["neighbours"]} == {*pair}
        readers = "[...document.querySelectorAll('#neighbours tr')].map((one) => one.children[1].textContent)"
        assert tab.evaluate(readers) == [str(one["of"]) for one in told["neighbours"]]
        assert tab.evaluate("document.querySelectorAll('#picture circle.centre').length") == 2
        assert tab.evaluate("document.querySelector('#s-recommended').hidden")
        assert "Label" not in tab.text("#s-neighbours thead") and "Influence" in tab.text("#s-neighbours thead")
        asked = {"pairs": [pair], "variant": told["variant"]}
        score = httpx.post(f"{address}v1/predict", json=asked).json()["scores"][0]
        assert f"{told['variant']}\t{score:.3f}" in tab.text("#answers")
        # A recommendation leads to its pair.
        tab.open(f"{address}explore#node={first}")
        tab.wait_for("document.querySelectorAll('#recommended tr').length > 0")
        assert tab.text("#h-recommended") == "Recommended: the likeliest links that it does not have"
        assert tab.text("#h-neighbours") == "Neighbours" and "Influence" not in tab.text("#s-neighbours thead")
        best = tab.text("#recommended button")
        tab.evaluate("document.querySelector('#recommended td button').click()")
        tab.wait_for("document.querySelector('#said').textContent.startsWith('Pair ')")
        assert tab.text("#said").startswith(f"Pair {first} and {best}, ")
        assert tab.complaints() == []


def test_an_answer_that_no_edge_changes_is_told_and_shown_without_bars(tab: Browser, typed: Repository) -> None:
    with started(Credentials(), of=RealWorker(typed)) as served:  # type: ignore[arg-type]
        tab.open(f"http://127.0.0.1:{served.port}/explore#node=3")
        tab.wait_for("document.querySelectorAll('#neighbours tr').length === 4")
        assert tab.text("#explained").endswith("None of these edges changes it.")
        widths = "[...document.querySelectorAll('#neighbours .bar span')].map((one) => one.offsetWidth)"
        assert tab.evaluate(widths) == [0] * 4
        assert tab.evaluate("document.querySelectorAll('#picture line.untold').length") == 4


def test_a_node_that_is_not_there_is_told_in_words(tab: Browser, url: str) -> None:
    tab.open(f"{url}#node={NODES}")
    tab.wait_for("document.querySelector('#said').classList.contains('bad')")
    assert f"node {NODES} is not in the graph" in tab.text("#said")
    assert tab.evaluate("document.querySelector('#main').hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read(tab: Browser, url: str, scheme: str) -> None:
    tab.prefer(scheme)
    tab.open(f"{url}?{scheme}#node=17")
    wait_for_node(tab)
    contrasts = tab.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [entry for entry in contrasts if entry["ratio"] < 4.5] == []
    if (folder := os.environ.get("GNNSERVE_SCREENSHOTS")) is not None:
        tab.screenshot(Path(folder) / f"explore-{scheme}.png")


def test_keys_and_screen_readers_reach_everything(tab: Browser, url: str) -> None:
    tab.open(f"{url}?keys#node=3")
    wait_for_node(tab)
    unnamed = (
        "[...document.querySelectorAll('button, input, table, svg[role=img], section')].filter((one) => "
        "!(one.textContent.trim() || one.labels?.length || one.getAttribute('aria-labelledby'))).length"
    )
    assert tab.evaluate(unnamed) == 0
    assert tab.evaluate("[...document.querySelectorAll('#neighbours th')].every((one) => one.scope === 'row')")
    assert tab.evaluate("document.querySelector('#said').getAttribute('role')") == "status"
    tab.resize(380)
    assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_with_tokens_the_page_asks_for_one(tab: Browser, repository: Repository, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(ACCEPTED)
    with started(Credentials(tokens=tokens), of=RealWorker(repository)) as served:  # type: ignore[arg-type]
        tab.open(f"http://127.0.0.1:{served.port}/explore#node=3")
        tab.wait_for("!document.querySelector('#access').hidden")
        tab.evaluate(
            f"document.querySelector('#token').value = '{ACCEPTED}'; document.querySelector('#access button').click()"
        )
        wait_for_node(tab)
        assert ACCEPTED not in tab.evaluate("document.body.innerHTML + location.href")
