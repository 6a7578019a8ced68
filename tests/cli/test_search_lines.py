"""What a search kept, and why, stands in the tables, in the report and on its page."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from rich.console import Console
from tests.support.pages.reports import subject_of
from tests.support.profiles import variant

from gnnserve_api.domination import says_dominated
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.search import SearchedVariant, SearchRecord
from gnnserve_cli.render import search_lines
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.data import Report
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.terminal import SEARCH_HEADING, render_report

RECORD = SearchRecord(
    seconds=12.3,
    variants=(
        SearchedVariant(name="x1", is_kept=True, why="the most accurate of all"),
        SearchedVariant(name="x2", is_kept=False, why="x1 is <faster>", beaten_by=("x1",)),
    ),
)


def searched() -> ReportSubject:
    subject = subject_of(variant(1), variant(4))
    return replace(subject, profile=msgspec.structs.replace(subject.profile, search=RECORD))


def report_of(subject: ReportSubject) -> Report:
    return build_report(subject, "gnnserve test")


def shown(*renderables: object) -> str:
    console = Console(width=200, highlight=False, markup=False, file=None)
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    return captured.get()


def test_tables_are_followed_by_a_line_for_each_variant() -> None:
    text = shown(*search_lines(searched().profile))
    assert "The search kept 1 (+) of 2 variants, in 12 s:" in text
    assert "+ x1: the most accurate of all\n- x2: x1 is <faster>\n" in text
    assert search_lines(subject_of(variant(1)).profile) == []


def test_the_report_has_the_same_lines() -> None:
    report = report_of(searched())
    assert report.search == RECORD.lines()
    assert SEARCH_HEADING in (text := shown(*render_report(report)))
    assert "- x2: x1 is <faster>" in text
    page = build_page(report)
    assert SEARCH_HEADING in page
    assert "- x2: x1 is &lt;faster&gt;" in page


def test_a_report_of_listed_variants_says_nothing_of_a_search() -> None:
    report = report_of(subject_of(variant(1), variant(4)))
    assert report.search == ()
    assert SEARCH_HEADING not in build_page(report)
    assert SEARCH_HEADING not in shown(*render_report(report))


def test_profiles_of_earlier_versions_have_no_search() -> None:
    profile = subject_of(variant(1)).profile
    older = {key: value for key, value in msgspec.to_builtins(profile).items() if key != "search"}
    assert msgspec.convert(older, Profile).search is None


def test_what_a_search_kept_is_not_advised_against() -> None:
    profile = subject_of(variant(1), variant(2, p50_ms=2.0), variant(1, 32, projected=True, p50_ms=0.1)).profile
    assert says_dominated(profile, 64) is not None
    assert says_dominated(msgspec.structs.replace(profile, search=RECORD), 64) is None
