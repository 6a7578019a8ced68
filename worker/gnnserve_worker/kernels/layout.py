"""Which list is which in a graph of several types, for kernels.

Nodes of several types have one numbering, type after type. A node has a list for each relation that its type reads, one
behind the other, so that one cache line tells where all of them begin: list `first_list(type) + position · lists of the
type + slot`, its slot being the place of the relation among those. All of that is one array. Where a list begins and
ends is `primitives.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_worker.kernel_cache import inlined

_HEADER = 3


def pack_layout(nodes: Sequence[int], ends: Sequence[tuple[int, int]]) -> np.ndarray:
    """`nodes`: how many each type has. `ends`: the places of the source's and the target's type of each relation, those
    of one target type beside each other. int64, writable, since a read-only array would compile kernels twice."""
    read = [[relation for relation, (_, target) in enumerate(ends) if target == kind] for kind in range(len(nodes))]
    slots = [len(relations) for relations in read]
    stride = max(slots, default=0)
    return np.array(
        [
            len(nodes),
            stride,
            len(ends),
            *np.cumsum([0, *nodes]),
            *np.cumsum([0, *(count * lists for count, lists in zip(nodes, slots, strict=True))]),
            *slots,
            *(relation for relations in read for relation in [*relations, *[-1] * (stride - len(relations))]),
            *(source for source, _ in ends),
        ],
        dtype=np.int64,
    )


@inlined
def unpack_layout(layout: np.ndarray) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return how many types there are; the most lists that a node has; and parts of the array:

    - of each type, and once more: its first node, and its first list
    - of each type: how many lists a node of it has, and for each slot up to the most: its relation, or -1
    - of each relation: the type that is read
    """
    types, stride, relations = layout[0], layout[1], layout[2]
    lists = _HEADER + types + 1
    slots = lists + types + 1
    relation_of = slots + types
    sources = relation_of + types * stride
    return (
        types, stride, layout[_HEADER:lists], layout[lists:slots], layout[slots:relation_of],
        layout[relation_of:sources], layout[sources : sources + relations],
    )  # fmt: skip


@inlined
def type_of(node: int, first_nodes: np.ndarray) -> int:
    """The type of a stored node. There are few types, so they are tried one after the other."""
    kind = 0
    while node >= first_nodes[kind + 1]:
        kind += 1
    return kind
