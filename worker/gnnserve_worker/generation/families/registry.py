"""The planners that generation knows, the order in which they plan, and what of a manifest's lists they plan.

Two kinds of variants consist of others, have no table, and are planned here. *Smaller fan-outs*: the same table and
weights as another variant, with fewer neighbours sampled. Weights that were learnt over sampled neighbours can be run
over any number of them. What fewer cost in accuracy is measured in the profile, as of every other variant; sums (GIN)
lose more by it than means. *Cascades*: two variants that exist anyway, and what decides between them. What is planned
is which variants and which shares; temperature and threshold are fitted once the stages can be run
(`generation/cascades.py`).

Of the listed factors some are left out where features are sparse and their dense tables would be very large. 31,241
columns of words take 28 MB as a projected table and 3.4 GB as that of x1, which computes the same. The rule looks at
sizes and at the manifest alone. It cannot tell a default list that a user wrote from one that the API server filled in.
`wideTables: Keep` asks for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.families import CASCADE, HopAxis, cascade_of, point_of
from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.pruning import DEFAULT_FACTORS, WideTables
from gnnserve_api.spec.searched import SEARCHED_FACTORS
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import ProjectionMode, Variants
from gnnserve_api.variants import cascade_name, columns_of, fanouts_name, variant_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedCascade,
    PlannedVariant,
    Planner,
)
from gnnserve_worker.generation.families.given import GivenPlanner, ProgramPlanner
from gnnserve_worker.generation.families.layered import (
    ChannelsPlanner,
    OneRowPlanner,
    ProjectedPlanner,
    PrunedPlanner,
    StoredPlanner,
)
from gnnserve_worker.generation.families.listed import (
    ListedChannelsPlanner,
    ProjectedLayersPlanner,
    StoredLayersPlanner,
)
from gnnserve_worker.generation.ranking import reads_master
from gnnserve_worker.graph.store import Features
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tasks.generation import task_of

# --- variants of other variants


def with_fewer_neighbours(variants: Variants, planned: PlannedVariant) -> list[PlannedVariant]:
    """The planned variant with each of `variants.fanouts`, as far as it has hops left; none where it samples no
    neighbours."""
    manifest, point = planned.manifest, point_of(planned.manifest)
    if point.hops is not HopAxis.SAMPLED:
        return []
    family = replace(point, hops=HopAxis.FEWER).family
    left = variants.fanouts if manifest.stored is None else variants.fanouts_left(manifest.stored.layer)
    return [
        PlannedVariant(
            msgspec.structs.replace(
                manifest, name=fanouts_name(manifest.name, fanouts), family=family, fanouts=fanouts
            ),
            planned.factor,
            tensors=None,
        )
        for fanouts in left
    ]


class CascadePlanner:
    """Planner of the `spec.variants.cascades` whose stages are there, in the order of their points."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        stages = {planned.manifest.name: planned.manifest for planned in earlier}
        found = [
            PlannedCascade(
                cascade_name(cascade.first, cascade.then, percent),
                cascade_of(stages[cascade.first], stages[cascade.then]).family,
                cascade.first,
                cascade.then,
                percent,
            )
            for cascade in made_from.spec.variants.canonical().cascades
            if cascade.first in stages and cascade.then in stages
            for percent in cascade.pass_on_percents
        ]
        return FamilyPlan(cascades=sorted(found, key=lambda planned: planned.family != CASCADE.family))


# --- all planners


_GROUPS: tuple[tuple[type[Planner], ...], ...] = (
    (
        PrunedPlanner, ProjectedPlanner, StoredPlanner, GivenPlanner, ProgramPlanner, ProjectedLayersPlanner,
        StoredLayersPlanner,
    ),
    (ChannelsPlanner, ListedChannelsPlanner),
    (OneRowPlanner,),
    (CascadePlanner,),
)  # fmt: skip
"""Kinds of planners, in the order of the profile, which begins with the widest variant. Behind each group stand its
variants with fewer neighbours."""
_BESIDE = _GROUPS[2:]
"""Families whose variants are of networks of their own, whatever the model's read."""
PLANNERS = tuple(planner for group in _GROUPS for planner in group)
_ASKED: Mapping[type[Planner], Callable[[GNNServiceSpec], object]] = {
    ProjectedPlanner: lambda spec: not spec.model.is_program,
    ProjectedLayersPlanner: lambda spec: (
        spec.model.layers is not None and spec.variants.projection is ProjectionMode.AUTO
    ),
    StoredPlanner: lambda spec: spec.variants.stored and spec.model.layers is None,
    StoredLayersPlanner: lambda spec: spec.variants.stored and spec.model.layers is not None,
    GivenPlanner: lambda spec: spec.variants.given,
    ProgramPlanner: lambda spec: spec.model.is_program,
    ChannelsPlanner: lambda spec: spec.variants.channels and spec.model.layers is None,
    ListedChannelsPlanner: lambda spec: spec.variants.channels and spec.model.layers is not None,
    OneRowPlanner: lambda spec: spec.variants.one_row,
    CascadePlanner: lambda spec: spec.variants.cascades,
}
"""Parts of a spec without which there is none of the planner's variants. The other planners are always asked."""


def asked_planners(spec: GNNServiceSpec, kinds: Iterable[type[Planner]] = PLANNERS) -> list[Planner]:
    """Planners of these kinds whose variants a spec may have."""
    return [kind() for kind in kinds if kind not in _ASKED or _ASKED[kind](spec)]


