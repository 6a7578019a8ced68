"""Rules over the graph, model and variants of a spec, by the kind of its graph, of one type or of several."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.channels import ChannelsTable
from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.model import Architecture, Batches, Model
from gnnserve_api.spec.rules import RuleTable
from gnnserve_api.spec.source_kinds import ONE_TYPE, SEVERAL_TYPES
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import ProjectionMode, Variants

_OF_TYPES = (Architecture.GRAPHSAGE, Architecture.GAT, Architecture.RGCN, Architecture.LIGHT_GCN)
"""Architectures over several types."""
_OF_TYPES_ALONE = (Architecture.RGCN,)
_WHY_NOT_OTHERS = "the others add up rows of a node and its neighbours, and types have columns of their own"


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that these rules read."""

    graph: GraphSpec
    model: Model
    variants: Variants
    task: Task


def _listed(architectures: tuple[Architecture, ...]) -> str:
    return "[" + ", ".join(f"'{one}'" for one in architectures) + "]"


@SEVERAL_TYPES.rule(
    f"has(self.model.program) || self.model.architecture in {_listed(_OF_TYPES)}",
    f"model.architecture must be {', '.join(_OF_TYPES)} with graph.source.typed: {_WHY_NOT_OTHERS}",
)
def _architecture_is_of_types(spec: _Spec) -> bool | str:
    if spec.model.program is not None or spec.model.architecture in _OF_TYPES:
        return True
    return (
        f"model.architecture {spec.model.architecture} must be {', '.join(_OF_TYPES)} with graph.source.typed: "
        f"{_WHY_NOT_OTHERS}"
    )


@ONE_TYPE.rule(
    f"!(self.model.architecture in {_listed(_OF_TYPES_ALONE)})",
    "model.architecture RGCN must not be given without graph.source.typed, a graph of several relations",
)
def _architecture_is_of_one_type(spec: _Spec) -> bool:
    return spec.model.architecture not in _OF_TYPES_ALONE


@ONE_TYPE.rule(
    "!has(self.model.relationFanouts) || size(self.model.relationFanouts) == 0",
    "model.relationFanouts must be left out without graph.source.typed: a graph of one type has no relations",
)
def _relations_have_fanouts(spec: _Spec) -> bool:
    return not spec.model.relation_fanouts


@ONE_TYPE.rule(
    "!has(self.model.training.batches) || self.model.training.batches == 'Auto'",
    "model.training.batches must be left out without graph.source.typed: over one type training always samples",
)
def _batches_are_of_types(spec: _Spec) -> bool | str:
    if spec.model.training.batches is Batches.AUTO:
        return True
    return (
        f"model.training.batches {spec.model.training.batches} must be left out without graph.source.typed: over one "
        "type training always samples"
    )


@SEVERAL_TYPES.rule(
    "has(self.model.program) || self.variants.projection != 'Disabled' || (has(self.variants.given) && "
    "size(self.variants.given) > 0 && size(self.variants.pruning.factors) == 0)",
    "variants.projection must not be Disabled with graph.source.typed, but with variants.given and pruning.factors [] "
    "as all there is: what is made of a model over types are its products",
)
def _variants_are_projected(spec: _Spec) -> bool:
    variants = spec.variants
    is_made = variants.projection is ProjectionMode.AUTO or spec.model.program is not None
    return is_made or bool(variants.given and not variants.pruning.factors)


@SEVERAL_TYPES.rule(
    "has(self.model.program) || !has(self.variants.given) || self.variants.given.all(one, !has(one.columns))",
    "columns of variants.given must be left out with graph.source.typed: a row is a product, as wide as the hidden "
    "layer, whichever columns it is made of",
)
def _given_variants_read_all_columns(spec: _Spec) -> bool:
    return spec.model.program is not None or all(one.columns is None for one in spec.variants.given)


@SEVERAL_TYPES.rule(
    "has(self.model.program) || !has(self.variants.channels) || "
    "self.variants.channels.all(one, one.table != 'Features')",
    "table of variants.channels must be Projected or Stored with graph.source.typed: types have columns of their own, "
    "so that no table holds columns of all of them",
)
def _channels_read_products(spec: _Spec) -> bool | str:
    names = [one.name for one in spec.variants.channels if one.table is ChannelsTable.FEATURES]
    if spec.model.program is not None or not names:
        return True
    return (
        f"table Features of {names[0]} in variants.channels must be Projected or Stored with graph.source.typed: types "
        "have columns of their own, so that no table holds columns of all of them"
    )


KIND_RULES = RuleTable(
    (
        _architecture_is_of_types,
        _architecture_is_of_one_type,
        _relations_have_fanouts,
        _batches_are_of_types,
        _variants_are_projected,
        _given_variants_read_all_columns,
        _channels_read_products,
    )
)


def reads_products(spec: _Spec) -> bool:
    """Whether variants read products of each relation."""
    return spec.graph.source.kind.reads_products(spec.model)


def keeps_types_of_rows(spec: _Spec) -> bool:
    """Whether embeddings that are learnt of nodes are stored over the relations of the graph, so that they follow its
    changes."""
    return spec.model.learns_embeddings and spec.graph.source.kind is SEVERAL_TYPES
