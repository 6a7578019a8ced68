"""Pages that are written from results: docs/benchmarks.md whole, and the figures that README.md quotes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.frontier_picture import VARIANTS, draw_frontier
from benchmarks.dependencies import History, NoHistoryError
from benchmarks.page import figures
from benchmarks.page.figure_blocks import RENDERERS, Results
from benchmarks.page.figures import differences
from benchmarks.page.page import (
    ABOUT,
    GROUPS,
    INTRODUCTION,
    read_about,
    render_machines,
    render_misses,
    render_page,
    render_section,
)
from benchmarks.page.summary_figures import QUOTES, fill_summary, render_summary
from tests.support.pages.pages import ROOT, anchors, links

from gnnserve_api.tiers import Point, frontier

COMMITTED = Results().names()
LISTED = [name for names in GROUPS.values() for name in names]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PARTS = re.search(r"^PARTS = .*$", MAKEFILE, re.MULTILINE)[0]  # type: ignore[index]
FIRST, SECOND = "a" * 40, "b" * 40
EPYC = {"cpu": "AMD EPYC", "cores": 2, "memoryGiB": 23.5}
GOWALLA = {"recall@20": 0.2, "published": {"recall@20": 0.1}}
LASTFM = {"auc": 0.96, "MAGNN": {"auc": 0.99}}


def record(found: Any, commit: str | None = FIRST, depends: tuple[str, ...] = ("worker/links",)) -> dict[str, Any]:
    return {
        "commit": {"id": commit, "dirty": False},
        "date": "2026-11-26T01:00:00+00:00",
        "machine": EPYC,
        "versions": {},
        "duration_s": 90.0,
        "depends": list(depends),
        "found": found,
    }


def write_links(folder: Path, verdicts: dict[str, Any] | None = None, **parts: dict[str, Any]) -> Results:
    result = {"benchmark": "links", "parts": parts, "verdicts": verdicts or {}}
    (folder / "links.json").write_text(json.dumps(result))
    return Results(folder)


def history(touching: int = 0, *, path: str = "worker/links/pairs.py") -> History:
    """So many commits after the second one touch a path; the first one is older."""
    touched = [(f"{number:040}", frozenset({path})) for number in range(touching)]
    return History([*touched, (SECOND, frozenset({"README.md"})), (FIRST, frozenset({"README.md"}))])


# What the page has


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_result_is_rendered(name: str) -> None:
    assert name in LISTED
    assert RENDERERS[name](Results()[name]).strip()


@pytest.mark.parametrize("name", LISTED)
def test_a_section_begins_with_its_target_and_its_question(name: str) -> None:
    target, told = re.fullmatch(r"`make ([\w-]+)`(.*)", read_about(name).text.partition("\n\n")[0], re.DOTALL).groups()  # type: ignore[union-attr]
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    assert told.rstrip().endswith("?")
    understood = recipe[1].replace("$(PARTS)", PARTS)
    for variable in re.findall(r"`([A-Z]+)=", told):
        assert f"$({variable})" in understood, variable


def test_every_benchmark_says_how_it_measures_and_nothing_else_does() -> None:
    assert sorted(path.stem for path in ABOUT.glob("*.md")) == sorted([*LISTED, INTRODUCTION])


@pytest.mark.parametrize("path", sorted(ABOUT.glob("*.md")), ids=lambda path: path.stem)
def test_what_is_written_by_hand_says_nothing_of_a_run(path: Path) -> None:
    assert not re.findall(r"20\d\d-\d\d-\d\d|\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b", path.read_text(encoding="utf-8"))


def test_titles_are_told_apart_and_links_within_the_page_lead_somewhere(tmp_path: Path) -> None:
    page = render_page(Results(tmp_path), history())
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert {anchor for file, anchor in links(page) if not file} <= anchors(page)


def test_what_was_not_run_yet_is_said(tmp_path: Path) -> None:
    assert render_section("links", Results(tmp_path), history()).endswith("Not run yet.")


def test_a_section_says_of_each_part_when_and_at_which_commit_it_was_measured(tmp_path: Path) -> None:
    results = write_links(tmp_path, gowalla=record({"gowalla": GOWALLA}), lastfm=record({"lastfm": LASTFM}, SECOND))
    section = render_section("links", results, history(3))
    assert section.endswith(
        "Measured: gowalla at aaaaaaa on 2026-11-26 (since then 3 commits); "
        "lastfm at bbbbbbb on 2026-11-26 (since then 3 commits)."
    )
    assert "| gowalla | recall@20 | 0.2000 | 0.1000 | LightGCN |" in section


def test_parts_of_one_run_are_not_told_apart(tmp_path: Path) -> None:
    results = write_links(tmp_path, gowalla=record({"gowalla": GOWALLA}), lastfm=record({"lastfm": LASTFM}))
    section = render_section("links", results, history(1))
    assert section.endswith("Measured at aaaaaaa on 2026-11-26 (since then 1 commit).")


def test_machines_are_those_of_the_parts(tmp_path: Path) -> None:
    other = {**record({"lastfm": LASTFM}), "machine": {**EPYC, "cpu": "Intel(R) Xeon(R)", "cores": 4}}
    results = write_links(tmp_path, gowalla=record({"gowalla": GOWALLA}), lastfm=other)
    assert render_machines(results).splitlines()[2:] == [
        "| AMD EPYC, 2 cores, 23.5 GiB | `links` (gowalla) |",
        "| Intel Xeon, 4 cores, 23.5 GiB | `links` (lastfm) |",
    ]


def test_all_misses_are_in_one_table_and_what_repeats_is_told_once_in_a_row(tmp_path: Path) -> None:
    missed = {"wanted": "at least 0.99 of all", "measured": 0.96384, "passed": False, "reason": "one relation is read"}
    met = {"wanted": "at least 0.1", "measured": 0.2, "passed": True}
    verdicts = {"lastfm auc": missed, "gowalla": met, "lastfm ap": missed, "one type": {**missed, "reason": ""}}
    results = write_links(tmp_path, verdicts, gowalla=record({}))
    assert render_misses(results).splitlines() == [
        "1 of 4 verdicts are met; these are not:",
        "",
        "|  | figure | wanted | measured | why, as far as it is known |",
        "| --- | --- | --- | --- | --- |",
        "| [Links](#links) | lastfm auc | at least 0.99 of all | 0.9638 | one relation is read |",
        "| [Links](#links) | lastfm ap | as above | 0.9638 | as above |",
        "| [Links](#links) | one type | as above | 0.9638 |  |",
    ]


# Ages


@pytest.mark.parametrize(
    ("part", "since", "words"),
    [
        (record({}), history(20), "20 commits"),
        (record({}), history(21), "21 commits, *old*"),
        (record({}), history(30, path="worker/pods/serve.py"), "0 commits"),
        (record({}, "c" * 40), history(), "? commits, *old*"),
        (record({}, None), history(), "? commits, *old*"),
        ({**record({}), "commit": None}, history(), "? commits, *old*"),
        (record({}, depends=()), history(), "? commits, *old*"),
    ],
    ids=["as many as may be", "one more", "elsewhere", "of another history", "no commit", "nothing of it", "no paths"],
)
def test_a_part_is_old_after_20_commits_to_what_it_depends_on(
    part: dict[str, Any], since: History, words: str, tmp_path: Path
) -> None:
    assert render_section("links", write_links(tmp_path, gowalla=part), since).endswith(f"(since then {words}).")


def quote_gowalla(results: Results) -> tuple[str, str]:
    return "recall", f"{results['links']['gowalla']['recall@20']:.2f}"


def quote_both(results: Results) -> tuple[str, str]:
    return "both", f"{results['links']['gowalla']['recall@20']} {results['links']['lastfm']['auc']}"


def test_a_row_of_the_readme_is_as_old_as_the_parts_that_it_was_read_of(tmp_path: Path) -> None:
    gowalla = record({"gowalla": GOWALLA}, depends=("worker/other",))
    results = write_links(tmp_path, gowalla=gowalla, lastfm=record({"lastfm": LASTFM}, SECOND))
    assert render_summary(results, history(21), (quote_gowalla, quote_both)).splitlines() == [
        "| 2 cores of an AMD EPYC, load generator included |  | measured at |",
        "| --- | --- | --- |",
        "| recall | 0.20 | aaaaaaa, 2026-11-26 |",
        "| both | 0.2 0.96 | aaaaaaa, 2026-11-26; bbbbbbb, 2026-11-26, *old* |",
    ]


@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: quote.__name__)
def test_every_row_of_the_readme_is_of_some_part(quote: Any) -> None:
    results = Results()
    quote(results)
    assert results.parts_read()


def test_a_page_without_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 blocks"):
        fill_summary("# A page\n", Results(), history())


# Comparing


@pytest.mark.parametrize(
    ("name", "page", "fresh", "told"),
    [
        ("docs/benchmarks.md", "| x | 12 commits |\n", "| x | 13 commits |\n", []),
        ("docs/benchmarks.md", "| x | 1 commit |\n", "| x | 21 commits, *old* |\n", []),
        ("docs/benchmarks.md", "| 3.1 | 12 commits |\n", "| 3.2 | 12 commits |\n", ["is not what"]),
        ("README.md", "| 3.1 | aaaaaaa |\n", "| 3.1 | aaaaaaa |\n", []),
        ("README.md", "| 3.1 | aaaaaaa |\n", "| 3.1 | aaaaaaa, *old* |\n", ["quotes a figure that is old"]),
        ("README.md", "| 3.1 | aaaaaaa, *old* |\n", "| 3.2 | bbbbbbb |\n", ["is not what"]),
    ],
    ids=["more commits", "old on the page of all", "another figure", "the same", "old meanwhile", "measured anew"],
)
def test_pages_are_compared_but_for_what_every_commit_changes(
    name: str, page: str, fresh: str, told: list[str]
) -> None:
    assert [one.partition(name)[2].strip()[: len(words)] for one, words in zip(
        differences(name, page, fresh), told, strict=True)] == told  # fmt: skip


def test_without_a_history_nothing_is_written_and_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell() -> History:
        raise NoHistoryError("this clone has no history; `git fetch --unshallow` brings it")

    monkeypatch.setattr(figures, "history", tell)
    monkeypatch.setattr("sys.argv", ["figures"])
    with pytest.raises(SystemExit, match=r"how old figures are cannot be told: .* `git fetch --unshallow`"):
        figures.main()


# The picture


def test_the_line_of_the_picture_joins_variants_than_which_no_other_is_as_accurate_and_faster() -> None:
    points = [Point("slow", 90, 9), Point("equal", 90, 5), Point("worse", 80, 6), Point("fast", 70, 1)]
    assert [point.name for point in reversed(frontier(points))] == ["fast", "equal"]


def test_the_picture_has_every_variant_that_the_readme_explains() -> None:
    picture = draw_frontier(Results())
    assert [name for name in VARIANTS if f">{name}</text>" not in picture] == []
