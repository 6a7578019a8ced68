"""Rules over the graph, model and variants of a spec, by the kind of its graph, of one type or of several."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.model import MODEL_IS_PROGRAM, Architecture, Model
from gnnserve_api.spec.rules import decisive
from gnnserve_api.spec.source_kinds import ONE_TYPE, SEVERAL_TYPES
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import Variants
from gnnserve_api.wording import in_words

_OF_TYPES = (Architecture.GRAPHSAGE, Architecture.GAT, Architecture.RGCN, Architecture.LIGHT_GCN)
"""Architectures over several types."""
_OF_TYPES_ALONE = (Architecture.RGCN,)
_WHY_NOT_OTHERS = (
    "GIN, GCN, SGC and SIGN add up rows of a node and its neighbours, and each type of nodes has columns of its own"
)


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that these rules read."""

    graph: GraphSpec
    model: Model
    variants: Variants
    task: Task


def _listed(architectures: tuple[Architecture, ...]) -> str:
    return "[" + ", ".join(f"'{one}'" for one in architectures) + "]"


architecture_is_of_types = decisive(
    SEVERAL_TYPES.rule(
        f"{MODEL_IS_PROGRAM} || self.model.architecture in {_listed(_OF_TYPES)}",
        f"model.architecture {{self.model.architecture}} must be {in_words(_OF_TYPES, 'or')} with graph.source.typed: "
        f"{_WHY_NOT_OTHERS}",
    )
)


architecture_is_of_one_type = decisive(
    ONE_TYPE.rule(
        f"!(self.model.architecture in {_listed(_OF_TYPES_ALONE)})",
        "model.architecture RGCN must not be given without graph.source.typed, a graph of several relations",
    )
)


relations_have_fanouts = ONE_TYPE.rule(
    "!has(self.model.relationFanouts) || size(self.model.relationFanouts) == 0",
    "model.relationFanouts must be left out without graph.source.typed: a graph of one type has no relations",
)


batches_are_of_types = ONE_TYPE.rule(
    "!has(self.model.training.batches) || self.model.training.batches == 'Auto' || has(self.model.layers)",
    "model.training.batches {self.model.training.batches} must be left out without graph.source.typed and "
    "model.layers: over one type training of an architecture always samples",
)


variants_are_projected = SEVERAL_TYPES.rule(
    f"{MODEL_IS_PROGRAM} || self.variants.projection != 'Disabled' || (has(self.variants.given) && "
    "size(self.variants.given) > 0 && size(self.variants.pruning.factors) == 0)",
    "variants.projection must not be Disabled with graph.source.typed, but with variants.given and pruning.factors [] "
    "as all there is: products are always made of a model over types",
)


given_variants_read_all_columns = SEVERAL_TYPES.rule(
    f"{MODEL_IS_PROGRAM} || !has(self.variants.given) || self.variants.given.all(one, !has(one.columns))",
    "columns of variants.given must be left out with graph.source.typed: a row is a product, as wide as the hidden "
    "layer, whichever columns it is made of",
)


def reads_products(spec: _Spec) -> bool:
    """Whether variants read products of each relation."""
    return spec.graph.source.kind.reads_products(spec.model)


def reads_relations(spec: _Spec) -> bool:
    """Whether networks read the lists of each of several relations: by products of it, or by layers that are listed."""
    return reads_products(spec) or (spec.model.layers is not None and spec.graph.source.kind is SEVERAL_TYPES)


def keeps_types_of_rows(spec: _Spec) -> bool:
    """Whether embeddings that are learnt of nodes are stored over the relations of the graph, so that they follow its
    changes."""
    return spec.model.learns_embeddings and spec.graph.source.kind is SEVERAL_TYPES
