"""The variants that are generated from the model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.rules import rule
from gnnserve_api.variants import MAX_LAYERS, Storage, fanouts_name, projected_name, variant_name


class RankingMethod(StrEnum):
    RANDOM = "Random"
    """A seeded permutation: the baseline."""
    GREEDY = "Greedy"
    """By the first layer's absolute weights."""
    LASSO = "Lasso"
    """By coefficients that survive an L1 penalty on the first layer's output."""


class LassoSettings(ApiModel):
    """Settings that Dynamic GNN inference as-a-service, section 3.2, leaves open; recorded with the ranking."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Rises of the penalty."""
    steps_per_epoch: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Gradient steps at each penalty."""
    initial_penalty_permille: Annotated[int, Field(ge=0, le=1000)] = 0
    """First penalty, in permille of the one that alone would remove every column."""
    penalty_step_permille: Annotated[int, Field(ge=1, le=1000)] = 5
    """Rise of the penalty per epoch, in the same unit."""


class WideTables(StrEnum):
    AUTO = "Auto"
    """The default factors without those whose tables would be dense copies of sparse features, of over 1 GiB and over
    16 times what the features take; `projected`, which computes what x1 computes, stands in for them. Another list of
    factors, and variants that spec.routing names, are written as they are."""
    KEEP = "Keep"
    """Every factor."""


DEFAULT_FACTORS = (1, 2, 4, 8)


class Pruning(ApiModel):
    method: RankingMethod = RankingMethod.GREEDY
    """How feature columns are ranked before the least important ones are dropped."""
    factors: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65_536)], ...],
        Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = DEFAULT_FACTORS
    """One variant for each factor k: it reads the first ⌊features/k⌋ ranked columns and is named xk."""
    wide_tables: WideTables = WideTables.AUTO
    """Which factors are written where features are sparse and very wide. Tables are dense."""
    lasso: LassoSettings = LassoSettings()
    """Settings of the Lasso method."""
    stability_seeds: Annotated[int, Field(ge=0, le=10)] = 0
    """How many more masters are trained and ranked, each with a seed of its own, to tell in the report how far the
    ranking depends on it. They are not served."""

    @model_validator(mode="after")
    def _factors_differ(self) -> Pruning:
        if len(set(self.factors)) != len(self.factors):
            raise ValueError(f"factors {list(self.factors)} must not repeat")
        return self

    @rule(
        "self.method != 'Random' || self.stabilitySeeds == 0",
        "stabilitySeeds must be 0 with method Random, which depends on its seed alone",
    )
    def _stability_is_of_a_method_that_looks(self) -> bool | str:
        if self.method is not RankingMethod.RANDOM or self.stability_seeds == 0:
            return True
        return f"stabilitySeeds {self.stability_seeds} must be 0 with method Random, which depends on its seed alone"

    def canonical(self) -> Pruning:
        """The same where the same is generated: neither the order of factors nor settings of another method do
        anything."""
        changes: dict[str, Any] = {"factors": tuple(sorted(self.factors))}
        if self.method is not RankingMethod.LASSO:
            changes["lasso"] = LassoSettings()
        return self.model_copy(update=changes)


class Projection(StrEnum):
    AUTO = "Auto"
    """Variants whose first linear layer is applied ahead of time, for every node. Exact but for rounding; kept only
    where no other variant is as accurate and as fast."""
    DISABLED = "Disabled"
    """Only the factors that are listed."""


class MetricChoice(StrEnum):
    AUTO = "Auto"
    """Accuracy; MicroF1 where a node may have several classes."""
    ACCURACY = "Accuracy"
    """The share of nodes whose class is right. Not where a node may have several."""
    MICRO_F1 = "MicroF1"
    """F1 of all pairs of node and class, in which frequent classes weigh more; Accuracy where nodes have one class."""
    MACRO_F1 = "MacroF1"
    """The mean of the classes' F1, in which rare classes weigh as much."""
    AVERAGE_PRECISION = "AveragePrecision"
    """How far up the nodes of a class come among all, by its score: the mean over classes; of two, the second's."""
    ROC_AUC = "ROCAUC"
    """How often a node of a class has a higher score for it than one without: the mean over classes; of two, the
    second's."""


MAX_LISTED_VARIANTS = 32
"""So that all of them fit into a Job's termination message, and a profile takes minutes."""


