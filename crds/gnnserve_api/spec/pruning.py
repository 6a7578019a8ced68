"""Variants that read fewer feature columns: how columns are ranked, and how many are left."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from gnnserve_api.spec.fields import ApiModel, with_defaults
from gnnserve_api.spec.rules import rule


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
    """Number of times that the L1 penalty rises."""
    steps_per_epoch: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Number of gradient steps at each penalty."""
    initial_penalty_permille: Annotated[int, Field(ge=0, le=1000)] = 0
    """First penalty, in permille of the one that alone would remove every column."""
    penalty_step_permille: Annotated[int, Field(ge=1, le=1000)] = 5
    """Rise of the penalty per epoch, in permille of the one that alone would remove every column."""


class WideTables(StrEnum):
    AUTO = "Auto"
    """The default factors without those whose tables would be dense copies of sparse features, of over 1 GiB and over
    16 times what the features take; `projected`, which computes what x1 computes, stands in for them. Another list of
    factors, and variants that spec.routing names or that variants.channels or cascades are made of, are written as
    they are."""
    KEEP = "Keep"
    """Every factor."""


class FactorChoice(StrEnum):
    ALL = "All"
    """Every factor."""
    AUTO = "Auto"
    """x1, and factors that are not predicted to be slower than `projected`, which reads all columns, at every batch
    size, by a model of this machine's latencies; the others too where a short trial finds fewer columns more accurate.
    Over several types x1, and factors whose rows are narrower than those of `projected`. Factors that
    variants.channels or cascades are made of are always there."""


DEFAULT_FACTORS = (1, 2, 4, 8)


class Pruning(ApiModel):
    method: RankingMethod = RankingMethod.GREEDY
    """Method that ranks feature columns before the least important ones are dropped."""
    factors: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65_536)], ...],
        Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = DEFAULT_FACTORS
    """Factors of pruned variants, by which the number of feature columns is divided. The variant of factor k reads the
    first ⌊features/k⌋ ranked columns and is named xk. Of the default factors those that leave no column are left out.
    Over several types, which are ranked each by itself, the default factors make variants only with choice Auto. Empty
    only beside variants.given, stored or channels."""
    choice: FactorChoice = FactorChoice.ALL
    """Choice of the factors that networks are trained for, or refitted. What was left out, and why, is in the log and
    the report."""
    wide_tables: WideTables = WideTables.AUTO
    """Choice of the factors whose tables, which are dense, are written where features are sparse and very wide."""
    lasso: LassoSettings = with_defaults(LassoSettings)
    """Settings of the ranking method Lasso."""
    stability_seeds: Annotated[int, Field(ge=0, le=10)] = 0
    """Number of further masters that are trained and ranked, each with a seed of its own, to tell in the report how far
    the ranking depends on the seed. They are not served."""

    _stability_is_of_a_method_that_looks = rule(
        "self.method != 'Random' || self.stabilitySeeds == 0",
        "stabilitySeeds {self.stabilitySeeds} must be 0 with method Random, which depends on its seed alone",
    )

    _stability_is_of_a_ranking_that_is_used = rule(
        "size(self.factors) > 0 || self.stabilitySeeds == 0",
        "stabilitySeeds must be 0 without factors, for which columns are ranked",
    )

    def canonical(self) -> Pruning:
        """The same where the same is generated: neither the order of factors nor settings of another method do
        anything, nor a choice among factors of which none leaves columns out."""
        changes: dict[str, Any] = {"factors": tuple(sorted(self.factors))}
        if not any(factor > 1 for factor in self.factors):
            changes["choice"] = FactorChoice.ALL
        if self.method is not RankingMethod.LASSO:
            changes["lasso"] = LassoSettings()
        return self.model_copy(update=changes)
