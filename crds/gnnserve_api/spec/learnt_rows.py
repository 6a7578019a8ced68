"""Services that answer by rows which are learnt of links: what is served is another network than what is trained."""

from __future__ import annotations

from gnnserve_api.spec.service import GNNServiceSpec


def serves_learnt_rows(spec: GNNServiceSpec) -> bool:
    """Whether what is served are embeddings that are learnt of links, a row for each node: LightGCN's, and those of
    networks over several types."""
    return spec.task.links is not None and (spec.model.learns_embeddings or spec.graph.source.typed is not None)


def served_as_rows(spec: GNNServiceSpec) -> GNNServiceSpec:
    """The spec with the model that is served: of a network over several types, its final embeddings."""
    if not serves_learnt_rows(spec) or spec.model.learns_embeddings:
        return spec
    return spec.model_copy(update={"model": spec.model.of_learnt_rows()})
