"""What a manifest may ask of networks with fewer channels, and in which words it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import MAX_VARIANT_NAME


def spec_of(channels: list[dict[str, Any]], model: dict[str, Any] | None = None, **variants: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": model or {},
            "variants": {"channels": channels, **variants},
        }
    )


def test_names_tell_factors_tables_storages_and_fanouts() -> None:
    channels = [{"factor": 4, "table": "Stored"}, {"factor": 2, "columnFactor": 4}, {"factor": 2}]
    names = spec_of(channels, storage=["int8"], fanouts=[[5, 5]], pruning={"factors": [1, 4]}).variants.listed_names()
    assert names[4:] == (
        "channels2-int8", "channels2-int8-f5x5", "channels2-x4-int8", "channels2-x4-int8-f5x5",
        "channels4-stored1-int8", "channels4-stored1-int8-f5",
    )  # fmt: skip


def test_the_longest_name_has_room() -> None:
    fanouts = [1024] + [1] * 7
    spec = spec_of(
        [{"factor": 64, "table": "Projected"}], {"hidden": 64, "fanouts": [1024, *[2] * 7]}, storage=["bfloat16"],
        fanouts=[fanouts],
    )  # fmt: skip
    assert max(map(len, spec.variants.listed_names())) <= MAX_VARIANT_NAME


@pytest.mark.parametrize(
    ("channels", "model", "said"),
    [
        (
            [{"factor": 2, "columnFactor": 3}],
            {},
            r"columnFactor 3 of channels that read Features, .* must be one of pruning.factors \[1, 2",
        ),
        (
            [{"factor": 2, "columnFactor": 4, "table": "Stored"}],
            {},
            "columnFactor 4 must be 1 with a table other than Features",
        ),
        ([{"factor": 2}, {"factor": 2}], {}, "channels must not repeat: channels2"),
        ([{"factor": 1}], {}, "greater than or equal to 2"),
        ([{"factor": 65}], {}, "less than or equal to 64"),
        ([{"factor": 2}], {"fanouts": [10]}, r"model.fanouts are \[10\] of GraphSAGE"),
        ([{"factor": 2}], {"architecture": "SIGN", "fanouts": [0, 0]}, "nor with SGC and SIGN"),
        ([{"factor": 9}], {"hidden": 8}, "factor 9 of variants.channels must be at most .*; use at most 8"),
        (
            [{"factor": 4, "table": "Projected"}],
            {"architecture": "GAT", "hidden": 24, "heads": 8},
            "factor 4 of variants.channels must be at most .*; use at most 3",
        ),
        (
            [{"factor": 8}],
            {"architecture": "GIN", "mlpHidden": 6},
            "factor 8 of variants.channels must be at most .*; use at most 6",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    channels: list[dict[str, Any]], model: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        spec_of(channels, model)


def test_a_network_keeps_a_share_of_its_channels_and_every_head_as_many() -> None:
    gat = Model.model_validate({"architecture": "GAT", "hidden": 30, "heads": 3}).with_fewer_channels(4)
    assert (gat.hidden, gat.heads) == (6, 3)
    gin = Model.model_validate({"architecture": "GIN", "hidden": 100, "mlpHidden": 33}).with_fewer_channels(8)
    assert (gin.hidden, gin.mlp_hidden) == (12, 4)


def test_the_recipe_depends_on_which_there_are_and_not_on_their_order() -> None:
    channels = [{"factor": 4}, {"factor": 2, "table": "Projected"}]
    assert spec_of(channels).recipe() == spec_of(channels[::-1]).recipe() != spec_of([]).recipe()
    assert spec_of([{"factor": 4}]).recipe() != spec_of([{"factor": 2}]).recipe()
    bare = GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}})
    assert spec_of([]).recipe() == bare.recipe()
