"""The report's page in real Chromium: it fits, can be read, asks for nothing and complains of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pages.browser import Browser, browser
from tests.support.pages.contrasts import CONTRASTS
from tests.support.pages.reports import page_of


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as tab:
        yield tab


def open_case(tab: Browser, folder: Path, case: str) -> None:
    file = folder / "report.html"
    file.write_text(page_of(case), encoding="utf-8")
    tab.open("about:blank")
    tab.events.clear()
    tab.open(file.as_uri())
    tab.wait_for("document.readyState === 'complete' && document.querySelector('footer') !== null")


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("case", ["five widths", "seventeen variants"])
def test_the_page_fits_and_can_be_read(chromium: Browser, tmp_path: Path, case: str, scheme: str, width: int) -> None:
    chromium.resize(width)
    chromium.prefer(scheme)
    open_case(chromium, tmp_path, case)
    assert chromium.complaints() == []
    assert {url.partition(":")[0] for url in chromium.requested()} <= {"file", "about"}
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = chromium.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [entry for entry in contrasts if entry["ratio"] < 4.5] == []
    # One of the two drawings of a figure, and no text of it smaller than 9 px.
    kind = "wide" if width > 640 else "narrow"
    shown = (
        "[...document.querySelectorAll('svg')].filter((svg) => svg.getClientRects().length)"
        ".map((svg) => svg.classList[0])"
    )
    assert set(chromium.evaluate(shown)) == {kind}
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg text')].filter((text) => text.getClientRects().length)"
        ".map((text) => text.getBoundingClientRect().height))"
    )
    assert chromium.evaluate(smallest) > 9


@pytest.mark.campaign
@pytest.mark.parametrize("case", ["seventeen variants", "drift", "one variant"])
@pytest.mark.parametrize("width", [1200, 390])
def test_texts_of_a_drawing_lie_beside_each_other(chromium: Browser, tmp_path: Path, case: str, width: int) -> None:
    chromium.resize(width)
    open_case(chromium, tmp_path, case)
    assert chromium.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("case", ["seventeen variants", "links"])
def test_tables_of_variants_are_whole_on_a_wide_screen(chromium: Browser, tmp_path: Path, case: str) -> None:
    chromium.resize(1300)
    open_case(chromium, tmp_path, case)
    cut = (
        "[...document.querySelectorAll('#accuracy .scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    )
    assert chromium.evaluate(cut) == 0


OVERLAPS = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    if (!svg.getClientRects().length) continue;
    const edge = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")]
      .map((text) => ({said: text.textContent, box: text.getBoundingClientRect()}));
    texts.forEach(({said, box}, index) => {
      if (box.left < edge.left - 3 || box.right > edge.right + 3) found.push(`${said} leaves its drawing`);
      for (const other of texts.slice(index + 1)) {
        const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
        const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
        if (wide > 2 && high > 4) found.push(`${said} lies on ${other.said}`);
      }
    });
  }
  return found;
})()"""
