"""Limits of what one request may bring, and numbers that float32 does not have, whatever form the request is in."""

from __future__ import annotations

import numpy as np

from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted

MOST_FEATURE_BYTES = 16 * 1024 * 1024
"""Features of one request's new nodes and overrides, as float32."""
NUMBER_BYTES = 4


def check_sizes(new_nodes: int, overrides: int, edges: int, features: int, limits: OverlayLimits) -> None:
    nodes = new_nodes + overrides
    where = "overlay.nodes" if new_nodes else "overlay.overrides"
    if nodes > limits.max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_NODES,
            where,
            f"{counted(new_nodes, 'new node')} and {counted(overrides, 'override')}, more than the "
            f"{limits.max_nodes:,} that one request may have",
            "split the request, or raise spec.endpoint.overlay.maxNodes",
        )
    if edges > limits.max_edges:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_EDGES,
            "overlay.edges",
            f"{counted(edges, 'edge')}, more than the {limits.max_edges:,} that one request may have",
            f"{'split the request' if limits.max_edges else 'leave them out'}, or raise spec.endpoint.overlay.maxEdges",
        )
    _check_bytes(where, "nodes", nodes, features)


def check_edge_bytes(edges: int, columns: int) -> None:
    """`columns`: features of an edge."""
    _check_bytes("overlay.edges", "edges", edges, columns)


def _check_bytes(where: str, items: str, count: int, columns: int) -> None:
    size = count * columns * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise RequestError(
            ErrorCode.OVERLAY_TOO_LARGE,
            where,
            f"{count:,} {items} with {columns:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one request may have",
            "split the request",
        )


def check_finite(features: np.ndarray, new_nodes: int) -> None:
    """`features`: float32 [new nodes and overrides, features] of a form that can have numbers that are not finite."""
    are_finite = np.isfinite(features)
    if np.count_nonzero(are_finite) < features.size:
        row, column = divmod(int(are_finite.argmin()), features.shape[1])
        field = f"overlay.nodes[{row}]" if row < new_nodes else f"overlay.overrides[{row - new_nodes}]"
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"{field}.features[{column}]",
            f"{features[row, column]} is not finite",
            "give a number",
        )
