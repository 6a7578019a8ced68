"""Variants of networks with fewer hidden channels."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.files.layers import COMMUTING
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.rules import rule, rule_of_each
from gnnserve_api.variants import channels_name, projected_name, stored_layer_name


class ChannelsTable(StrEnum):
    FEATURES = "Features"
    """Feature columns in rank order, as pruned variants read them."""
    PROJECTED = "Projected"
    """The first layer's product per node: rows as wide as the channels that are left."""
    STORED = "Stored"
    """The first layer's output over all neighbours, as stored1 has it."""


class Channels(ApiModel):
    factor: Annotated[int, Field(ge=2, le=64)]
    """Divisor of the number of hidden channels. Each hidden layer keeps ⌊hidden/factor⌋ channels, and a GIN
    ⌊mlpHidden/factor⌋ between its products; of a GAT every head keeps ⌊(hidden/heads)/factor⌋;
    of model.layers each layer keeps that share of its own width."""
    column_factor: Annotated[int, Field(ge=1, le=65_536)] = 1
    """Factor of the variant whose channels are pruned, as in 4 for x4, which reads a quarter of the feature columns.
    One of pruning.factors."""
    table: ChannelsTable = ChannelsTable.FEATURES
    """Table that the variant reads. With Projected and Stored it is made of the network of all columns."""

    @property
    def network_name(self) -> str:
        """Name of the network, which variants over several tables may share."""
        return channels_name(self.factor, self.column_factor)

    @property
    def name(self) -> str:
        """Name of the variant, without storage and fan-outs."""
        return name_over(self.network_name, self.table)

    _columns_are_of_features = rule(
        "self.columnFactor == 1 || self.table == 'Features'",
        "columnFactor {self.columnFactor} must be 1 with a table other than Features, whose rows are as wide for any "
        "number of columns[: leave it out, or use table Features]",
    )


def name_over(network: str, table: ChannelsTable) -> str:
    """Name of a network's variant over such a table: `channels2`, `channels2-projected`, `channels2-stored1`."""
    return f"{network}{_SUFFIXES[table]}"


_SUFFIXES = {
    ChannelsTable.FEATURES: "",
    ChannelsTable.PROJECTED: f"-{projected_name()}",
    ChannelsTable.STORED: f"-{stored_layer_name(1)}",
}


def in_order(channels: Iterable[Channels]) -> tuple[Channels, ...]:
    """In the order of the profile: by table, then from the widest network on."""
    tables = [*ChannelsTable]
    return tuple(sorted(channels, key=lambda each: (tables.index(each.table), each.column_factor, each.factor)))


channels_are_of_hidden_layers = rule(
    "!has(self.variants.channels) || size(self.variants.channels) == 0 || has(self.model.layers) || "
    "(size(self.model.fanouts) > 1 && self.model.fanouts[0] != 0)",
    "variants.channels must not be given with a model of one layer, which has no hidden channels, nor with SGC and "
    "SIGN[; model.fanouts are {self.model.fanouts} of {self.model.architecture}]",
)


_PER_HEAD = "self.model.hidden / (has(self.model.heads) ? self.model.heads : 1)"
"""CEL: hidden channels, of each attention head where there are any."""

channels_are_left = rule_of_each(
    "self.variants.channels",
    "one",
    f"one.factor <= {_PER_HEAD} && (!has(self.model.mlpHidden) || one.factor <= self.model.mlpHidden)",
    "factor {one.factor} of variants.channels must be at most model.hidden, divided by heads, and at most "
    "model.mlpHidden: it leaves no channel otherwise"
    f"[; use at most {{!has(self.model.mlpHidden) || {_PER_HEAD} < self.model.mlpHidden ? {_PER_HEAD} : "
    "self.model.mlpHidden}]",
    unless="has(self.model.layers) || !has(self.variants.channels)",
)


def _commutes(conv: str) -> str:
    """CEL: a convolution reads products of rows in place of rows."""
    listed = ", ".join(f"'{one}'" for one in COMMUTING)
    return (
        f"{conv}.conv in [{listed}] && (!has({conv}.project) || !{conv}.project) "
        f"&& (!has({conv}.aggregations) || {conv}.aggregations in [['Mean'], ['Sum']])"
    )


_FIRST = "self.model.layers[0]"
_FIRST_COMMUTES = (
    f"size(self.model.layers) > 0 && (!has({_FIRST}.preActivation) || !{_FIRST}.preActivation) && "
    f"(!has({_FIRST}.residual) || {_FIRST}.residual in ['None', 'Projected']) && "
    f"(has({_FIRST}.conv) ? {_commutes(_FIRST)} : {_FIRST}.relations.all(each, {_commutes('each')})) && "
    "[1, 2, 3, 4, 5, 6, 7].all(i, i >= size(self.model.layers) || "
    "((!has(self.model.layers[i].conv) || self.model.layers[i].conv != 'GCNII') && "
    "(!has(self.model.layers[i].residualOfInput) || !self.model.layers[i].residualOfInput || "
    "!has(self.model.layers[i].residual) || self.model.layers[i].residual == 'None')))"
)
"""CEL: the first layer reads products of rows, and no later one what stands before these."""

channels_have_products = rule(
    "!has(self.model.layers) || !has(self.variants.channels) || "
    "self.variants.channels.all(one, one.table != 'Projected') || "
    f"(has(self.model.before) && size(self.model.before) > 0) || ({_FIRST_COMMUTES})",
    "table Projected of variants.channels must not be given where no product stands before the first aggregation of "
    "model.layers: it needs model.before, or a first layer that adds up or weighs products of rows, as GraphSAGE, GCN "
    "and GAT do, with later ones that do not read the network's input; use table Features or Stored",
)
