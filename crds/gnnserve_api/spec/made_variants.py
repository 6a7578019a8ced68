"""Which of the listed variants are made of a model, by what its networks read."""

from __future__ import annotations

from typing import Protocol

from gnnserve_api.spec.graph import Graph
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import Projection, Variants


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that say it."""

    graph: Graph
    model: Model
    variants: Variants
    task: Task


def made_variants(spec: _Spec) -> Variants:
    """Variants whose names are possible."""
    if spec.model.program is not None:
        return variants_of_program(spec.variants)
    return _variants_of_products(spec) if reads_products(spec) else spec.variants


def variants_of_program(variants: Variants) -> Variants:
    """Those of a program, which reads all columns of features, and no product of them."""
    pruning = variants.pruning.model_copy(update={"factors": (1,)})
    return variants.model_copy(update={"pruning": pruning, "projection": Projection.DISABLED})


def _variants_of_products(spec: _Spec) -> Variants:
    """Those of networks that read products alone: none is made for factors of pruning; where links are scored, what the
    last layer gives is always stored, a row for each node."""
    pruning = spec.variants.pruning.model_copy(update={"factors": ()})
    stored = spec.task.asked().stored_layers(spec.variants.stored, len(spec.model.fanouts))
    return spec.variants.model_copy(update={"pruning": pruning, "stored": stored})
