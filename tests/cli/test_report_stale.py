"""What a report says of stored layers that may be stale."""

from __future__ import annotations

import pytest
from tests.support.pages.report_pages import printed, report_of
from tests.support.pages.reports import CASES, page_of, stale_changes, stale_layers, subject_of

from gnnserve_api.files.profile import StaleChanges

HEADING = "Stored layers that may be stale"


def test_the_worst_changes_are_told_with_what_a_part_of_the_rows_takes_away() -> None:
    (layer,) = report_of(CASES["stale layers"]()).stale_layers
    assert layer.pays
    assert layer.says == (
        "Rows of layer 2, which stored2 reads, may be stale with `spec.updates.refresh`. A request for one takes "
        "0.0180 ms where none is, and 5.90 ms over whole neighbourhoods by x1. After new nodes came, 30.00 % of 256 "
        "answers differ from exact ones; 5.00 % with 20 % of the stale rows that are read made anew, 3.0 a request, in "
        "0.100 ms; 0.00 % with all of them, in 0.300 ms. A budget pays here."
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (stale_changes("edges", 0.01, 0.0, 0.0, 0.0, 0.0), "no answer differed, so that the background"),
        (stale_changes("edges", 0.2, 0.05, 0.04, 0.03, 0.0), "take away less than half of what differs"),
        (
            stale_changes("edges", 0.05, 0.02, 0.01, 0.004, 0.0, part_ms=0.3),
            "x1 is as accurate as far as can be told, never stale",
        ),
    ],
    ids=["nothing differs", "a part helps little", "an exact variant is faster"],
)
def test_where_a_budget_does_not_pay_the_report_says_why(changes: StaleChanges, reason: str) -> None:
    (layer,) = report_of(stale_layers(changes)).stale_layers
    assert not layer.pays
    assert f"A budget does not pay here: {reason}" in layer.says.replace("the rows with the largest estimates ", "")


def test_less_accurate_variants_are_no_reason_against_a_budget() -> None:
    slow = stale_changes("edges", 0.05, 0.02, 0.01, 0.004, 0.0, part_ms=0.3)
    (layer,) = report_of(stale_layers(slow, accuracy=0.999, nodes=100_000)).stale_layers
    assert layer.pays


def test_page_and_terminal_show_every_point() -> None:
    page, text = page_of("stale layers"), printed(report_of(CASES["stale layers"]()))
    for shown in (page, text):
        assert HEADING in shown
        for name in ("1 % of the edges", "5 % of the edges", "20 % of the edges", "new nodes"):
            assert name in shown
    assert "Differing answers against rows made anew: 1 % of the edges: 0.20 %, 0.20 %, 0.00 %, 0.00 %; " in page
    assert 'href="#stale"' in page


def test_changes_of_a_large_graph_are_told_as_they_were() -> None:
    """The time for them was over before a hundredth of the edges had come."""
    (layer,) = report_of(stale_layers(stale_changes("edges", 0.0012, 0.02, 0.01, 0.004, 0.0))).stale_layers
    assert "After 0.12 % of the edges came" in layer.says


def test_a_profile_without_such_layers_says_nothing_of_them() -> None:
    assert report_of(subject_of()).stale_layers == ()
    assert HEADING not in printed(report_of(subject_of()))
    assert 'href="#stale"' not in page_of("one variant")
