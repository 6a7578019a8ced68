"""Rules over the graph, model and variants of a spec, by the kind of its graph, of one type or of several."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.graph import Graph
from gnnserve_api.spec.model import Architecture, Batches, Model
from gnnserve_api.spec.rules import RuleTable
from gnnserve_api.spec.source_kinds import ONE_TYPE, SEVERAL_TYPES
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import Projection, Variants

_OF_TYPES = (Architecture.GRAPHSAGE, Architecture.GAT, Architecture.RGCN, Architecture.LIGHT_GCN)
"""Architectures over several types."""
_OF_TYPES_ALONE = (Architecture.RGCN,)


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that these rules read."""

    graph: Graph
    model: Model
    variants: Variants
    task: Task


def _listed(architectures: tuple[Architecture, ...]) -> str:
    return "[" + ", ".join(f"'{one}'" for one in architectures) + "]"


@SEVERAL_TYPES.rule(
    f"has(self.model.program) || self.model.architecture in {_listed(_OF_TYPES)}",
    f"model.architecture must be {', '.join(_OF_TYPES)} with graph.source.typed",
)
def _architecture_is_of_types(spec: _Spec) -> bool | str:
    if spec.model.program is not None or spec.model.architecture in _OF_TYPES:
        return True
    return f"model.architecture {spec.model.architecture} must be {', '.join(_OF_TYPES)} with graph.source.typed"


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


_EMPTY = " && ".join(
    f"(!has(self.variants.{name}) || size(self.variants.{name}) == 0)" for name in ("given", "channels")
)


@SEVERAL_TYPES.rule(
    f"has(self.model.program) || ({_EMPTY} && self.variants.projection != 'Disabled')",
    "variants.given, channels and projection must be left out with graph.source.typed, whose variants are projected or "
    "stored ones",
)
def _variants_are_projected(spec: _Spec) -> bool | str:
    variants = spec.variants
    asked = {
        "given": variants.given,
        "channels": variants.channels,
        "projection": variants.projection is Projection.DISABLED,
    }
    found = [name for name, value in asked.items() if value]
    if spec.model.program is not None or not found:
        return True
    return f"variants.{found[0]} must be left out with graph.source.typed, whose variants are projected or stored ones"


@SEVERAL_TYPES.rule(
    "!has(self.variants.stored) || self.variants.stored.all(layer, layer < size(self.model.fanouts))",
    "each of variants.stored must be a layer before the last one with graph.source.typed",
)
def _scores_are_not_stored(spec: _Spec) -> bool | str:
    last = len(spec.model.fanouts)
    if last not in spec.variants.stored:
        return True
    return f"variants.stored {last} must be a layer before the last one with graph.source.typed: the model has {last}"


@SEVERAL_TYPES.rule(
    "!has(self.variants.storedFollowChanges) || !self.variants.storedFollowChanges",
    "variants.storedFollowChanges must be left out with graph.source.typed: layers behind the first hold a graph of "
    "several types as it was generated",
)
def _stored_layers_stay(spec: _Spec) -> bool:
    return not spec.variants.stored_follow_changes


KIND_RULES = RuleTable(
    (
        _architecture_is_of_types,
        _architecture_is_of_one_type,
        _relations_have_fanouts,
        _batches_are_of_types,
        _variants_are_projected,
        _scores_are_not_stored,
        _stored_layers_stay,
    )
)


def reads_products(spec: _Spec) -> bool:
    """Whether variants read products of each relation."""
    return spec.graph.source.kind.reads_products(spec.model)


def keeps_types_of_rows(spec: _Spec) -> bool:
    """Whether embeddings that are learnt of nodes are stored over the relations of the graph, so that they follow its
    changes."""
    return spec.model.learns_embeddings and spec.graph.source.kind is SEVERAL_TYPES
