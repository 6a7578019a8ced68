"""What a search keeps of measured variants, and how it says so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.profiles import latency

from gnnserve_api.families import point_of
from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.files.search import SearchedVariant
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.profile import dominates
from gnnserve_worker.generation.search.selection import Areas, select

LEAST = 0.5


def variant(name: str, accuracy: float, *p50s_ms: float, family: str = "pruned") -> VariantProfile:
    return VariantProfile(
        name=name, factor=1, table="t", columns=1, storage=Storage.FLOAT32, projected=False, compute="float32",
        validation_accuracy=accuracy, test_accuracy=None, test_latency=None, size_bytes=1, memory_bytes=1,
        latency=tuple(latency(10**i, p50_ms) for i, p50_ms in enumerate(p50s_ms)), family=family,
    )  # fmt: skip


def verdicts(*variants: VariantProfile, most: int = 8) -> dict[str, SearchedVariant]:
    return {verdict.name: verdict for verdict in select(variants, LEAST, most)}


def kept(*variants: VariantProfile, most: int = 8) -> list[str]:
    return [verdict.name for verdict in select(variants, LEAST, most) if verdict.is_kept]


def test_the_area_of_a_size_is_that_of_all_rectangles_together() -> None:
    slow, fast = variant("slow", 0.9, math.e**2), variant("fast", 0.7, 1.0)
    areas = Areas.over([slow, fast], LEAST)
    assert areas.of([slow]) == 0  # the slowest begins the area
    assert areas.of([fast]) == pytest.approx(2 * 0.2)
    middle = variant("middle", 0.8, math.e)
    assert areas.of([fast, middle, slow]) == pytest.approx(2 * 0.2 + 1 * 0.1)
    assert areas.added_by(middle, [fast]) == pytest.approx(0.1 / 0.5)


def test_what_is_beaten_at_every_size_goes_and_says_by_whom() -> None:
    found = verdicts(variant("x1", 0.9, 4, 40), variant("x2", 0.91, 2, 10), variant("x4", 0.6, 1, 5))
    assert [verdict.name for verdict in found.values() if verdict.is_kept] == ["x2", "x4"]
    assert found["x1"].beaten_by == ("x2",)
    assert found["x1"].why == "x2 is 1.00 points more accurate and 2 to 4 times as fast"
    assert found["x2"].why == "the most accurate that answers requests with an overlay and embeddings"
    assert found["x4"].why.endswith("is as accurate and as fast at 1 and 10 nodes: 14 % of the area")


def test_one_ratio_is_said_once_and_none_where_nothing_is_faster() -> None:
    known = variant("x1", 0.9, 1, 10), variant("x2", 0.8, 0.1, 1)
    assert verdicts(*known, variant("v", 0.9, 2, 20))["v"].why == "x1 is as accurate and 2 times as fast"
    assert verdicts(*known, variant("v", 0.89, 1, 10))["v"].why == "x1 is 1.00 points more accurate and as fast"


def test_what_another_one_beats_at_each_size_goes() -> None:
    found = verdicts(variant("small", 0.9, 1, 20), variant("large", 0.9, 2, 10), variant("neither", 0.9, 2, 20), most=2)
    assert not found["neither"].is_kept
    assert found["neither"].beaten_by == ("large",)
    between = verdicts(
        variant("small", 0.9, 1, 20), variant("large", 0.9, 3, 10), variant("neither", 0.9, 2, 15), most=3
    )
    assert between["neither"].beaten_by == ("small", "large")
    assert between["neither"].why == "as accurate and as fast, by number of nodes: small at 1, large at 10"


def test_a_variant_that_answers_everything_stays_though_it_is_beaten() -> None:
    found = verdicts(
        variant("projected", 0.9, 4, 40),
        variant("projected-int8", 0.89, 3, 30),
        variant("projected-bfloat16", 0.88, 5, 31),
        variant("stored1", 0.92, 1, 10, family="stored"),
        variant("stored1-int8", 0.91, 2, 11, family="stored"),
    )
    stays = ["projected", "projected-int8", "stored1"]
    assert [name for name, verdict in found.items() if verdict.is_kept] == stays
    assert found["stored1-int8"].beaten_by == ("stored1",)
    assert found["projected-bfloat16"].beaten_by == ("projected-int8",)  # stored1 cannot answer all that it can
    assert found["projected-int8"].why.startswith("no other that answers requests with an overlay and embeddings is as")


def test_what_each_can_answer_alone_stays_where_none_can_answer_all() -> None:
    names = kept(
        variant("stored1", 0.9, 4, family="stored"),
        variant("stored2", 0.95, 1, family="stored-deeper"),
        variant("sgc", 0.8, 2, family="propagated"),
    )
    assert names == ["stored1", "stored2", "sgc"]


# One that holds the graph as it was generated, one that follows changes alone, and one that answers everything.
STANDING, FOLLOWING, WHOLE = "stored-deeper", "stored-deeper-following", "pruned"


def test_beside_what_holds_the_graph_as_it_was_the_best_that_follows_changes_stays() -> None:
    found = verdicts(
        variant("stored2", 0.95, 1, family=STANDING),
        variant("stored1", 0.94, 2, family=FOLLOWING),
        variant("x1", 0.90, 4, family=WHOLE),
    )
    assert {name: verdict.why for name, verdict in found.items() if verdict.is_kept} == {
        "stored2": "the most accurate of all",
        "stored1": "the most accurate that follows changes of the graph",
        "x1": "the most accurate that answers requests with an overlay and embeddings",
    }


def test_what_holds_the_graph_as_it_was_beats_nothing_that_follows_changes() -> None:
    found = verdicts(
        variant("stored2", 0.95, 1, family=STANDING),
        variant("stored1", 0.92, 9, family=FOLLOWING),
        variant("stored1-int8", 0.91, 2, family=FOLLOWING),
        variant("stored1-float16", 0.91, 9, family=FOLLOWING),
        variant("x1", 0.90, 10, family=WHOLE),
    )
    assert found["stored1-int8"].is_kept
    assert found["stored1-int8"].why.startswith("no other that follows changes of the graph is as accurate and as fast")
    assert found["stored1-float16"].beaten_by == ("stored1-int8",)


@given(
    st.lists(
        st.tuples(st.floats(0.5, 1), st.floats(0.1, 100), st.sampled_from([STANDING, FOLLOWING, WHOLE])),
        min_size=1,
        max_size=12,
    ),
    st.integers(3, 8),
)
def test_the_best_that_is_kept_and_follows_changes_is_the_best_that_does(
    drawn: list[tuple[float, float, str]], most: int
) -> None:
    variants = [variant(f"v{i}", accuracy, ms, family=family) for i, (accuracy, ms, family) in enumerate(drawn)]
    names = kept(*variants, most=most)
    able = [one for one in variants if point_of(one).capabilities.changes]
    best = max((one.validation_accuracy for one in able), default=None)
    assert best == max((one.validation_accuracy for one in able if one.name in names), default=None)


def test_the_budget_keeps_those_that_add_most() -> None:
    variants = [variant(f"x{k}", 0.9 - 0.01 * k, 100 / k) for k in (1, 2, 4, 8, 16)]
    assert kept(*variants) == ["x1", "x2", "x4", "x8", "x16"]
    assert kept(*variants, most=1) == ["x1"]
    found = verdicts(*variants, most=3)
    assert [name for name, verdict in found.items() if verdict.is_kept] == ["x1", "x8", "x16"]
    assert found["x2"].why.endswith("less than each that is kept (budget.variants: 3)")
    assert found["x2"].beaten_by == ()


def test_what_adds_next_to_nothing_goes_though_the_budget_has_room() -> None:
    found = verdicts(variant("x1", 0.9, 10), variant("x2", 0.8, 1), variant("x4", 0.7999, 0.9999))
    assert not found["x4"].is_kept
    assert found["x4"].why == "it would add less than 0.1 % of the area"


NODES = 2_131


def right(hits: int, *, from_node: int = 0) -> np.ndarray:
    found = np.zeros(NODES, np.int64)
    found[from_node : from_node + hits] = 1
    return found


def told(better: int, only_other: int, nodes: int = NODES) -> list[str]:
    """Names that are kept of a slow and a fast variant, of which so many nodes are right by one alone."""
    slow = variant("slow", 0.9 + (better - only_other) / nodes, 20)
    others = variant("fast", 0.9, 2), variant("fastest", 0.6, 1)
    labels = {"slow": right(1_900), "fast": right(1_900 - better + only_other, from_node=better), "fastest": right(900)}
    return [each.name for each in select((slow, *others), LEAST, 8, labels) if each.is_kept]


def test_one_node_of_thousands_decides_for_nobody_and_the_faster_stays() -> None:
    assert told(1, 0) == ["fast", "fastest"]
    assert told(40, 30) == ["fast", "fastest"]


def test_what_the_validation_nodes_tell_to_be_better_stays() -> None:
    assert told(20, 2) == ["slow", "fast", "fastest"]


def test_a_tie_is_said_with_what_was_measured() -> None:
    slow, fast = variant("slow", 0.9 + 1 / NODES, 20), variant("fast", 0.9, 2)
    labels = {"slow": right(1_919), "fast": right(1_918)}
    found = {each.name: each for each in select((slow, fast), LEAST, 8, labels)}
    assert found["fast"].why.startswith("the most accurate that answers")
    assert (
        found["slow"].why
        == "fast is as accurate as far as the validation nodes tell (-0.05 points) and 10 times as fast"
    )
    assert found["slow"].beaten_by == ("fast",)


FAMILIES = st.sampled_from(["pruned", "stored", "stored-deeper"])
VARIANTS = st.lists(
    st.builds(
        lambda accuracy, small, large, family: (accuracy, small, large, family),
        st.sampled_from([0.4, 0.6, 0.8, 0.9]),
        st.floats(0.01, 10),
        st.floats(0.1, 100),
        FAMILIES,
    ),
    min_size=1,
    max_size=12,
).map(lambda made: [variant(f"v{i}", a, s, b, family=f) for i, (a, s, b, f) in enumerate(made)])


@given(VARIANTS, st.integers(1, 16))
def test_every_variant_gets_one_verdict_within_the_budget(variants: list[VariantProfile], most: int) -> None:
    found = select(variants, LEAST, most)
    assert {verdict.name for verdict in found} == {each.name for each in variants}
    assert 1 <= sum(verdict.is_kept for verdict in found) <= most
    assert all(verdict.why and len(verdict.why) <= 400 for verdict in found)
    stays = {verdict.name for verdict in found if verdict.is_kept}
    assert all({*verdict.beaten_by} <= stays for verdict in found)


@given(VARIANTS)
def test_with_room_for_all_the_best_stays_and_someone_answers_everything(variants: list[VariantProfile]) -> None:
    stays = [each for each in variants if each.name in kept(*variants, most=16)]
    assert max(each.validation_accuracy for each in stays) == max(each.validation_accuracy for each in variants)
    for each in variants:
        assert any(point_of(other).capabilities.cover(point_of(each).capabilities) for other in stays)
    best = max(variants, key=lambda each: each.validation_accuracy)
    assert not any(dominates(best, each) and each.validation_accuracy > best.validation_accuracy for each in stays)
