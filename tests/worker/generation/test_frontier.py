"""Projected variants stay where nothing else is as accurate and as fast; listed ones stay always."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.profiles import latency

from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.profile import dominates, worth_keeping


def variant(name: str, accuracy: float, *p50s_ms: float, projected: bool = False) -> VariantProfile:
    return VariantProfile(
        name=name, factor=1, table="t", columns=1, storage=Storage.FLOAT32, projected=projected, compute="float32",
        validation_accuracy=accuracy, test_accuracy=None, test_latency=None, size_bytes=1, memory_bytes=1,
        latency=tuple(latency(10**i, p50_ms) for i, p50_ms in enumerate(p50s_ms)),
    )  # fmt: skip


def kept(*variants: VariantProfile) -> list[str]:
    return [found.name for found in worth_keeping(variants)]


@pytest.mark.parametrize(
    ("listed", "stays"),
    [
        pytest.param(variant("x1", 0.9, 2, 20), True, id="faster at the same accuracy"),
        pytest.param(variant("x8", 0.8, 0.1, 1), True, id="more accurate than what is faster"),
        pytest.param(variant("x1", 0.9, 0.5, 20), True, id="faster at one size"),
        pytest.param(variant("x1", 0.9, 1, 10), True, id="equal in everything"),
        pytest.param(variant("x1", 0.9, 1, 9), False, id="as accurate and nowhere faster"),
        pytest.param(variant("x2", 0.91, 1, 10), False, id="as fast and less accurate"),
        pytest.param(variant("x2", 0.91, 0.9, 9), False, id="worse in everything"),
    ],
)
def test_a_projected_variant_stays_where_no_other_is_as_accurate_and_as_fast(
    listed: VariantProfile, stays: bool
) -> None:
    assert kept(listed, variant("projected", 0.9, 1, 10, projected=True)) == [
        listed.name,
        *(["projected"] if stays else []),
    ]


def test_listed_variants_stay_however_bad_they_are() -> None:
    assert kept(variant("x1", 0.9, 5), variant("x8", 0.1, 9), variant("projected", 0.9, 1, projected=True)) == [
        "x1",
        "x8",
        "projected",
    ]


def test_of_projected_variants_the_better_storage_stays() -> None:
    assert kept(
        variant("x1", 0.9, 5),
        variant("projected", 0.9, 2, projected=True),
        variant("projected-bfloat16", 0.9, 1, projected=True),
        variant("projected-int8", 0.89, 0.5, projected=True),
    ) == ["x1", "projected-bfloat16", "projected-int8"]


PROFILES = st.lists(
    st.builds(
        lambda accuracy, fast, slow, projected: variant("v", accuracy, fast, slow, projected=projected),
        st.sampled_from([0.8, 0.9]),
        st.sampled_from([1.0, 2.0]),
        st.sampled_from([10.0, 20.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [msgspec.structs.replace(v, name=f"v{i}") for i, v in enumerate(found)])


@given(PROFILES)
def test_for_everything_that_goes_something_better_stays(variants: list[VariantProfile]) -> None:
    stays = worth_keeping(variants)

    assert stays
    assert worth_keeping(stays) == stays
    for gone in set(variants) - set(stays):
        assert gone.projected
        assert any(dominates(better, gone) for better in stays)
