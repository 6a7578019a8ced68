"""Rows that a module keeps of each node of one graph, given as features of nodes: weights with a row for each, or a
table that is all it returns. So it runs over other graphs, and a sample brings the rows of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from gnnserve_describe.calling import Argument, ArgumentKind, ModuleCall
from gnnserve_describe.example import NO_FEATURES, Example
from gnnserve_describe.given_graph import listed, plain
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.scoring import tensors_of


@dataclass(frozen=True, slots=True, eq=False)
class RowsAsFeatures:
    """A module whose rows of nodes are features of the example."""

    module: torch.nn.Module
    example: Example
    finding: str


@dataclass(frozen=True, slots=True)
class _Weight:
    """A tensor that has an axis over the nodes of one type."""

    name: str
    type: str
    axis: int
    shape: tuple[int, ...]
    """Shape of one node's part."""

    def rows_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """[nodes], or [nodes, columns]."""
        return tensor.movedim(self.axis, 0).flatten(1) if self.has_others else tensor

    def of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.unflatten(rows, 1, self.shape).movedim(0, self.axis).contiguous() if self.has_others else rows

    @property
    def has_others(self) -> bool:
        """Whether it is no matrix or vector of nodes as it stands."""
        return self.axis > 0 or len(self.shape) > 1


class ModuleWithRows(torch.nn.Module):
    """The module, some of whose weights are arguments: rows of the nodes that it is called with."""

    def __init__(self, module: torch.nn.Module, weights: Sequence[_Weight], counts: Sequence[tuple[str, str]]) -> None:
        """`counts`: attributes that hold the number of nodes of the first weight's type, each with the name of its
        module."""
        super().__init__()
        self.module, self.weights, self.counts = module, tuple(weights), tuple(counts)
        self.train(module.training)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        rows = {each.name: _rows(named.pop(each.name)) for each in self.weights}
        for path, attribute in self.counts:
            # The caller brings them back (`restored_attributes`).
            setattr(self.module.get_submodule(path), attribute, rows[self.weights[0].name].shape[0])
        given = {each.name: each.of_rows(rows[each.name]) for each in self.weights}
        return torch.func.functional_call(self.module, given, arguments, named)


class RowsAlone(torch.nn.Module):
    """Gives the rows that it is given."""

    def forward(self, rows: Any) -> torch.Tensor:
        return _rows(rows)


def _rows(given: Any) -> torch.Tensor:
    """Over several types there is one of a type."""
    found: torch.Tensor = next(iter(given.values())) if isinstance(given, Mapping) else given
    return found


def with_rows_as_features(module: torch.nn.Module, example: Example, other: GraphTensors) -> Iterator[RowsAsFeatures]:
    """Ways to give such rows as features, the likeliest first. `other`: a graph with nothing of the example's but its
    types and relations."""
    weights = list(_weights_of_nodes(module, example))
    if weights:
        finding = (
            f"{listed(each.name for each in weights)} {'has' if len(weights) == 1 else 'have'} a row for each node of "
            "this graph, and is given as columns of features: a new node brings such a row, too"
        )
        moved = _with_weights(example, module, weights)
        yield RowsAsFeatures(ModuleWithRows(module, weights, ()), moved, finding)
        counts = list(_counts_of_nodes(module, example.graph.nodes(weights[0].type)))
        if counts:
            yield RowsAsFeatures(ModuleWithRows(module, weights, counts), moved, finding)
    table = _table(module, example, other)
    if table is not None:
        # Other types are not read, whether they have features or zeros in their place.
        others = {
            kind: {name.replace(NO_FEATURES, "zeros"): block for name, block in blocks.items()}
            for kind, blocks in example.graph.features.items()
        }
        features = {**others, example.target: {"rows": plain(table)}}
        call = replace(example.call, arguments=[Argument("", ArgumentKind.NODES, "rows")])
        yield RowsAsFeatures(
            RowsAlone().eval(), replace(example, graph=replace(example.graph, features=features), call=call),
            "it returns the same rows whatever it is given, one for each node of this graph, which are given as "
            "features: a new node brings such a row, too",
        )  # fmt: skip


def _with_weights(example: Example, module: torch.nn.Module, weights: Sequence[_Weight]) -> Example:
    features = {kind: dict(blocks) for kind, blocks in example.graph.features.items()}
    tensors = dict(_tensors(module))
    for each in weights:
        features[each.type].pop(NO_FEATURES, None)
        features[each.type][each.name] = plain(each.rows_of(tensors[each.name]))
    arguments = [*example.call.arguments, *(Argument(each.name, ArgumentKind.NODES, each.name) for each in weights)]
    call: ModuleCall = replace(example.call, arguments=arguments)
    return replace(example, graph=replace(example.graph, features=features), call=call)


def _weights_of_nodes(module: torch.nn.Module, example: Example) -> Iterator[_Weight]:
    """Weights that have one axis as long as one type has nodes."""
    counts = {kind: example.graph.nodes(kind) for kind in example.graph.types}
    of_count = Counter(counts.values())
    for name, each in _tensors(module):
        for kind, count in counts.items():
            axes = [axis for axis, size in enumerate(each.shape) if size == count]
            if len(axes) == 1 and of_count[count] == 1 and name not in example.graph.features[kind]:
                shape = tuple(size for axis, size in enumerate(each.shape) if axis != axes[0])
                yield _Weight(name, kind, axes[0], shape)


def _counts_of_nodes(module: torch.nn.Module, nodes: int) -> Iterator[tuple[str, str]]:
    for path, each in module.named_modules():
        yield from ((path, name) for name, value in vars(each).items() if type(value) is int and value == nodes)


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _table(module: torch.nn.Module, example: Example, other: GraphTensors) -> torch.Tensor | None:
    """What the module returns over any graph, where it has a row for each node of the example's; None: it does not."""
    try:
        with torch.no_grad():
            one, two = (
                [tensor for _, tensor in tensors_of(example.call(module, graph))] for graph in (example.graph, other)
            )
    except Exception:  # noqa: BLE001 - whatever the module raises is told where it is called
        return None
    if len(one) != 1 or len(two) != 1 or one[0].dim() != 2 or not one[0].is_floating_point():
        return None
    is_table = len(one[0]) == example.graph.nodes(example.target) and torch.equal(one[0], two[0])
    return one[0] if is_table else None
