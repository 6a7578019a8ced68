"""A graph with DGL's interface that computes by torch alone, so that a module which is given it can be exported.

DGL computes in a library of its own, which no exporter sees. Here is what its convolutions, and functions of users on
messages, ask of a graph of one type. The scores that the program must give are those that DGL computed over its own
graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnnserve_api.errors import InputError

_OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "dot": lambda one, two: (one * two).sum(dim=-1, keepdim=True),
}
_ENDS = {"u": "src", "v": "dst", "e": "data"}


def is_dgl_graph(given: Any) -> bool:
    return hasattr(given, "ndata") and hasattr(given, "edata") and hasattr(given, "in_degrees")


class TorchGraph:
    """One type of nodes and of edges."""

    is_block = False
    is_homogeneous = True
    batch_size = 1
    ntypes = ("_N",)
    etypes = ("_E",)
    canonical_etypes = (("_N", "_E", "_N"),)

    def __init__(
        self, edges: torch.Tensor, nodes: int, ndata: dict[str, torch.Tensor], edata: dict[str, torch.Tensor]
    ) -> None:
        self._sources, self._targets, self._nodes = edges[0], edges[1], nodes
        self.ndata, self.edata = dict(ndata), dict(edata)

    @property
    def srcdata(self) -> dict[str, torch.Tensor]:
        return self.ndata

    @property
    def dstdata(self) -> dict[str, torch.Tensor]:
        return self.ndata

    @property
    def device(self) -> torch.device:
        return self._sources.device

    def num_nodes(self, _kind: str | None = None) -> int:
        return self._nodes

    number_of_nodes = num_src_nodes = num_dst_nodes = number_of_src_nodes = number_of_dst_nodes = num_nodes

    def num_edges(self, _kind: str | None = None) -> int:
        return self._sources.shape[0]

    number_of_edges = num_edges

    def edges(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._sources, self._targets

    all_edges = edges

    def batch_num_nodes(self) -> list[int]:
        return [self._nodes]

    def in_degrees(self) -> torch.Tensor:
        return self._counted(self._targets)

    def out_degrees(self) -> torch.Tensor:
        return self._counted(self._sources)

    def _counted(self, ends: torch.Tensor) -> torch.Tensor:
        return torch.zeros(self._nodes, dtype=torch.long).index_add(0, ends, torch.ones_like(ends))

    def local_var(self) -> TorchGraph:
        return TorchGraph(torch.stack([self._sources, self._targets]), self._nodes, self.ndata, self.edata)

    @contextmanager
    def local_scope(self) -> Iterator[None]:
        before = self.ndata, self.edata
        self.ndata, self.edata = dict(self.ndata), dict(self.edata)
        try:
            yield
        finally:
            self.ndata, self.edata = before

    def apply_edges(self, function: Any, *_: Any, **__: Any) -> None:
        self.edata |= self._messages(function)

    def apply_nodes(self, function: Any, *_: Any, **__: Any) -> None:
        self.ndata |= function(_Nodes(self.ndata))

    def update_all(self, message: Any, reduce: Any, apply: Any = None, *_: Any, **__: Any) -> None:
        messages = self._messages(message)
        if not hasattr(reduce, "msg_field"):
            raise InputError(
                "forward", "it reduces messages by a function of its own, over mailboxes, which DGL fills node by node",
                "use one of DGL's reduce functions: dgl.function.sum, mean, max or min",
            )  # fmt: skip
        self.ndata[reduce.out_field] = self._reduced(reduce.name, messages[reduce.msg_field])
        if apply is not None:
            self.apply_nodes(apply)

    def _messages(self, function: Any) -> dict[str, torch.Tensor]:
        edges = _Edges(self)
        if not hasattr(function, "out_field"):
            made: dict[str, torch.Tensor] = function(edges)
            return made
        parts = function.name.split("_")
        if parts[0] == "copy":
            return {function.out_field: edges.read(parts[1], function.in_field)}
        one, two = edges.read(parts[0], function.lhs_field), edges.read(parts[2], function.rhs_field)
        return {function.out_field: _OPERATIONS[parts[1]](*_aligned(one, two))}

    def _reduced(self, name: str, messages: torch.Tensor) -> torch.Tensor:
        """By the node that reads; 0 of a node that reads none."""
        made = messages.new_zeros(self._nodes, *messages.shape[1:])
        if name in ("sum", "mean"):
            made = made.index_add(0, self._targets, messages)
            return made / _as_column(self.in_degrees().clamp(min=1), made) if name == "mean" else made
        index = _as_column(self._targets, messages).expand_as(messages)
        return made.scatter_reduce(0, index, messages, f"a{name}", include_self=False)

    def softmax_by_target(self, scores: torch.Tensor) -> torch.Tensor:
        most = self._reduced("max", scores.detach())[self._targets]
        weights = (scores - most).exp()
        return weights / self._reduced("sum", weights)[self._targets]


class _Nodes:
    def __init__(self, data: dict[str, torch.Tensor]) -> None:
        self.data = data


class _Edges:
    """Edges as functions on messages see them."""

    def __init__(self, graph: TorchGraph) -> None:
        self.data = graph.edata
        self._ends = graph.edges()
        self.src = _EndFeatures(graph.ndata, self._ends[0])
        self.dst = _EndFeatures(graph.ndata, self._ends[1])

    def read(self, end: str, field: str) -> torch.Tensor:
        found: torch.Tensor = getattr(self, _ENDS[end])[field]
        return found

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (*self._ends, torch.arange(self._ends[0].shape[0]))


class _EndFeatures:
    def __init__(self, data: dict[str, torch.Tensor], ends: torch.Tensor) -> None:
        self._data, self._ends = data, ends

    def __getitem__(self, field: str) -> torch.Tensor:
        return self._data[field].index_select(0, self._ends)


def _aligned(one: torch.Tensor, two: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns broadcast from the last one on; rows are edges."""
    most = max(one.dim(), two.dim())
    made = [each.reshape(each.shape[0], *[1] * (most - each.dim()), *each.shape[1:]) for each in (one, two)]
    return made[0], made[1]


def _as_column(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return numbers.reshape(-1, *[1] * (like.dim() - 1))


# Functions of DGL that take a graph, or compute in its library


def _edge_softmax(graph: TorchGraph, scores: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return graph.softmax_by_target(scores)


def _gather_mm(rows: torch.Tensor, matrices: torch.Tensor, *, idx_b: torch.Tensor) -> torch.Tensor:
    made = rows.new_zeros(rows.shape[0], matrices.shape[-1])
    for place in range(matrices.shape[0]):
        made = torch.where((idx_b == place).unsqueeze(1), rows @ matrices[place], made)
    return made


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {"edge_softmax": _edge_softmax, "gather_mm": _gather_mm}


@contextmanager
def dgl_by_torch() -> Iterator[None]:
    """Within it, functions of DGL compute by torch, wherever modules have imported them."""
    operations: Any = sys.modules.get("dgl.ops")
    originals = {name: getattr(operations, name, None) for name in _FUNCTIONS}
    changed = []
    for module in list(sys.modules.values()):
        for name, original in originals.items():
            if original is not None and getattr(module, "__dict__", {}).get(name) is original:
                setattr(module, name, _FUNCTIONS[name])
                changed.append((module, name))
    try:
        yield
    finally:
        for module, name in changed:
            setattr(module, name, originals[name])
