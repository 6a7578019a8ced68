"""The variants that are generated from the model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from gnnserve_api.spec.cascade import MAX_CASCADES, Cascade, canonical_cascades
from gnnserve_api.spec.channels import Channels, ChannelsTable, in_order
from gnnserve_api.spec.fields import ApiModel, with_defaults
from gnnserve_api.spec.given import GivenNetwork
from gnnserve_api.spec.pruning import DEFAULT_FACTORS, FactorChoice, Pruning
from gnnserve_api.spec.rules import Members, all_empty, rule, rule_of_each
from gnnserve_api.spec.scoring import MetricChoice, Thresholds
from gnnserve_api.variants import (
    MAX_FANOUT,
    MAX_LAYERS,
    MAX_VARIANTS,
    PROJECTED_NAME,
    Storage,
    fanouts_name,
    given_name,
    one_row_name,
    stored_layer_name,
    stored_name,
    variant_name,
)

_DEFAULT_STORAGE = (Storage.FLOAT32,)


class Search(StrEnum):
    DISABLED = "Disabled"
    """The variants that are listed."""
    AUTO = "Auto"
    """Variants of all families are made and measured, and those are kept that no other beats: which factors, storages,
    fan-outs and stored layers are worth having is found out."""


class SearchBudget(ApiModel):
    """Limits of a search. Read with `search: Auto` only."""

    seconds: Annotated[int, Field(ge=1, le=604_800)] = 1800
    """Time for networks beside the first one, in seconds: none is trained that is expected to end later. The first
    network, and what is made of it without training, is not limited."""
    variants: Annotated[int, Field(ge=1, le=16)] = 8
    """Largest number of variants that a search keeps."""


class ProjectionMode(StrEnum):
    AUTO = "Auto"
    """Variants whose first linear layer is applied ahead of time, for every node. Exact but for rounding; kept only
    where no other variant is as accurate and as fast."""
    DISABLED = "Disabled"
    """Only the factors that are listed."""


_MAX_ONE_ROW_HOPS = 4


class OneRow(ApiModel):
    hops: Annotated[int, Field(ge=0, le=_MAX_ONE_ROW_HOPS)]
    """Number of hops over which features are propagated. What the perceptron reads are the features and those of each
    hop beside them. 0: a node's own features alone, also those of nodes that requests bring."""


MAX_LISTED_VARIANTS = MAX_VARIANTS - len(Storage)
"""Variants without `fanouts` and without projected ones, of which there is one per storage."""

LISTED = (
    "size(self.pruning.factors) + (has(self.given) ? size(self.given) : 0) + (has(self.stored) ? size(self.stored) : 0)"
    " + (has(self.channels) ? size(self.channels) : 0)"
)
"""CEL: variants of one storage that are always there."""
_WITH_FANOUTS = f"({LISTED} + 1) * size(self.storage) * (1 + size(self.fanouts))"
_WITH_ONE_ROWS = (
    f"(({LISTED} + 1) * (1 + (has(self.fanouts) ? size(self.fanouts) : 0)) + size(self.oneRow)) * size(self.storage)"
)
"""CEL: variants, at most, where fan-outs are given, and where one-row variants are."""

SmallerFanouts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_FANOUT)], ...], Field(min_length=1, max_length=MAX_LAYERS)
]


_NAMES_OF_OTHERS = "^(mlp[0-9]+|stored[0-9]+|channels[0-9]+(-x[0-9]+|-projected|-stored1)?)$"
_IS_NAMED_AS_OTHERS = f"has(one.name) && one.name.matches('{_NAMES_OF_OTHERS}')"

SOME_ARE_MADE = (
    "size(self.pruning.factors) > 0 || self.projection != 'Disabled' || "
    "(has(self.stored) && size(self.stored) > 0) || "
    "(has(self.channels) && size(self.channels) > 0)"
)
"""Whether anything is made of a master."""


