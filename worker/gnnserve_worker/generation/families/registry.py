"""The families that generation knows. A new one is a file beside this one, and an entry here and in
`gnnserve_api/families.py`."""

from __future__ import annotations

from gnnserve_api.families import FamilyName
from gnnserve_api.spec.channels import ChannelsTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.families.cascade import CascadeFamily
from gnnserve_worker.generation.families.channels import ChannelsFamily
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, PlannedVariant, VariantFamily
from gnnserve_worker.generation.families.fanouts import FanoutsFamily
from gnnserve_worker.generation.families.given import GivenFamily
from gnnserve_worker.generation.families.one_row import OneRowFamily
from gnnserve_worker.generation.families.program import ProgramFamily
from gnnserve_worker.generation.families.projected import ProjectedFamily
from gnnserve_worker.generation.families.pruned import PrunedFamily
from gnnserve_worker.generation.families.stored import StoredFamily
from gnnserve_worker.generation.ranking.rank import reads_master
from gnnserve_worker.tasks.generation import task_of

FAMILIES: tuple[VariantFamily, ...] = (
    PrunedFamily(FamilyName.PRUNED, propagates=False),
    PrunedFamily(FamilyName.PROPAGATED, propagates=True),
    ProjectedFamily(FamilyName.PROJECTED, propagates=False),
    ProjectedFamily(FamilyName.PROPAGATED_PROJECTED, propagates=True),
    StoredFamily(FamilyName.STORED, is_deeper=False),
    StoredFamily(FamilyName.STORED_DEEPER, is_deeper=True),
    StoredFamily(FamilyName.STORED_DEEPER_FOLLOWING, is_deeper=True, follows_changes=True),
    GivenFamily(),
    ProgramFamily(),
    FanoutsFamily(FamilyName.FANOUTS, base=FamilyName.PRUNED),
    FanoutsFamily(FamilyName.PROJECTED_FANOUTS, base=FamilyName.PROJECTED),
    FanoutsFamily(FamilyName.STORED_FANOUTS, base=FamilyName.STORED),
    FanoutsFamily(FamilyName.STORED_DEEPER_FANOUTS, base=FamilyName.STORED_DEEPER),
    FanoutsFamily(FamilyName.STORED_DEEPER_FOLLOWING_FANOUTS, base=FamilyName.STORED_DEEPER_FOLLOWING),
    FanoutsFamily(FamilyName.GIVEN_FANOUTS, base=FamilyName.GIVEN),
    FanoutsFamily(FamilyName.PROGRAM_FANOUTS, base=FamilyName.PROGRAM),
    ChannelsFamily(FamilyName.CHANNELS, ChannelsTable.FEATURES),
    ChannelsFamily(FamilyName.CHANNELS_PROJECTED, ChannelsTable.PROJECTED),
    ChannelsFamily(FamilyName.CHANNELS_STORED, ChannelsTable.STORED),
    FanoutsFamily(FamilyName.CHANNELS_FANOUTS, base=FamilyName.CHANNELS),
    FanoutsFamily(FamilyName.CHANNELS_PROJECTED_FANOUTS, base=FamilyName.CHANNELS_PROJECTED),
    FanoutsFamily(FamilyName.CHANNELS_STORED_FANOUTS, base=FamilyName.CHANNELS_STORED),
    OneRowFamily(FamilyName.ONE_ROW, propagates=False),
    OneRowFamily(FamilyName.PROPAGATED_ONE_ROW, propagates=True),
    CascadeFamily(FamilyName.CASCADE),
    CascadeFamily(FamilyName.STORED_GRAPH_CASCADE),
)
"""Families in the order of the profile, which begins with the widest variant."""


def plan_families(made_from: Ingredients) -> list[FamilyPlan]:
    """What all of them make of a spec; a later family may build on what earlier ones planned."""
    plans: list[FamilyPlan] = []
    planned: list[PlannedVariant] = []
    for family in FAMILIES:
        plans.append(family.plan(made_from, planned))
        planned.extend(plans[-1].variants)
    return plans


def needs_master(spec: GNNServiceSpec) -> bool:
    """Whether the network of all columns is made: families make variants of it, columns are ranked by it, or the
    task needs it."""
    return (
        task_of(spec).needs_master
        or reads_master(spec.variants.pruning.method)
        or any(family.needs_master(spec) for family in FAMILIES)
    )
