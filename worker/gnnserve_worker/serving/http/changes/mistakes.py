"""Where what is wrong stands in a batch of changes, and what to do about a body that cannot be read."""

from __future__ import annotations

from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_worker.asking.body_form import LIST_OF_PAIRS, PAIR, BodyForm, node_remedies, payload_remedies
from gnnserve_worker.asking.question import shown_value
from gnnserve_worker.graph.change_batch import ChangeCounts
from gnnserve_worker.inference.served import ServedRevision

BINARY_REMEDY = f"send a batch as docs/updates.md describes {CHANGES_TYPE}, or JSON"
_LABEL = "give a label of the graph, or null; a list of labels where nodes may have several"


def _example(revision: ServedRevision) -> str:
    return f'{{"edges": [{shown_value(revision.graph.naming.shown(0, 2))}]}}'


CHANGES = BodyForm(
    members={
        "": ("nodes", "overrides", "labels", "edges", "removedEdges", "removedNodes", "edgeFeatures", "edgeTimes"),
        "nodes[]": ("id", "features", "label"),
        "overrides[]": ("id", "features"),
        "labels[]": ("id", "label"),
    },
    ids=frozenset({"nodes[].id", "overrides[].id", "labels[].id", "edges[][]", "removedEdges[][]", "removedNodes[]"}),
    remedies={
        **node_remedies("nodes"),
        **node_remedies("overrides"),
        "nodes[].label": _LABEL,
        "nodes[].label[]": _LABEL,
        "labels": 'give a list of objects, each with a node\'s id and label: [{"id": …, "label": …}]',
        "labels[]": 'give an object with a node\'s id and label: {"id": …, "label": …}',
        "labels[].label": _LABEL,
        "labels[].label[]": _LABEL,
        **payload_remedies(""),
        "edges": LIST_OF_PAIRS,
        "edges[]": PAIR,
        "removedEdges": LIST_OF_PAIRS,
        "removedEdges[]": PAIR,
        "removedNodes": "give a list of node ids",
    },
    example=_example,
)
"""The form of a batch in JSON."""


def _relation_example(revision: ServedRevision) -> str:
    types = revision.graph.types
    relation = next((one for one in types.relations if one.reverse_of is None), None)
    if relation is None:
        return '{"edges": [[…, …, …]]}'

    def first(name: str) -> str:
        return f"{name}/{next(iter(revision.graph.ids.shown(types.types[types.place_of(name)], 0, 1)), 0)}"

    return f'{{"edges": [{shown_value([first(relation.source), relation.name, first(relation.target)])}]}}'


RELATION_CHANGES = BodyForm(
    CHANGES.members,
    frozenset(),
    {
        **CHANGES.remedies,
        "edges[][]": "name a relation, between the two ends",
        "removedEdges[][]": "name a relation, between the two ends",
    },
    _relation_example,
)
"""The form of a batch whose edges name their relation."""


def place_of_id(index: int, counts: ChangeCounts, per_edge: int = 2) -> str:
    """Where the id stands in JSON that is `index` in the order of the binary form. `per_edge`: as of `ChangeBatch`."""
    for name, count in (("nodes", counts.new_nodes), ("overrides", counts.overrides), ("labels", counts.labelled)):
        if index < count:
            return f"{name}[{index}].id"
        index -= count
    for name, count in (("edges", counts.edges), ("removedEdges", counts.removed_edges)):
        if index < per_edge * count:
            edge, end = divmod(index, per_edge)
            return f"{name}[{edge}][{end}]"
        index -= per_edge * count
    return f"removedNodes[{index}]"


def place_of_label(index: int, counts: ChangeCounts) -> str:
    """Where the label stands in JSON that is `index` in the binary form."""
    if index < counts.new_nodes:
        return f"nodes[{index}].label"
    return f"labels[{index - counts.new_nodes}].label"
