"""Nodes as the items of a request: one entry of the answer for each, made of scores of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnserve_worker.asking.id_list import IdList
from gnnserve_worker.asking.question import RequestError, check_node_count
from gnnserve_worker.tasks.deciding import BY_CLASS

_NODES = IdList(b'"nodes"', (b",", b"]"), (b'",', b'"]'), overlays_have_it=True)


class NodeItems:
    """Items of a request whose field `nodes` lists them, whatever is asked of them (`served.py: Items`)."""

    __slots__ = ()

    id_list = _NODES
    joined = None
    decides = BY_CLASS

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        nodes: Sequence[Any] = request.nodes
        if not 0 < len(nodes) <= max_nodes:
            check_node_count(len(nodes), max_nodes)
        return nodes

    def check_count(self, ids: int, max_nodes: int) -> None:
        check_node_count(ids, max_nodes)

    def placed(self, error: RequestError) -> RequestError:
        return error