def plan_families(made_from: Ingredients) -> list[FamilyPlan]:
    """What all planners make of a spec; a later one may build on what earlier ones planned."""
    return _plan(_GROUPS, made_from, [])


def plan_beside(made_from: Ingredients, model: FamilyPlan) -> list[FamilyPlan]:
    """The same of a spec whose variants of the model are planned elsewhere: `model` and, behind it, variants of other
    networks, and those that consist of any two of these."""
    return [model, *_plan(_BESIDE, made_from, model.variants)]


def _plan(
    groups: Iterable[Sequence[type[Planner]]], made_from: Ingredients, before: Sequence[PlannedVariant]
) -> list[FamilyPlan]:
    """`before`: what is planned already."""
    variants = made_from.spec.variants.canonical()
    plans: list[FamilyPlan] = []
    planned = [*before]
    for group in groups:
        first = len(planned)
        for planner in asked_planners(made_from.spec, group):
            plans.append(planner.plan(made_from, planned))
            planned.extend(plans[-1].variants)
        fewer = [each for one in planned[first:] for each in with_fewer_neighbours(variants, one)]
        plans.append(FamilyPlan(variants=fewer))
        planned.extend(fewer)
    return plans


def needs_master(spec: GNNServiceSpec) -> bool:
    """Whether the network of all columns is made: variants are made of it, columns are ranked by it, or the task needs
    it."""
    return (
        task_of(spec).needs_master
        or reads_master(spec.variants.pruning.method)
        or any(planner.needs_master(spec) for planner in asked_planners(spec))
    )


def bytes_of_tables(outline: Outline) -> int:
    """What all tables would take on the disk at most, of a search those of all that it tries."""
    spec = outline.spec
    listed: Sequence[Variants] = (spec.variants,)
    if spec.variants.is_searched:
        space = search_space(spec, spec.variants.pruning.factors)
        listed = [*(each.variants for each in space.derived_rounds), space.merged(space.trained_rounds)]
    outlines = [replace(outline, spec=spec.model_copy(update={"variants": variants})) for variants in listed]
    return sum(planner.tables_bytes(each) for each in outlines for planner in asked_planners(each.spec))


# --- what is planned of a list


_MOST_TABLE_BYTES = 2**30
_MOST_TIMES_SOURCE = 16


@dataclass(frozen=True, slots=True)
class WrittenFactors:
    kept: tuple[int, ...]
    """Factors that are written, ascending. If there are none, all variants are projected."""
    left_out: tuple[int, ...]
    left_out_bytes: int
    """Size of the widest left-out table in all storages together; 0: none is left out."""

    def said(self) -> str:
        """A message of one line that names what is left out; empty if nothing is."""
        if not self.left_out:
            return ""
        names = ", ".join(variant_name(factor) for factor in self.left_out)
        return (
            f"{names}, whose dense tables would take up to {self.left_out_bytes / 2**30:.1f} GiB for sparse features; "
            "projected computes what x1 computes; set spec.variants.pruning.wideTables to Keep to write them"
        )


def written_factors(spec: GNNServiceSpec, features: Features) -> WrittenFactors:
    pruning = spec.variants.pruning
    factors = tuple(sorted(pruning.factors))
    if (
        isinstance(features, np.ndarray)
        or (factors != DEFAULT_FACTORS and not spec.variants.is_searched)
        or pruning.wide_tables is WideTables.KEEP
        or spec.variants.projection is not ProjectionMode.AUTO
    ):
        return WrittenFactors(factors, (), 0)
    nodes, columns = features.shape[0], spec.model.row_columns(features.shape[1])
    source_bytes = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes
    sizes = {
        factor: sum(stored_bytes(nodes, columns_of(columns, factor), storage) for storage in spec.variants.storage)
        for factor in factors
    }
    most = max(_MOST_TABLE_BYTES, _MOST_TIMES_SOURCE * source_bytes)
    left_out = tuple(factor for factor in factors if sizes[factor] > most and not _is_needed(spec, factor))
    kept = tuple(factor for factor in factors if factor not in left_out)
    return WrittenFactors(kept, left_out, sizes[left_out[0]] if left_out else 0)


def _is_needed(spec: GNNServiceSpec, factor: int) -> bool:
    """Whether routing names a variant of the factor, or others are made of it."""
    named = [*([spec.routing.variant] if spec.routing.variant else []), *(spec.routing.weights or {})]
    return spec.variants.reads_factor(factor) or any(name in named for name in spec.variants.names_of(factor))


def with_factors(spec: GNNServiceSpec, factors: tuple[int, ...]) -> GNNServiceSpec:
    """The spec with these factors, for generation. The revision's identity is still that of the manifest's spec."""
    pruning = spec.variants.pruning.model_copy(update={"factors": factors})
    return spec.model_copy(update={"variants": spec.variants.model_copy(update={"pruning": pruning})})


def with_fitting_factors(spec: GNNServiceSpec, columns: int) -> GNNServiceSpec:
    """The spec with those of its factors that leave a column of so many; of a list of the manifest's own all do."""
    return with_factors(spec, tuple(factor for factor in spec.variants.pruning.factors if columns_of(columns, factor)))


def with_searched_factors(spec: GNNServiceSpec, columns: int) -> GNNServiceSpec:
    """The spec with the factors that a search looks at, those that leave a column of so many."""
    return with_factors(spec, tuple(factor for factor in SEARCHED_FACTORS if columns_of(columns, factor)))
