"""Edges that leave a node: a sample has those that lead to its nodes, so the reverse of each relation, which leads to
the ends of such edges, is put beside it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count

from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.calling import TENSORS, Dictionaries, TensorForm, Tensors
from gnnserve_describe.example import Example
from gnnserve_describe.findings import Findings
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.probe import shape_of

_TYPE = "node"
_RELATION = RelationKey(_TYPE, "to", _TYPE)
"""Names in a graph whose nodes had no type."""


def with_reverses(example: Example, findings: Findings) -> Example | None:
    """The example whose graph has the reverse of each relation, too, which the module is not given. None: it has them
    all already."""
    there = shape_of(example.graph).reverses
    named = _with_names(example)
    reversed_keys = [_RELATION if not key.name else key for key in example.graph.edges if key not in there]
    if not reversed_keys:
        return None
    graph, added = named.graph, dict[RelationKey, RelationKey]()
    for key in reversed_keys:
        added[_reverse_of(key, {*graph.edges, *added})] = key
    edges = {**graph.edges, **{new: graph.edges[key].flip(0) for new, key in added.items()}}
    payload = {**graph.payload, **{new: {} for new in added}}
    form: TensorForm = named.call.form if isinstance(named.call.form, Tensors) else Dictionaries(frozenset(added))
    for new, key in added.items():
        findings.tell(
            f"edges that leave a node are read: the graph has {new.source} {new.name} {new.target} beside {key.source} "
            f"{key.name} {key.target}, the same edges the other way, which lead to their ends; a change or a request "
            "that adds an edge adds it to both"
        )
    return replace(named, graph=replace(graph, edges=edges, payload=payload), call=replace(named.call, form=form))


def _with_names(example: Example) -> Example:
    """A type and a relation have names where there are several of them."""
    if example.call.form != TENSORS:
        return example
    graph = example.graph
    (features,), (edges,), (payload,) = graph.features.values(), graph.edges.values(), graph.payload.values()
    named = GraphTensors({_TYPE: features}, {_RELATION: edges}, {_RELATION: payload})
    call = replace(example.call, form=Tensors(_TYPE, _RELATION))
    return replace(example, graph=named, call=call, scored=example.scored.renamed(_TYPE, _RELATION))


def _reverse_of(key: RelationKey, taken: Collection[RelationKey]) -> RelationKey:
    names = (f"rev_{key.name}{'' if number == 1 else f'_{number}'}" for number in count(1))
    return next(each for each in (RelationKey(key.target, name, key.source) for name in names) if each not in taken)
