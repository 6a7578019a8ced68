"""Kinds of graphs that a source may have, each an object: of one type of nodes, or of several types and relations.

A source says which kind its graph has (`GraphSource.kind`). A rule that holds for one kind alone is declared by it, so
that neither rules nor what is generated ask which one it is; a further kind is one more object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.spec.rules import Rule, rule


class _Model(Protocol):
    """The part of a Model that says what its variants read."""

    @property
    def learns_embeddings(self) -> bool: ...  # pragma: no cover

    @property
    def is_program(self) -> bool: ...  # pragma: no cover


@dataclass(frozen=True, slots=True, eq=False)
class GraphSourceKind:
    others: str
    """CEL over a GNNServiceSpec: its graph is of another kind."""
    reads_products: Callable[[_Model], bool]
    """Whether variants of a model read products of each relation."""
    why_not_modelled: str = ""
    """Why latencies over such a graph are not modelled before training; empty: they are."""

    def rule(self, cel: str, message: str) -> Rule:
        """A rule of specs whose graph is of this kind."""
        return rule(f"{self.others} || {cel}", message)


def _of_layers_over_relations(model: _Model) -> bool:
    """LightGCN's variants read embeddings, and programs and listed layers read features."""
    return not model.learns_embeddings and not model.is_program


ONE_TYPE = GraphSourceKind("has(self.graph.source.typed)", lambda model: False)
SEVERAL_TYPES = GraphSourceKind(
    "!has(self.graph.source.typed)", _of_layers_over_relations, "those over graphs of one type alone are"
)
