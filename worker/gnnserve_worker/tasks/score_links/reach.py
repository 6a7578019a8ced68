"""Whether a network over several types gives anything for the nodes that links join."""

from __future__ import annotations

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import LinkSet
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import relational_spec_of


def check_ends_are_reached(model: Model, task: Links, links: LinkSet, data: GraphData) -> None:
    """Raises InputError for an end of links whose nodes read nothing that has a hidden state."""
    architecture, typed = relational_spec_of(model.architecture), data.schema
    if architecture.gives_own_part:
        return
    network = model.network(task.dimensions)
    reached = RelationalShape(typed, model.hidden, task.dimensions, network.layers).reached()[network.layers]
    for end in (links.first, links.second):
        if typed.place_of(end.type) not in reached:
            raise InputError(
                "spec.model.architecture",
                f"{model.architecture} of {network.layers} layers gives nothing for nodes of type {end.type}, which no "
                "relation leads to",
                "let relations be read the other way too (spec.graph.source.typed.reverse: Add), or use RGCN",
            )
