"""The page at `/`: what travels, and what real Chromium makes of it over a real server."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.changes.stale_layers import Scene
from tests.support.machine.waiting import until
from tests.support.pages.browser import Browser, browser
from tests.support.pages.contrasts import CONTRASTS
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import (
    CLASSES,
    TRADE_OFF,
    FakeWorker,
    running,
    service,
    variant,
    without_overlays,
)
from tests.support.serving.slow_worker import PROFILE, SlowWorker, slow_worker

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.serving.http.page import build_page
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS, Credentials

# What travels


def test_the_page_is_one_file_that_asks_for_nothing_else() -> None:
    found: list[tuple[str, str]] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend((tag, value or "") for name, value in attrs if name in {"src", "href", "srcset", "data"})

    text = build_page("digits").body.decode()
    Links().feed(text)
    assert {value for tag, value in found if tag == "a"} == {"explore", "docs", "metrics", "v1/variants", "v1/route"}
    assert [(tag, value.partition(":")[0]) for tag, value in found if tag != "a"] == [("link", "data")]
    assert not re.search(r"@import|url\(|//cdn|https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_page_allows_its_own_script_alone() -> None:
    policy = build_page("digits").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy


def test_a_name_of_a_service_is_no_markup() -> None:
    assert b"<b>" not in build_page("a<b>&c").body.partition(b"<script>")[0]
    assert b"<title>gnnserve: a&lt;b&gt;&amp;c</title>" in build_page("a<b>&c").body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_page_is_there_before_a_revision_is(method: str) -> None:
    async def ask() -> httpx.Response:
        async with running(FakeWorker(loaded=False)) as client:
            return await client.http.request(method, "/", headers={"accept-encoding": "identity"})

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert int(answer.headers["content-length"]) == len(build_page("digits").body)
    assert (b"needs JavaScript" in answer.content) is (method == "GET")


# In Chromium


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


@pytest.fixture
def worker() -> Iterator[SlowWorker]:
    with slow_worker() as started:
        started.load()
        yield started


@pytest.fixture
def generous() -> Iterator[SlowWorker]:
    """Nothing is ever late here."""
    with slow_worker(latency_ms=60_000) as started:
        started.load()
        yield started


def open_page(tab: Browser, worker: SlowWorker) -> None:
    tab.open(worker.url + "/")
    tab.wait_for("document.querySelector('#state').dataset.state !== 'starting'")


def state_is(state: str) -> str:
    return f"document.querySelector('#state').dataset.state === '{state}'"


def ask(worker: SlowWorker, times: int, latency_ms: float | None = None) -> list[int]:
    headers = {} if latency_ms is None else {"gnnserve-latency-ms": str(latency_ms)}
    with httpx.Client(base_url=worker.url, timeout=60) as http:
        return [http.post("/v1/predict", json={"nodes": [1]}, headers=headers).status_code for _ in range(times)]


def test_the_page_shows_variants_routing_and_frontier(tab: Browser, generous: SlowWorker) -> None:
    open_page(tab, generous)
    tab.wait_for("document.querySelectorAll('#rows tr').length === 4")
    assert tab.text("h1") == "digits"
    assert "Mode Adaptive, base variant x1" in tab.text("#why")
    rows = tab.text("#rows").splitlines()
    assert [row.split()[0] for row in rows if row] == ["x1", "x2", "x4", "x8"]
    frontier = tab.evaluate("document.querySelector('.frontier').dataset.variants")
    assert frontier == "x8 x4 x2 x1"
    assert tab.evaluate("document.querySelectorAll('#plot-frontier circle').length") == len(PROFILE.variants)
    assert tab.evaluate("document.querySelectorAll('#plot-frontier circle.base').length") == 1
    label = tab.evaluate("document.querySelector('#plot-frontier svg').getAttribute('aria-label')")
    assert "x1 94.00 % in" in label


def test_the_page_counts_what_was_answered_on_time_and_what_was_late(tab: Browser, generous: SlowWorker) -> None:
    open_page(tab, generous)
    tab.wait_for("points.length > 0")
    assert ask(generous, 3) == [200] * 3
    assert ask(generous, 1, latency_ms=0.001) == [200]  # no variant can ever, so the nearest one does
    tab.wait_for("document.querySelector('#attained-of').textContent === 'of 4 requests with a latency'")
    assert tab.text("#attained") == "75.00 %"
    assert tab.text("#refused") == "0/s"
    assert tab.text("#accuracy") == "91.25 %"  # three by x1, one by x8
    assert "x1 75.0 %" in tab.text("#keys-shares")
    assert "x8 25.0 %" in tab.text("#keys-shares")
    assert "objective 60,000 ms" in tab.text("#p50")
    assert tab.evaluate("document.querySelector('#attained').className") == "bad"


def test_the_page_opens_with_what_happened_before(tab: Browser, generous: SlowWorker) -> None:
    """Its counters are taken now and then, whether or not a page is open."""
    assert ask(generous, 3) == [200] * 3

    def taken() -> bool:
        samples = httpx.get(f"{generous.url}/v1/history").json()["samples"]
        return samples[0]["offeredSeeds"] == 0 and samples[-1]["offeredSeeds"] == 3

    until(taken, "a sample with the three requests")
    open_page(tab, generous)
    tab.wait_for("points.length > 0")
    assert tab.evaluate("points.some((point) => point.shares && point.shares.x1 === 1)")


def test_under_three_times_what_it_can_do_the_page_shows_who_answers_and_who_is_refused(
    tab: Browser, worker: SlowWorker
) -> None:
    """x8 does 33 seeds per ms in full batches; 48 seeds 2,000 times a second are 96."""
    open_page(tab, worker)
    arguments = ["--rate", "2000", "--duration", "600", "--seeds-per-request", "48", "--binary"]
    generator = [sys.executable, "-m", "gnnserve_cli", "load", worker.url, *arguments]
    with subprocess.Popen(generator, stdout=subprocess.DEVNULL) as load:
        try:
            tab.wait_for("document.querySelector('#refused').className === 'bad'")
            tab.wait_for("document.querySelectorAll('#plot-load path.bad').length > 0")
            tab.wait_for("points.some((point) => point.shares && point.shares.x8 > 0)")
            tab.wait_for("points.some((point) => point.attained !== null && point.attained < 1)")
        finally:
            load.kill()
    assert "refused" in tab.evaluate("document.querySelector('#plot-load svg').getAttribute('aria-label')")
    assert tab.evaluate("document.querySelectorAll('#plot-shares path.variant').length") >= 4
    assert tab.evaluate("document.querySelectorAll('#plot-latency path.limit').length") == 1


def test_nothing_is_asked_of_anybody_but_the_worker_and_nothing_is_blocked(tab: Browser, worker: SlowWorker) -> None:
    open_page(tab, worker)
    tab.wait_for("points.length > 1")
    asked = {urlsplit(url) for url in tab.requested() if not url.startswith(("data:", "about:"))}
    assert {url.netloc for url in asked} == {f"127.0.0.1:{worker.port}"}
    assert {url.path for url in asked} == {"/", "/v1/history", "/v1/route", "/v1/variants", "/readyz", "/metrics"}
    assert tab.complaints() == []


def test_the_page_tells_loading_draining_and_away_and_comes_back(tab: Browser) -> None:
    with slow_worker() as loading:
        open_page(tab, loading)
        tab.wait_for(state_is("loading"))
        loading.load()
        tab.wait_for(state_is("serving"))
        loading.process.send_signal(signal.SIGTERM)
        tab.wait_for(state_is("draining"))
    tab.wait_for(state_is("away"))
    assert "has not answered since" in tab.text("#state")
    assert tab.evaluate("document.querySelector('main').className") == "stale"
    with slow_worker(port=loading.port) as again:
        again.load()
        tab.wait_for(state_is("serving"))
        tab.wait_for("points.some((point) => !point.gap)")
    assert tab.evaluate("document.querySelector('main').className") == ""


def test_a_pointer_over_a_plot_tells_what_was_there(tab: Browser, generous: SlowWorker) -> None:
    open_page(tab, generous)
    tab.wait_for("points.length > 1")
    # Drawn figures of another time, so that what is told of it differs from what is now.
    tab.evaluate("points[0].offered = 4321; samples = []; clearTimeout(timer); draw()")
    box = tab.evaluate("document.querySelector('#plot-load').getBoundingClientRect().toJSON()")
    x_at = "document.querySelector('#plot-load path.plain').getBBox().x"
    x, y = box["x"] + tab.evaluate(x_at), box["y"] + box["height"] / 2
    tab.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tab.wait_for("document.querySelectorAll('#plot-load .cursor').length === 1")
    assert "offered 4,321" in tab.text("#keys-load")
    tab.command("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    tab.wait_for("document.querySelectorAll('.cursor').length === 0")
    assert "offered 4,321" not in tab.text("#keys-load")


def test_a_hidden_page_asks_nothing_until_it_is_looked_at(tab: Browser, worker: SlowWorker) -> None:
    open_page(tab, worker)
    tab.wait_for("!running")
    show = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});" + (
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    tab.evaluate(show.format("true"))
    tab.evaluate("window.asked = 0; window.fetched = fetch; window.fetch = (...all) => (asked++, fetched(...all)); 0")
    tab.evaluate("new Promise((done) => setTimeout(done, 1.5 * INTERVAL_MS))")
    assert tab.evaluate("asked") == 0
    tab.evaluate(show.format("false"))
    tab.wait_for("asked > 0")


@pytest.mark.parametrize("width", [1200, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(
    tab: Browser, generous: SlowWorker, width: int, scheme: str, tmp_path: Path
) -> None:
    tab.resize(width)
    tab.prefer(scheme)
    open_page(tab, generous)
    tab.wait_for("points.length > 0")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    # Text against what lies behind it, as WCAG 2 counts contrast; 4.5 is its level AA.
    contrasts = tab.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [entry for entry in contrasts if entry["ratio"] < 4.5] == []
    tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_nothing_moves_once_figures_come(tab: Browser, generous: SlowWorker) -> None:
    """Loading and serving, without and with figures: every card is where it was. The table alone, which is the last,
    grows."""
    places = (
        "[...document.querySelectorAll('.card, footer')].slice(0, -1).map((card) => card.getBoundingClientRect().top)"
    )
    with slow_worker() as loading:
        open_page(tab, loading)
        before = tab.evaluate(places)
        loading.load()
        tab.wait_for(state_is("serving"))
        tab.wait_for("points.length > 0")
        assert tab.evaluate(places) == before


def test_where_tokens_are_wanted_the_page_asks_for_one_and_then_shows_the_variants(
    tab: Browser, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("alpha-0123456789abcdef")

    def give(token: str) -> None:
        tab.evaluate(f"document.querySelector('#token').value = '{token}'")
        tab.evaluate("document.querySelector('#access button').click()")

    with started(Credentials(tokens=tmp_path / "tokens")) as secured:
        tab.open(f"http://127.0.0.1:{secured.port}/")
        tab.wait_for(state_is("serving"))
        tab.wait_for("!document.querySelector('#access').hidden")
        assert tab.evaluate("document.querySelectorAll('#rows tr').length") == 0
        give("wrong-0123456789abcdef")
        tab.wait_for("document.querySelector('#access-said').textContent === 'Not accepted.'")
        give("alpha-0123456789abcdef")
        tab.wait_for("document.querySelector('#access').hidden")
        tab.wait_for("document.querySelectorAll('#rows tr').length === 3")
        assert "alpha" not in tab.evaluate("document.documentElement.outerHTML + location.href")


def test_the_page_tells_offset_and_staleness_where_the_graph_changes(tab: Browser) -> None:
    updates = FakeUpdates()
    with started(NO_CREDENTIALS, of=FakeWorker(updates=updates)) as running:
        updates.append()
        tab.open(f"http://127.0.0.1:{running.port}/")
        told = "document.querySelector('#why').textContent"
        tab.wait_for(f"{told}.endsWith('. Changes: offset 1 of 1.')")
        updates.is_held, updates.staleness_s, updates.problem = True, 0.25, "the database is away"
        updates.append(changes=1200)
        behind = "offset 1 of 2, 1,200 changes and 0.250 s behind. The log cannot be followed or written now."
        tab.wait_for(f"{told}.includes('{behind}')")


def test_the_page_tells_how_stale_stored_layers_are(tab: Browser, tmp_path: Path) -> None:
    never = RefreshBudget(rows=0, background_permille=0)
    scene = Scene(tmp_path, never)
    scene.change(4)
    (layer,) = scene.living.refreshing.layers
    table = service().spec.routing_table(scene.served.manifest.revision)
    with started(NO_CREDENTIALS) as running:
        running.served.switch(scene.served, msgspec.structs.replace(table, refresh=never), 0.0)
        tab.open(f"http://127.0.0.1:{running.port}/")
        told = f" Stored layers: {layer.rows.count} rows are stale; their estimated errors add up to "
        tab.wait_for(f"document.querySelector('#why').textContent.includes('{told}')")


def test_the_page_tells_how_edges_of_changes_count(tab: Browser) -> None:
    rules = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
    with started(NO_CREDENTIALS, of=FakeWorker(edge_rules=rules)) as running:
        tab.open(f"http://127.0.0.1:{running.port}/")
        tab.wait_for(
            "document.querySelector('#why').textContent.includes(' Edges: Undirected; repeated ones count each.')"
        )


def test_the_page_tells_what_is_assumed_of_weights_that_were_trained_elsewhere(tab: Browser) -> None:
    with started(NO_CREDENTIALS, of=FakeWorker(assumptions={"activation": "ReLU", "residual": "none"})) as running:
        tab.open(f"http://127.0.0.1:{running.port}/")
        assumed = " Assumed of the weights, which were trained elsewhere: activation ReLU; residual none. Not compared"
        tab.wait_for(f"document.querySelector('#why').textContent.includes('{assumed}')")


def test_the_page_shows_accuracy_in_service_beside_the_profile(tab: Browser, tmp_path: Path) -> None:
    writing = "writing-0123456789ab"
    (tmp_path / "writing").write_text(writing)
    with started(Credentials(write_tokens=tmp_path / "writing")) as running:
        url = f"http://127.0.0.1:{running.port}"
        nodes = [*range(40)]
        body = {"nodes": nodes, "labels": [CLASSES[node % 4] if node % 4 else CLASSES[1] for node in nodes]}
        answer = httpx.post(f"{url}/v1/labels", json=body, headers={"authorization": f"Bearer {writing}"})
        assert answer.json()["accepted"] == 40
        tab.open(url + "/")
        tab.wait_for("document.querySelector('#rows').textContent.includes('75.0 (')")
        assert "In service: by the last 40 labels that clients sent, the same for all;" in tab.text("#caption")


# Many variants, some of which do not follow changes


_NAMES = (
    *("x1", "x1-int8", "x2", "x2-int8", "projected", "projected-int8", "stored1", "stored1-int8", "stored2"),
    *("stored2-int8", "mlp0", "mlp0-int8", "mlp1", "mlp1-int8"),
    *("mlp0-then-x1-p5", "mlp0-then-x1-p20", "mlp0-then-x1-p60"),
)
_FIXED = ("stored2", "stored2-int8", "mlp1", "mlp1-int8")
MANY = msgspec.structs.replace(
    TRADE_OFF,
    metric="rocAuc",
    variants=tuple(
        msgspec.structs.replace(
            variant("x1", 0.79 - place // 10 * 0.1 - place % 3 * 1e-3, 0.03 + place % 4 * 0.02), name=name
        )
        for place, name in enumerate(_NAMES)
    ),
)
"""In the picture most lie beside or upon each other."""
_OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll('#plot-frontier text.name')].map((one) => one.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b))).length;
})()"""


