"""The planners that generation knows, and the order in which they plan."""

from __future__ import annotations

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.families.cascade import CascadePlanner
from gnnserve_worker.generation.families.channels import ChannelsPlanner
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, Outline, PlannedVariant, Planner
from gnnserve_worker.generation.families.fanouts import with_fewer_neighbours
from gnnserve_worker.generation.families.given import GivenPlanner
from gnnserve_worker.generation.families.one_row import OneRowPlanner
from gnnserve_worker.generation.families.program import ProgramPlanner
from gnnserve_worker.generation.families.projected import ProjectedPlanner
from gnnserve_worker.generation.families.pruned import PrunedPlanner
from gnnserve_worker.generation.families.stored import StoredPlanner
from gnnserve_worker.generation.ranking.rank import reads_master
from gnnserve_worker.tasks.generation import task_of

_GROUPS: tuple[tuple[Planner, ...], ...] = (
    (PrunedPlanner(), ProjectedPlanner(), StoredPlanner(), GivenPlanner(), ProgramPlanner()),
    (ChannelsPlanner(),),
    (OneRowPlanner(),),
    (CascadePlanner(),),
)
"""Planners in the order of the profile, which begins with the widest variant. Behind each group stand its variants
with fewer neighbours."""
PLANNERS = tuple(planner for group in _GROUPS for planner in group)


def plan_families(made_from: Ingredients) -> list[FamilyPlan]:
    """What all planners make of a spec; a later one may build on what earlier ones planned."""
    variants = made_from.spec.variants.canonical()
    plans: list[FamilyPlan] = []
    planned: list[PlannedVariant] = []
    for group in _GROUPS:
        first = len(planned)
        for planner in group:
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
        or any(planner.needs_master(spec) for planner in PLANNERS)
    )


def bytes_of_tables(outline: Outline) -> int:
    """What all tables would take on the disk at most."""
    return sum(planner.tables_bytes(outline) for planner in PLANNERS)
