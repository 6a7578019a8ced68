"""The user's graph, and how the module is called with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnserve_api.errors import InputError
from gnnserve_describe.arguments import ArgumentsByType, PlainArguments
from gnnserve_describe.binding import bound_arguments
from gnnserve_describe.calling import DICTIONARIES, TENSORS, ArgumentKind, ModuleCall, TensorForm
from gnnserve_describe.dgl_graph import is_dgl_graph
from gnnserve_describe.given_graph import GivenGraph, graph_of_data, graph_of_dgl, graph_of_hetero
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.scored import Choose, DescribedItems

_WHERE = "--graph"
NO_FEATURES = "no features"
"""Name of the zeros that stand for the features of a type that has none: the module may bring rows of its own."""
_NO_GRAPHS = (torch.Tensor, Mapping, int, float, str, type(None))
"""Classes of arguments that are no graphs, also where there is one argument alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    graph: GraphTensors
    call: ModuleCall
    scored: DescribedItems
    labels: torch.Tensor | None
    """Labels of the nodes that are scored, where the graph has them."""
    masks: Mapping[str, torch.Tensor]
    """Which nodes are for training, validation and test, by the names of the masks, where the graph has them."""

    def check_features(self) -> None:
        """InputError: a type has none."""
        for kind, blocks in self.graph.features.items():
            if NO_FEATURES in blocks:
                there = f"{self.graph.nodes(kind):,} nodes" + (f" of type {kind!r}" if kind else "")
                raise InputError(
                    _WHERE, f"{there} have no features that forward reads",
                    "give each type a matrix of features; an embedding for each node (torch.nn.Embedding) becomes one: "
                    "take its weight as x",
                )  # fmt: skip

    @property
    def target(self) -> str:
        """The type whose nodes are scored."""
        return self.scored.target


def example_of(module: torch.nn.Module, given: Any, choose: Choose, inputs: Sequence[str] = ()) -> Example:
    """Example by what the user gives: a graph, or the arguments of `forward` (a tuple, or a dictionary by their names).
    `inputs`: names of what `forward` is given, `parameter=name` or in its order; empty: by the names of its
    parameters."""
    found, call = _found(module, given, inputs)
    return _example(found, call, choose(found))


def _found(module: torch.nn.Module, given: Any, inputs: Sequence[str]) -> tuple[GivenGraph, ModuleCall]:
    if isinstance(given, tuple | list) or (isinstance(given, dict) and not _is_named_graph(given)):
        return _of_arguments(module, given, inputs)
    form: TensorForm = TENSORS
    if is_dgl_graph(given):
        found = graph_of_dgl(given)
    elif hasattr(given, "edge_types") and hasattr(given, "node_types"):
        found, form = graph_of_hetero(given), DICTIONARIES
    elif isinstance(given, Mapping) or hasattr(given, "edge_index") or hasattr(given, "adj_t") or _has_pairs(given):
        found = graph_of_data(given)
    else:
        raise InputError(
            _WHERE, f"it is of type {type(given).__name__}, and no graph",
            "give a Data or HeteroData of torch_geometric (of a data set: dataset[0]), a graph of DGL, or a tuple of "
            "the arguments of forward",
        )  # fmt: skip
    return found, ModuleCall(bound_arguments(module, found, given, inputs), form)


def _has_pairs(given: Any) -> bool:
    """Whether it iterates over names and values, as a `Data` does."""
    first = next(iter(given), None) if isinstance(given, Iterable) and not torch.is_tensor(given) else None
    return isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str)


def _is_named_graph(given: Mapping[Any, Any]) -> bool:
    return "edge_index" in given and "x" in given


def _of_arguments(module: torch.nn.Module, given: Any, inputs: Sequence[str]) -> tuple[GivenGraph, ModuleCall]:
    """The arguments of `forward`: told by their names, types and shapes."""
    names = list(inspect.signature(module.forward).parameters)
    pairs = list(given.items()) if isinstance(given, Mapping) else [("", value) for value in given]
    if len(pairs) == 1 and not isinstance(pairs[0][1], _NO_GRAPHS):
        # The graph itself.
        return _found(module, pairs[0][1], inputs)
    are_by_type = any(isinstance(value, Mapping) for _, value in pairs)
    reader = ArgumentsByType() if are_by_type else PlainArguments(pairs)
    arguments = []
    for place, (parameter, value) in enumerate(pairs):
        name = (parameter or (names[place] if place < len(names) else f"input{place}")).removesuffix("_dict")
        arguments.append(reader.read(parameter, name, value))
    return reader.found(), ModuleCall(arguments, reader.form)


def _example(found: GivenGraph, call: ModuleCall, scored: DescribedItems) -> Example:
    """Leaves aside what no argument is made of."""
    parts = {each.part for each in call.arguments}
    takes_all = ArgumentKind.GRAPH in parts or ArgumentKind.DGL_GRAPH in parts
    nodes = {each.block for each in call.arguments if each.part is ArgumentKind.NODES}
    payload = {each.block for each in call.arguments if each.part is ArgumentKind.PAYLOAD}
    features = {
        kind: {name: block for name, block in blocks.items() if takes_all or name in nodes}
        for kind, blocks in found.nodes.items()
    }
    for kind, blocks in features.items():
        if not blocks:
            features[kind] = {NO_FEATURES: torch.zeros(found.counts[kind], 1)}
    kept = GraphTensors(
        features, found.edges,
        {key: {name: block for name, block in blocks.items() if takes_all or name in payload}
         for key, blocks in found.payload.items()},
    )  # fmt: skip
    return Example(kept, call, scored, scored.labels_in(found), scored.masks_in(found))
