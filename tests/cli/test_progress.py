"""Progress where nobody watches: a log wants few lines, each whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

from gnnserve_cli.progress import BarListener, LineListener
from gnnserve_worker.progress import Overall, Progress


def test_a_stage_is_logged_when_it_begins_when_it_ends_and_rarely_between() -> None:
    times = iter([0.0, 1.0, 9.9, 10.0, 10.5, 11.0, 12.0])
    stream = io.StringIO()
    listener = LineListener(stream, lambda: next(times))
    for done, detail in ((0, ""), (1, ""), (2, ""), (3, "validation 0.9"), (4, ""), (5, "validation 0.97")):
        listener(Progress("train x1", done, 5, detail))
    listener(Progress("profile", 0, 3))
    assert stream.getvalue().splitlines() == [
        "train x1: 0/5",
        "train x1: 3/5  validation 0.9",
        "train x1: 5/5  validation 0.97",
        "profile: 0/3",
    ]


def test_a_line_begins_with_how_far_all_steps_are() -> None:
    stream = io.StringIO()
    listener = LineListener(stream, lambda: 0.0)
    listener(Progress("train x1", 0, 5, overall=Overall(3, 9, 0.417, 130.0)))
    listener(Progress("publish", 1, 1, "r1", overall=Overall(9, 9, 1.0, 0.0)))
    assert stream.getvalue().splitlines() == [
        "[3/9, 41 %, 2 min left] train x1: 0/5",
        "[9/9, 100 %] publish: 1/1  r1",
    ]


def test_a_tenth_of_all_work_is_a_line_however_soon() -> None:
    stream = io.StringIO()
    listener = LineListener(stream, lambda: 0.0)
    for done, share in enumerate((0.5, 0.55, 0.62, 0.65, 0.75)):
        listener(Progress("profile", done, 29, overall=Overall(3, 9, share, 30.0)))
    assert [line.partition("profile: ")[2] for line in stream.getvalue().splitlines()] == ["0/29", "2/29", "4/29"]


def test_on_a_terminal_one_bar_is_of_all_steps() -> None:
    with Bars(console=Console(file=io.StringIO(), force_terminal=True, width=100)) as bars:
        listener = BarListener(bars)
        listener(Progress("train x1", 7, 30, overall=Overall(3, 9, 0.25, 130.0)))
        listener(Progress("train x2", 0, 30, overall=Overall(4, 9, 0.5, 80.0)))
        shown = [(task.description, task.percentage, task.fields["count"]) for task in bars.tasks]
        assert bars.tasks[0].fields["detail"] == "50 %, 1 min left"
    assert shown == [
        ("all steps", 50, "4/9"),
        ("train x1", pytest.approx(100 * 7 / 30), "7/30"),
        ("train x2", 0, "0/30"),
    ]


def test_on_a_terminal_every_stage_keeps_a_bar_of_its_own() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Bars(console=terminal) as bars:
        listener = BarListener(bars)
        listener(Progress("train x1", 30, 30, "validation 0.97"))
        listener(Progress("train x2", 0, 30))
        listener(Progress("train x2", 7, 30))
        shown = [(task.description, task.completed, task.total, task.fields["detail"]) for task in bars.tasks]
    assert shown == [("train x1", 30, 30, "validation 0.97"), ("train x2", 7, 30, "")]