@pytest.fixture(scope="module")
def many() -> Iterator[str]:
    """Address of a page of 17 variants, of which four do not follow the changes of the graph."""
    worker = FakeWorker(profile=without_overlays(MANY, *_FIXED), updates=FakeUpdates())
    with started(NO_CREDENTIALS, of=worker) as running:
        yield f"http://127.0.0.1:{running.port}/"


@pytest.mark.parametrize("width", [390, 820, 1300])
def test_names_of_many_variants_do_not_overlap_and_tables_are_whole(tab: Browser, many: str, width: int) -> None:
    tab.resize(width)
    tab.open(many)
    tab.wait_for("document.querySelectorAll('#rows tr').length === 17")
    assert tab.evaluate(_OVERLAPS) == 0
    assert tab.evaluate("document.querySelectorAll('#plot-frontier text.name').length") >= 3
    assert tab.evaluate("document.querySelectorAll('#plot-frontier circle title').length") == 17 - len(_FIXED)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    if width == 1300:
        assert tab.evaluate(
            "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.querySelector('.scroll'))"
        )


def test_variants_that_follow_no_changes_come_last_and_are_nowhere_drawn(tab: Browser, many: str) -> None:
    tab.open(many)
    tab.wait_for("document.querySelectorAll('#rows tr').length === 17")
    rows = [row.split() for row in tab.text("#rows").splitlines() if row.strip()]
    assert {row[0] for row in rows[-4:]} == {*_FIXED}
    assert all(" ".join(row[1:4]) == "(follows no changes)" for row in rows[-4:])
    assert not any("(beyond" in row for row in rows)
    for id_ in ("keys-shares", "plot-frontier"):
        assert not any(f"{name} " in tab.text(f"#{id_}") for name in _FIXED)
    assert "Test and validation: ROC-AUC." in tab.text("#caption")
    assert "ROC-AUC, test split; x1 has 79.00 %" in tab.text("#accuracy-of")
