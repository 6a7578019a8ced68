"""Positions in the graph of the nodes that a request names, in whatever form it names them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, shown_value

POSSIBLE_IDS = range(-(2**63), 2**63)
"""Integers that a node of some graph may have as its id: those of 64 bits with a sign."""
_FEW_NODES = 32
"""Up to here Python looks at each node before numpy has begun."""


def find_integers(wanted: np.ndarray, revision: ServedRevision, otherwise: str = "") -> np.ndarray:
    """Positions of these ids, int64 both. `otherwise`: as `unknown_node` takes it."""
    if revision.ids is None:
        _check_positions(wanted, revision, otherwise)
        return wanted
    positions = revision.ids.find_integers(wanted)
    if positions.min() < 0:
        first = int(positions.argmin())  # all that are missing are -1
        raise unknown_node(f"nodes[{first}]", str(wanted[first]), revision, otherwise)
    return positions


def find_texts(wanted: Sequence[str], revision: ServedRevision, otherwise: str = "") -> np.ndarray:
    """Byte for byte: texts that look alike but are written by other code points are other nodes."""
    assert revision.ids is not None  # noqa: S101
    positions = revision.ids.find_texts(wanted)
    if positions.min() < 0:
        first = int(positions.argmin())
        raise unknown_node(f"nodes[{first}]", shown_value(wanted[first]), revision, otherwise)
    return positions


def _check_positions(nodes: np.ndarray, revision: ServedRevision, otherwise: str) -> None:
    """Check few positions one by one, where starting NumPy's loop takes longest, and others by one comparison: as
    unsigned, a negative id is beyond any graph."""
    if len(nodes) <= _FEW_NODES:
        listed = nodes.tolist()
        if min(listed) >= 0 and max(listed) < revision.nodes:
            return
    unsigned = nodes.view(np.uint64)
    if unsigned.max() >= revision.nodes:
        first = int((unsigned >= revision.nodes).argmax())
        raise unknown_node(f"nodes[{first}]", str(nodes[first]), revision, otherwise)


def unknown_node(where: str, shown: str, revision: ServedRevision, otherwise: str = "") -> RequestError:
    """`otherwise`: what else may be meant by such an id."""
    remedy = f"node ids are 0 to {revision.nodes - 1}" if revision.ids is None else "GET /v1/nodes lists its node ids"
    if revision.joins_types and "/" not in shown:
        remedy = f"nodes are named with their type, as in {shown_value(revision.shown_ids(0, 1)[0])}; {remedy}"
    if otherwise:
        remedy += f"; {otherwise}"
    return RequestError(ErrorCode.UNKNOWN_NODE, where, f"node {shown} is not in the graph", remedy)


def find_listed(nodes: Sequence[int], revision: ServedRevision, otherwise: str) -> np.ndarray:
    try:
        wanted = np.array(nodes, dtype=np.int64)
    except OverflowError:
        # Beyond 64 bits, and so no node's; unless one before it is unknown too.
        first = next(i for i, node in enumerate(nodes) if node not in POSSIBLE_IDS)
        if first > 0:
            find_listed(nodes[:first], revision, otherwise)
        raise unknown_node(f"nodes[{first}]", shown_value(nodes[first]), revision, otherwise) from None
    if revision.ids is None and len(nodes) <= _FEW_NODES and min(nodes) >= 0 and max(nodes) < revision.nodes:
        return wanted
    return find_integers(wanted, revision, otherwise)
