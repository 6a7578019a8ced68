"""Arguments of `forward` that the user gives as an example: which are of nodes, and which are edges or of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.calling import DICTIONARIES, TENSORS, Argument, ArgumentKind
from gnnserve_describe.given_graph import GivenGraph, edge_list, is_dense, is_edge_list, listed, names_edges, plain


class PlainArguments:
    """Arguments over one type."""

    form = TENSORS

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        tensors = [value for _, value in pairs if torch.is_tensor(value)]
        floats = [value for value in tensors if value.dim() == 2 and value.is_floating_point() and is_dense(value)]
        edges = next((value for value in tensors if is_edge_list(value)), None)
        if edges is None or not floats:
            raise InputError(
                "example inputs", f"no features (float [nodes, columns]) and edge_index (int64 [2, edges]) among "
                f"{listed([f'{name} {_shown(value)}'.lstrip() for name, value in pairs])}",
                "give the arguments that forward is called with",
            )  # fmt: skip
        self._edges = edge_list(edges)
        self._count = len(floats[0])
        self._nodes: dict[str, torch.Tensor] = {}
        self._payload: dict[str, torch.Tensor] = {}

    def read(self, parameter: str, name: str, value: Any) -> Argument:
        if not torch.is_tensor(value):
            is_count = isinstance(value, int) and not isinstance(value, bool) and value == self._count
            return Argument(parameter, ArgumentKind.NODE_COUNT if is_count else ArgumentKind.CONSTANT, value=value)
        if is_edge_list(value):
            return Argument(parameter, ArgumentKind.EDGES)
        rows = len(value) if value.dim() else 0
        if rows == self._count and not (names_edges(name) and rows == self._edges.shape[1]):
            self._nodes[name] = plain(value)
            return Argument(parameter, ArgumentKind.NODES, name)
        if rows == self._edges.shape[1]:
            self._payload[name] = plain(value)
            return Argument(parameter, ArgumentKind.PAYLOAD, name)
        return Argument(parameter, ArgumentKind.CONSTANT, value=value)

    def found(self) -> GivenGraph:
        key = RelationKey()
        return GivenGraph({"": self._nodes}, {key: self._edges}, {key: self._payload}, {}, {"": self._count})


class ArgumentsByType:
    """Arguments over several types: dictionaries by type, and by (source, relation, target)."""

    form = DICTIONARIES

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, torch.Tensor]] = {}
        self._edges: dict[RelationKey, torch.Tensor] = {}
        self._payload: dict[RelationKey, dict[str, torch.Tensor]] = {}

    def read(self, parameter: str, name: str, value: Any) -> Argument:
        if not isinstance(value, Mapping) or not value:
            return Argument(parameter, ArgumentKind.CONSTANT, value=value)
        if not isinstance(next(iter(value)), tuple):
            for kind, block in value.items():
                self._nodes.setdefault(kind, {})[name] = plain(block)
            return Argument(parameter, ArgumentKind.NODES, name)
        keyed = {RelationKey(*key): block for key, block in value.items()}
        if not self._edges and all(is_edge_list(block) for block in keyed.values()):
            self._edges = {key: edge_list(block) for key, block in keyed.items()}
            return Argument(parameter, ArgumentKind.EDGES)
        for key, block in keyed.items():
            self._payload.setdefault(key, {})[name] = plain(block)
        return Argument(parameter, ArgumentKind.PAYLOAD, name)

    def found(self) -> GivenGraph:
        counts = {kind: len(next(iter(blocks.values()))) for kind, blocks in self._nodes.items()}
        payload = {key: self._payload.get(key, {}) for key in self._edges}
        return GivenGraph(self._nodes, self._edges, payload, {}, counts)


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if torch.is_tensor(value) else type(value).__name__