class Variants(ApiModel):
    search: Search = Search.DISABLED
    """Whether the variants are searched for, in place of being listed. With Auto, pruning.factors and storage are not
    read, and stored, fanouts, given, oneRow, channels and projection must be left out."""
    budget: SearchBudget = with_defaults(SearchBudget)
    """Limits of a search for variants: time, and number of variants kept. Read with `search: Auto` only."""
    pruning: Pruning = with_defaults(Pruning)
    """Variants that read fewer feature columns."""
    storage: Annotated[
        tuple[Storage, ...],
        Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = _DEFAULT_STORAGE
    """Number formats of the tables of features. Every factor is served from each: x4 from float32, x4-int8 from int8.
    """
    projection: ProjectionMode = ProjectionMode.AUTO
    """Whether projected variants are added."""
    metric: MetricChoice = MetricChoice.AUTO
    """Metric that is called accuracy: in the profile, in tolerances, and for the epoch that is kept. A fraction of 1,
    higher is better."""

    thresholds: Thresholds = Thresholds.FIXED
    """Rule by which scores become labels, in answers and in accuracies. Training, and the epoch that is kept, go by
    Fixed."""

    fanouts: Annotated[tuple[SmallerFanouts, ...], Field(max_length=8)] = ()
    """Smaller fan-outs, as in `[[15, 5]]`: every variant is served with each as well, from the same table and weights,
    without training. x1-f15x5 is x1 with 15 and 5. One number per entry of model.fanouts, none above it. Empty: none.
    """

    given: Annotated[tuple[GivenNetwork, ...], Field(max_length=16)] = ()
    """Finished variants of your own, trained elsewhere, each on a choice of feature columns. They are served from every
    storage beside the others: given-1, given-1-int8. With `pruning.factors: []` and `projection: Disabled` they are all
    there is, and nothing is trained. Empty: none."""

    one_row: Annotated[tuple[OneRow, ...], Field(max_length=_MAX_ONE_ROW_HOPS + 1)] = ()
    """Perceptrons that answer from one small row per node and sample nothing, as in `[{hops: 0}, {hops: 2}]`: mlp0,
    mlp2, and mlp2-int8 from each storage. Each is trained from the labels, from the scores of the model, and from both;
    the one with the best validation score is kept. With task.links they give embeddings, which the model's decoder
    reads; over several types a row is a node's own, whatever its type. All but mlp0 answer about nodes of the stored
    graph only. Empty: none."""

    stored: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...],
        Field(max_length=MAX_LAYERS, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = ()
    """Layers whose output is computed ahead of time for every node, as in `[1]`: stored1 reads what is left of the
    network, with the second layer's product stored, and samples the first of model.fanouts alone. The last layer's
    output is the scores: a row for each seed. Computed over all neighbours, so that answers differ from those of x1,
    which samples them. Requests with an overlay are answered by stored1, and by others with
    storedFollowChanges; none gives embeddings. Empty: none."""

    stored_follow_changes: bool = False
    """Whether layers of `stored` behind the first, and `oneRow` over hops, follow changes of the graph
    (`spec.updates`), as stored1 and mlp0 always do. Then all tables that they are made of are kept, features of all
    nodes in float32 for `oneRow`, and each change is carried on over as many hops. It needs one of them, or search
    Auto, which tries them."""

    channels: Annotated[tuple[Channels, ...], Field(max_length=16)] = ()
    """Networks with fewer hidden channels, as in `[{factor: 2}, {factor: 4, table: Projected}]`: channels2 and
    channels4-projected, from each storage. Which channels each layer keeps is found by LASSO, from the last layer
    backwards; what is left is fitted to what the whole network computes, then trained further. None gives the model's
    embeddings. Empty: none."""

    cascades: Annotated[tuple[Cascade, ...], Field(max_length=MAX_CASCADES)] = ()
    """Variants that consist of two others: the first answers where confident, and passes the rest on to the second. For
    nodes of one class each, and for pairs of nodes (task.links). Empty: none."""

    def listed_names(self) -> tuple[str, ...]:
        """Variants that every revision has: a factor in a storage, a stored layer, a given one or one of channels, with
        each of the fan-outs; one-row ones, and cascades."""
        certain = [factor for factor in sorted(self.pruning.factors) if factor not in self.optional_factors]
        factors = [name for factor in certain for name in self.names_of(factor)]
        layers = [name for layer in sorted(self.stored) for name in self.names_of_stored(layer)]
        given = self._with_fanouts([name for base in self.given_names() for name in self.in_storages(base)])
        one_row = [name for base in self.one_row_names() for name in self.in_storages(base)]
        channels = [name for one in self.canonical().channels for name in self._names_of_channels(one)]
        return (*factors, *layers, *given, *channels, *one_row, *self.cascade_names())

    def cascade_names(self) -> tuple[str, ...]:
        return tuple(name for cascade in self.canonical().cascades for name in cascade.names())

    def stage_names(self) -> tuple[str, ...]:
        """Variants that a cascade may consist of: all but cascades."""
        cascades = {*self.cascade_names()}
        return tuple(name for name in (*self.listed_names(), *self.optional_names()) if name not in cascades)

    def one_row_names(self) -> tuple[str, ...]:
        """Names of `one_row`, by hops, without storages."""
        return tuple(one_row_name(each.hops) for each in self.canonical().one_row)

    def names_of_stored(self, layer: int) -> tuple[str, ...]:
        names = [stored_layer_name(layer, storage) for storage in Storage if storage in self.storage]
        return (*names, *(fanouts_name(name, fanouts) for name in names for fanouts in self.fanouts_left(layer)))

    def _names_of_channels(self, one: Channels) -> tuple[str, ...]:
        left = self.fanouts_left(1) if one.table is ChannelsTable.STORED else self.fanouts
        names = self.in_storages(one.name)
        return (*names, *(fanouts_name(name, fanouts) for name in names for fanouts in left))

    def fanouts_left(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """What of `fanouts` is left for variants of which that many layers are stored, each once."""
        left = (fanouts[: len(fanouts) - layer] for fanouts in self.fanouts if len(fanouts) > layer)
        return tuple(dict.fromkeys(left))

    def given_names(self) -> tuple[str, ...]:
        """Names of `given`, in its order, without storages."""
        return tuple(given.name or given_name(place) for place, given in enumerate(self.given, start=1))

    @property
    def are_all_given(self) -> bool:
        """Whether nothing is made of a master: neither trained nor ranked."""
        made = self.pruning.factors or self.stored or self.channels
        return not made and self.projection is ProjectionMode.DISABLED

    def names_of(self, factor: int) -> tuple[str, ...]:
        """Variants of one factor."""
        return self._with_fanouts(self.in_storages(variant_name(factor)))

    def in_storages(self, name: str) -> list[str]:
        return [stored_name(name, storage) for storage in Storage if storage in self.storage]

    def _with_fanouts(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*names, *(fanouts_name(name, fanouts) for name in names for fanouts in self.fanouts))

    def optional_names(self) -> tuple[str, ...]:
        """Variants that a revision may have: those that are kept only where the profile finds them worth it."""
        if self.projection is not ProjectionMode.AUTO:
            return ()
        return (*self.chosen_names(), *self._with_fanouts(self.in_storages(PROJECTED_NAME)))

    def chosen_names(self) -> tuple[str, ...]:
        """Variants of the factors that `pruning.choice: Auto` decides about."""
        return tuple(name for factor in self.optional_factors for name in self.names_of(factor))

    @property
    def optional_factors(self) -> tuple[int, ...]:
        """Factors that `pruning.choice: Auto` decides about, ascending: none that channels or cascades are made of."""
        if self.pruning.choice is FactorChoice.ALL or self.projection is not ProjectionMode.AUTO:
            return ()
        return tuple(factor for factor in sorted(self.pruning.factors) if factor > 1 and not self.reads_factor(factor))

    def reads_factor(self, factor: int) -> bool:
        """Whether cascades consist of a variant of the factor, or channels of it are pruned over the same table."""
        if any(one.column_factor == factor and one.table is ChannelsTable.FEATURES for one in self.channels):
            return True
        stages = {stage for cascade in self.cascades for stage in (cascade.first, cascade.then)}
        return not stages.isdisjoint(self.names_of(factor))

    _variants_are_few = rule(
        f"({LISTED}) * size(self.storage) <= {MAX_LISTED_VARIANTS}",
        f"factors, given, stored and channels, times storages, must be at most {MAX_LISTED_VARIANTS} variants[, and "
        f"are {{({LISTED}) * size(self.storage)}}]",
    )

    _some_variant_is_listed = rule(
        f"{LISTED} > 0", "pruning.factors may be empty beside given, stored or channels only"
    )

    _given_names_differ = rule_of_each(
        "self.given",
        "one",
        "!has(one.name) || self.given.exists_one(other, has(other.name) && other.name == one.name)",
        "names of given variants must not repeat[: {one.name}]",
    )

    @model_validator(mode="after")
    def _fanouts_differ(self) -> Variants:
        if len(set(self.fanouts)) != len(self.fanouts):
            raise ValueError(f"fanouts {[list(fanouts) for fanouts in self.fanouts]} must not repeat")
        return self

    _fanouts_leave_few_variants = rule(
        f"!has(self.fanouts) || size(self.fanouts) == 0 || {_WITH_FANOUTS} <= {MAX_VARIANTS}",
        "with fanouts, factors, given, stored, channels and one more, times storages, times fanouts and one more "
        f"must be at most {MAX_VARIANTS} variants[, and are {{{_WITH_FANOUTS}}}]",
    )

    @model_validator(mode="after")
    def _one_rows_differ(self) -> Variants:
        hops = [each.hops for each in self.one_row]
        if len(set(hops)) != len(hops):
            raise ValueError(f"hops {hops} of oneRow must not repeat")
        return self

    _one_rows_leave_few_variants = rule(
        f"!has(self.oneRow) || size(self.oneRow) == 0 || {_WITH_ONE_ROWS} <= {MAX_VARIANTS}",
        "with oneRow, its entries and factors, given, stored, channels and one more, these times fanouts and one "
        f"more, times storages, must be at most {MAX_VARIANTS} variants[, and are {{{_WITH_ONE_ROWS}}}]",
    )

    _one_rows_have_a_master = rule(
        "!has(self.oneRow) || size(self.oneRow) == 0 || size(self.pruning.factors) > 0 || "
        "self.projection != 'Disabled' || (has(self.stored) && size(self.stored) > 0) || "
        "(has(self.channels) && size(self.channels) > 0)",
        "oneRow must not be given where given variants are all there is: there is no model to learn from",
    )

    _given_names_are_not_of_others = rule(
        # By their form alone: what names joined of texts and numbers may cost exceeds the API server's budget.
        f"!has(self.given) || ({all_empty('self.oneRow', 'self.stored', 'self.channels')}) || "
        f"!self.given.exists(one, {_IS_NAMED_AS_OTHERS})",
        "names of given variants must not be as those of oneRow, stored or channels, mlp2, stored1 and channels2, "
        "where there are any[: {one.name}]",
        Members("self.given", "one", f"!({_IS_NAMED_AS_OTHERS})"),
    )

    _searched_variants_are_not_listed = rule(
        "!has(self.search) || self.search != 'Auto' || "
        f"({all_empty('self.stored', 'self.fanouts', 'self.given', 'self.oneRow', 'self.channels')} && "
        "self.projection != 'Disabled')",
        "stored, fanouts, given, oneRow, channels and projection must be left out with search Auto, which finds "
        "them out",
    )

    @model_validator(mode="after")
    def _channels_differ(self) -> Variants:
        names = [one.name for one in self.channels]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"channels must not repeat: {', '.join(repeated)}")
        return self

    _channels_are_of_networks_that_are_made = rule_of_each(
        "self.channels",
        "one",
        "one.table != 'Features' || one.columnFactor in self.pruning.factors",
        "columnFactor {one.columnFactor} of channels that read Features, 1 where it is left out, must be one of "
        "pruning.factors {self.pruning.factors}[: add it there]",
    )

    @property
    def is_searched(self) -> bool:
        return self.search is Search.AUTO

    def canonical(self) -> Variants:
        """The same where the same is generated: the order of storages, fan-outs, stored layers and one-row variants
        does nothing, and neither do a budget without a search nor the lists that a search does not read."""
        pruning = self.pruning.canonical()
        if self.is_searched:
            unread = {"factors": DEFAULT_FACTORS, "choice": FactorChoice.ALL}
            searched = {"pruning": pruning.model_copy(update=unread), "storage": _DEFAULT_STORAGE}
            return self.model_copy(update=searched)
        if self.projection is not ProjectionMode.AUTO:
            pruning = pruning.model_copy(update={"choice": FactorChoice.ALL})  # there is nothing to be slower than
        storages = tuple(storage for storage in Storage if storage in self.storage)
        fanouts = tuple(sorted(self.fanouts, reverse=True))
        ordered = {"storage": storages, "fanouts": fanouts, "one_row": tuple(sorted(self.one_row, key=_hops_of))}
        layers = {
            "stored": tuple(sorted(self.stored)),
            "channels": in_order(self.channels),
            "cascades": canonical_cascades(self.cascades),
        }
        return self.model_copy(update={"budget": SearchBudget(), "pruning": pruning, **ordered, **layers})


def _hops_of(one: OneRow) -> int:
    return one.hops
