"""How far all steps of a generation are: the share never falls, and time left follows what steps took."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnserve_worker.progress import Overall, OverallProgress, Progress, Step, StepEstimate, says_left

STEPS = (
    Step("import graph", "import", 10), Step("train x1", "train", 40), Step("train x2", "train", 20),
    Step("profile", "profile", 30),
)  # fmt: skip


def heard(*reports: tuple[float, Progress], steps: tuple[Step, ...] = STEPS) -> list[Overall]:
    estimate = StepEstimate(0.0)
    estimate.expect(steps)
    return [estimate.hear(progress, now_s) for now_s, progress in reports]


def test_the_share_is_that_of_the_work_that_was_guessed() -> None:
    found = heard(
        (0, Progress("import graph", 0, 1)),
        (10, Progress("import graph", 1, 1)),
        (20, Progress("train x1", 10, 40)),
        (50, Progress("train x1", 40, 40)),
    )
    assert [each.share for each in found] == pytest.approx([0, 0.1, 0.2, 0.5])
    assert [(each.step, each.steps) for each in found] == [(1, 4), (1, 4), (2, 4), (2, 4)]
    assert found[-1].left_s == pytest.approx(50)
    assert found[-1].said() == "2/4, 50 %, 50 s left"


def test_steps_of_a_kind_are_corrected_by_what_others_of_it_took() -> None:
    found = heard(
        (0, Progress("import graph", 0, 1)),
        (10, Progress("import graph", 1, 1)),
        (100, Progress("train x1", 20, 40)),
        (210, Progress("train x1", 40, 40)),  # 200 s in place of 40
    )
    assert found[-1].left_s == pytest.approx(202 / 42 * 20 + 30)
    assert found[2].left_s > 0.5 * 90  # by its own pace already


def test_a_short_step_that_took_longer_says_little_of_a_long_one() -> None:
    tables = (Step("write tables", "write", 0.0), Step("write more", "write", 60.0))
    found = heard((0, Progress("write tables", 0, 1)), (3, Progress("write tables", 1, 1)), steps=tables)
    assert 60 < found[-1].left_s < 180


def test_steps_that_become_expected_later_take_nothing_back() -> None:
    more = (*(Step(f"train x{k}", "train", 500) for k in (4, 8)), Step("publish", "publish", 1))
    found = heard(
        (0, Progress("import graph", 0, 1)),
        (60, Progress("train x1", 40, 40)),
        (61, Progress("predict latencies", 1, 1, expected=more)),
        (90, Progress("train x4", 1, 2)),
        (120, Progress("train x8", 1, 1)),
    )
    shares = [each.share for each in found]
    assert shares[1] == shares[2] == pytest.approx(0.5)
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] < 1


def test_what_an_interrupted_generation_has_trained_says_nothing_of_other_trainings() -> None:
    found = heard((10, Progress("import graph", 1, 1)), (10, Progress("train x1", 30, 30, "trained before")))
    assert found[-1].left_s == pytest.approx(20 + 30)


def test_a_training_that_grows_longer_goes_not_back() -> None:
    found = heard((1, Progress("train x1", 149, 150)), (2, Progress("train x1", 150, 300)))
    assert found[0].share == found[1].share


def test_a_stage_that_is_no_step_changes_nothing() -> None:
    found = heard((1, Progress("import graph", 0, 1)), (2, Progress("read files", 3, 5)))
    assert found[0].share == found[1].share == 0


REPORTS = st.lists(
    st.tuples(st.sampled_from([step.stage for step in STEPS]), st.integers(0, 9), st.integers(1, 9), st.booleans())
)


@given(REPORTS)
def test_the_share_never_falls_and_only_the_end_is_all(reports: list[tuple[str, int, int, bool]]) -> None:
    said: list[Progress] = []
    clock = iter(range(1000))
    listener = OverallProgress(said.append, lambda: float(next(clock)), (*STEPS, Step("publish", "publish", 1)))
    for stage, done, total, is_new in reports:
        listener(Progress(stage, done, total, expected=(*STEPS[1:], Step("publish", "publish", 9)) if is_new else None))
    listener.finish("publish", "r1")
    found = [each.overall for each in said if each.overall is not None]
    assert all(one.share <= other.share < 1 for one, other in pairwise(found[:-1]))
    assert found[-1].share == 1
    assert found[-1].said().endswith("100 %")
    assert all(each.left_s > 0 for each in found[:-1])


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s left"), (7, "7 s left"), (43, "45 s left"), (130, "2 min left"), (5_400, "1.5 h left")],
)
def test_time_left_is_said_as_roughly_as_it_is_known(seconds: float, said: str) -> None:
    assert says_left(seconds) == said
