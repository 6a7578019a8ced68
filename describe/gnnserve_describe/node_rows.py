"""Weights that have a row for each node of one graph, given as features of nodes: so the module runs over other graphs,
and a sample brings the rows of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from gnnserve_describe.calling import Argument, Call, Part
from gnnserve_describe.example import Example
from gnnserve_describe.findings import Findings
from gnnserve_describe.given_graph import listed, plain


class ModuleWithRows(torch.nn.Module):
    """The module, some of whose weights are arguments: rows of the nodes that it is called with."""

    def __init__(self, module: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, tuple(names)
        self.train(module.training)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        rows = {name: _rows(named.pop(name)) for name in self.names}
        return torch.func.functional_call(self.module, rows, arguments, named)


def _rows(given: Any) -> torch.Tensor:
    """Over several types there is one of a type."""
    found: torch.Tensor = next(iter(given.values())) if isinstance(given, Mapping) else given
    return found


def with_rows_as_features(
    module: torch.nn.Module, example: Example, findings: Findings
) -> tuple[torch.nn.Module, Example] | None:
    """The module and its example with such weights as features; None: it has none."""
    kinds = dict(_weights_of_nodes(module, example))
    if not kinds:
        return None
    features = {kind: dict(blocks) for kind, blocks in example.graph.features.items()}
    tensors = dict(chain(module.named_parameters(), module.named_buffers()))
    for name, kind in kinds.items():
        features[kind][name] = plain(tensors[name])
    arguments = [*example.call.arguments, *(Argument(name, Part.NODES, name) for name in kinds)]
    findings.tell(
        f"{listed(kinds)} {'has' if len(kinds) == 1 else 'have'} a row for each node of this graph, and is given as "
        "columns of features: a new node brings such a row, too"
    )
    call: Call = replace(example.call, arguments=arguments)
    return ModuleWithRows(module, list(kinds)), replace(
        example, graph=replace(example.graph, features=features), call=call
    )


def _weights_of_nodes(module: torch.nn.Module, example: Example) -> Iterator[tuple[str, str]]:
    """Names of weights that have as many rows as one type has nodes, and that type."""
    counts = {kind: example.graph.nodes(kind) for kind in example.graph.types}
    of_count = Counter(counts.values())
    for name, each in chain(module.named_parameters(), module.named_buffers()):
        for kind, count in counts.items():
            is_free = name not in example.graph.features[kind]
            if each.dim() in (1, 2) and len(each) == count and of_count[count] == 1 and is_free:
                yield name, kind
