"""Overlay of a request, nodes and edges that the graph does not have, as a user states it, and in both forms that are
sent."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gnnserve_api.errors import InputError
from gnnserve_client.arrays import (
    Features,
    Ids,
    NamedFeatures,
    are_texts,
    as_json,
    as_rows,
    pack_features,
    read_edge_features,
    read_edge_times,
    read_edges,
    read_features,
    read_overrides,
    read_some_ids,
)

_COUNTS = struct.Struct("<4q")


class Overlay:
    """New nodes, edges, and new features of stored nodes, for one request alone.

    New nodes without ids are called -1, -2, … in the order of `features`, in the edges and among the nodes asked for.
    Their features, and those of stored nodes (`overrides`), are a matrix with a row for each, in the order of the
    source's columns, or a mapping for each by the columns' names. Edges are pairs of source and target; where edges of
    the graph have features or times, so have these: `edge_features` is a matrix with a row for each, `edge_times` has
    an integer for each. Features of overrides may also stand beside their ids: `overrides={17: {"amount": 0}}`.
    """

    def __init__(
        self,
        *,
        features: Features | None = None,
        nodes: ArrayLike | None = None,
        edges: ArrayLike | None = None,
        edge_features: ArrayLike | None = None,
        edge_times: ArrayLike | None = None,
        overrides: ArrayLike | Mapping[Any, NamedFeatures] | None = None,
        override_features: Features | None = None,
    ) -> None:
        count = 0 if features is None else len(features if isinstance(features, Sequence) else np.asarray(features))
        self.nodes = read_some_ids(-1 - np.arange(count) if nodes is None else nodes, "overlay.nodes")
        self.own_ids = self.nodes[: 0 if nodes is None else len(self.nodes)]
        """Ids of new nodes that are of the user's choice."""
        self.features = read_features(features, len(self.nodes), "overlay.features")
        self.edges = read_edges(edges, "overlay.edges")
        self.edge_features = read_edge_features(edge_features, len(self.edges), "overlay.edge_features")
        self.edge_times = read_edge_times(edge_times, len(self.edges), "overlay.edge_times")
        self.overrides, self.override_features = read_overrides(overrides, override_features, "overlay.overrides")

    def is_binary(self, asked: Ids) -> bool:
        """Whether the overlay can be sent as arrays, with these nodes asked for.

        New nodes with ids of their own are sent as JSON, so that the server sees whether the graph has such a node.
        """
        ids = (asked, self.edges, self.overrides)
        are_arrays = isinstance(self.features, np.ndarray) and isinstance(self.override_features, np.ndarray)
        return are_arrays and not len(self.own_ids) and not any(one.dtype.kind != "i" for one in ids)

    def to_bytes(self, asked: Ids) -> bytes:
        """The binary form of a request for these nodes."""
        counts = _COUNTS.pack(len(asked), len(self.nodes), len(self.edges), len(self.overrides))
        ids = (np.ascontiguousarray(one, "<i8").tobytes() for one in (asked, self.edges, self.overrides))
        times = np.ascontiguousarray(self.edge_times, "<i8").tobytes()
        _, features = pack_features(self.features, self.override_features)
        return b"".join((counts, *ids, times, features, np.ascontiguousarray(self.edge_features, "<f4").tobytes()))

    def to_builtins(self, asked: Ids) -> dict[str, Any]:
        """The field `overlay` of a request in JSON for these nodes."""
        are_texts(asked, self.nodes, self.edges, self.overrides)
        parts = {
            "nodes": _rows(self.nodes, as_rows(self.features, "overlay.features")),
            "edges": self.edges.tolist(),
            "edgeFeatures": self.edge_features.tolist(),
            "edgeTimes": self.edge_times.tolist(),
            "overrides": _rows(self.overrides, as_rows(self.override_features, "overlay.override_features")),
        }
        return {name: part for name, part in parts.items() if part}


def brought_by(overlay: Overlay | Mapping[str, Any] | None, asked: Ids) -> dict[str, Any] | None:
    """The field `overlay` of a request in JSON for these nodes; None: it brings nothing. A mapping: as JSON has it.
    Raises InputError."""
    if overlay is None:
        return None
    if isinstance(overlay, Overlay):
        return overlay.to_builtins(asked) or None
    if not isinstance(overlay, Mapping):
        raise InputError(
            "overlay",
            f"{type(overlay).__name__} is none",
            "give an `Overlay`, or a mapping as docs/http.md describes it",
        )
    return as_json(overlay, "overlay") or None


def _rows(ids: Ids, rows: list[Any]) -> list[dict[str, Any]]:
    return [{"id": node, "features": row} for node, row in zip(ids.tolist(), rows, strict=True)]
