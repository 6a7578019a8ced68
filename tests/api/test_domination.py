"""Where projected variants leave the pruned ones nothing to answer, it is said, and why."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.profiles import profile, variant

from gnnserve_api.domination import says_dominated, says_expected
from gnnserve_api.spec.service import GNNServiceSpec


def spec(**parts: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}, **parts})


def test_more_columns_than_hidden_units_are_said_before_training() -> None:
    assert says_expected(spec(), features=4714, classes=4) == (
        "projected will read 128 numbers a row, and x2, x4 and x8 2,357, 1,178 and 589: they are likely to be slower "
        "and less accurate. To train no more than is useful, use spec.variants.pruning.choice: Auto, or factors above "
        "36, which read less."
    )


def test_factors_that_read_less_are_kept() -> None:
    said = says_expected(spec(), features=745, classes=8)

    assert said is not None
    assert "and x2 and x4 372 and 186: they are likely" in said
    assert said.endswith("use spec.variants.pruning.choice: Auto.")


@pytest.mark.parametrize(
    ("parts", "features"),
    [
        pytest.param({}, 64, id="few columns"),
        pytest.param({"variants": {"projection": "Disabled"}}, 4714, id="no projected variants"),
        pytest.param({"variants": {"pruning": {"factors": [1]}}}, 4714, id="nothing is pruned"),
        pytest.param({"variants": {"pruning": {"choice": "Auto"}}}, 4714, id="generation chooses"),
        pytest.param({"variants": {"pruning": {"factors": [1, 2, 50, 100]}}}, 4714, id="most factors are large enough"),
    ],
)
def test_where_pruned_variants_read_less_nothing_is_expected(parts: dict[str, Any], features: int) -> None:
    assert says_expected(spec(**parts), features, classes=4) is None


def test_a_measured_profile_in_which_projected_wins_everywhere_is_said_with_the_reason() -> None:
    measured = profile(
        *(variant(k, validation=0.93 - 0.01 * k, p50_ms=1 + 5 / k, features=4714) for k in (1, 2, 4)),
        variant(1, validation=0.93, p50_ms=0.5, projected=True, features=128),
    )

    said = says_dominated(measured, features=4714)

    assert said == (
        "projected is at least as accurate as x2 and x4 and faster at every measured size, so pruning gains nothing "
        "there on this graph: it reads 128 numbers a row, the first layer's output, where x2 and x4 read 2,357 and "
        "1,178. To keep no more than is useful, use spec.variants.pruning.choice: Auto, or factors above 36, "
        "which read less."
    )
    again = says_dominated(measured, features=4714, is_chosen=True)
    assert again is not None
    assert again.endswith("use spec.variants.pruning.factors: [1], or factors above 36, which read less.")


def test_pruned_variants_that_are_faster_at_some_size_are_not_called_dominated() -> None:
    measured = profile(
        *(variant(k, validation=0.93 - 0.01 * k, p50_ms=2 / k) for k in (1, 2, 4)),
        variant(1, validation=0.93, p50_ms=1.5, projected=True),
    )

    assert says_dominated(measured, features=64) is None
    assert says_dominated(profile(*(variant(k) for k in (1, 2))), features=64) is None