MOST_FANOUTS_VARIANTS = 36
"""The same with `fanouts`, projected variants included."""

SmallerFanouts = Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1, max_length=MAX_LAYERS)]


class Variants(ApiModel):
    pruning: Pruning = Pruning()
    """Variants that read fewer feature columns."""
    storage: Annotated[
        tuple[Storage, ...],
        Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = (Storage.FLOAT32,)
    """How tables of features are stored. Every factor is served from each: x4 from float32, x4-int8 from int8."""
    projection: Projection = Projection.AUTO
    """Whether projected variants are added."""
    metric: MetricChoice = MetricChoice.AUTO
    """What accuracy means: in the profile, in tolerances, and for the epoch that is kept. A fraction of 1, higher is
    better."""

    fanouts: Annotated[tuple[SmallerFanouts, ...], Field(max_length=8)] = ()
    """Fewer neighbours to sample, as in `[[15, 5]]`: every variant is served with these as well, from the same table
    and weights, without training. x1-f15x5 is x1 with 15 and 5. One number per entry of model.fanouts, none above it.
    """

    def listed_names(self) -> tuple[str, ...]:
        """Variants that every revision has: a factor in a storage, with each of the fan-outs."""
        return tuple(name for factor in sorted(self.pruning.factors) for name in self.names_of(factor))

    def names_of(self, factor: int) -> tuple[str, ...]:
        """Variants of one factor."""
        return self._with_fanouts([variant_name(factor, storage) for storage in Storage if storage in self.storage])

    def _with_fanouts(self, names: Sequence[str]) -> tuple[str, ...]:
        return (*names, *(fanouts_name(name, fanouts) for name in names for fanouts in self.fanouts))

    def optional_names(self) -> tuple[str, ...]:
        """Variants that a revision may have: those that are kept only where the profile finds them worth it."""
        if self.projection is not Projection.AUTO:
            return ()
        return self._with_fanouts([projected_name(storage) for storage in Storage if storage in self.storage])

    @model_validator(mode="after")
    def _storages_differ(self) -> Variants:
        if len(set(self.storage)) != len(self.storage):
            raise ValueError(f"storage {[str(storage) for storage in self.storage]} must not repeat")
        return self

    @rule(
        f"size(self.pruning.factors) * size(self.storage) <= {MAX_LISTED_VARIANTS}",
        f"factors times storages must be at most {MAX_LISTED_VARIANTS} variants",
    )
    def _variants_are_few(self) -> bool | str:
        factors, storages = len(self.pruning.factors), len(self.storage)
        return factors * storages <= MAX_LISTED_VARIANTS or (
            f"{factors} factors times {storages} storages are {factors * storages} variants; they must be at most "
            f"{MAX_LISTED_VARIANTS}"
        )

    @model_validator(mode="after")
    def _fanouts_differ(self) -> Variants:
        if len(set(self.fanouts)) != len(self.fanouts):
            raise ValueError(f"fanouts {[list(fanouts) for fanouts in self.fanouts]} must not repeat")
        return self

    @rule(
        "!has(self.fanouts) || size(self.fanouts) == 0 || (size(self.pruning.factors) + 1) * size(self.storage) * "
        f"(1 + size(self.fanouts)) <= {MOST_FANOUTS_VARIANTS}",
        "with fanouts, factors and one more, times storages, times fanouts and one more must be at most "
        f"{MOST_FANOUTS_VARIANTS} variants",
    )
    def _fanouts_leave_few_variants(self) -> bool | str:
        count = (len(self.pruning.factors) + 1) * len(self.storage) * (1 + len(self.fanouts))
        return (
            not self.fanouts
            or count <= MOST_FANOUTS_VARIANTS
            or (
                f"{len(self.pruning.factors)} factors and projected, times {len(self.storage)} storages, times "
                f"{1 + len(self.fanouts)} fan-outs are {count} variants; they must be at most {MOST_FANOUTS_VARIANTS}"
            )
        )

    def canonical(self) -> Variants:
        """The same where the same is generated: the order of storages and fan-outs does nothing."""
        storages = tuple(storage for storage in Storage if storage in self.storage)
        fanouts = tuple(sorted(self.fanouts, reverse=True))
        return self.model_copy(update={"pruning": self.pruning.canonical(), "storage": storages, "fanouts": fanouts})
