"""What a profile may say: readers divide by its numbers and draw them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.profiles import profile

from gnnserve_api.files.profile import Profile


def test_a_profile_is_read_as_it_was_written() -> None:
    assert msgspec.json.decode(msgspec.json.encode(profile()), type=Profile) == profile()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p50Ms", 0), ("p50Ms", 1e308), ("p99Ms", 1e-300), ("sampleMs", -1), ("stdMs", -0.1), ("seeds", 0),
        ("gatheredBytes", -1), ("gatheredBytes", 2**60),
    ],
)  # fmt: skip
def test_times_and_counts_that_cannot_be_are_refused(name: str, value: float) -> None:
    told: dict[str, Any] = msgspec.to_builtins(profile())
    told["variants"][0]["latency"][0][name] = value
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert(told, Profile)


@pytest.mark.parametrize(
    ("name", "value"),
    [("columns", 0), ("factor", 0), ("validationAccuracy", 1.01), ("testAccuracy", -1), ("latency", [])],
)
def test_variants_that_cannot_be_are_refused(name: str, value: object) -> None:
    told: dict[str, Any] = msgspec.to_builtins(profile())
    told["variants"][0][name] = value
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert(told, Profile)


def test_what_took_no_measurable_time_or_read_nothing_is_allowed() -> None:
    told: dict[str, Any] = msgspec.to_builtins(profile())
    point: dict[str, Any] = told["variants"][0]["latency"][0]
    point.update(gatherMs=0, computeMs=0, windowP50Ms=0, gatheredBytes=0)
    msgspec.convert(told, Profile)
