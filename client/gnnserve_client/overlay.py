"""Overlay of a request, nodes and edges that the graph does not have, as a user states it, and in both forms that are
sent."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from gnnserve_api.errors import InputError
from gnnserve_client.arrays import (
    FeatureRows,
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

_COUNTS, _LENGTH = struct.Struct("<4q"), struct.Struct("<q")
Relation = tuple[str, str, str]
"""Source, name and target, as of torch_geometric's `HeteroData`."""


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


class TypedOverlay:
    """New nodes, edges, and new features of stored nodes of a graph of several types, for one request alone.

    What is of one type, or of one relation, is an entry of a mapping, as in torch_geometric's `HeteroData`, and has the
    forms that `Overlay` has. New nodes without ids are called -1, -2, … within their type: an end of an edge is of the
    type that its relation has there, and nodes asked about are of the type that is classified.

    Of types without features `nodes` says how many are new: `nodes={"tag": [-1, -2]}`.
    """

    def __init__(
        self,
        *,
        features: Mapping[str, Features] | None = None,
        nodes: Mapping[str, ArrayLike] | None = None,
        edges: Mapping[Relation, ArrayLike] | None = None,
        edge_features: Mapping[Relation, ArrayLike] | None = None,
        edge_times: Mapping[Relation, ArrayLike] | None = None,
        overrides: Mapping[str, ArrayLike | Mapping[Any, NamedFeatures]] | None = None,
        override_features: Mapping[str, Features] | None = None,
    ) -> None:
        rows, ids, changed = features or {}, nodes or {}, override_features or {}
        self._nodes = {
            name: _NewNodes(name, ids.get(name), rows.get(name)) for name in dict.fromkeys((*rows, *ids))
        }  # fmt: skip
        self._edges = {
            _relation(each): _Edges(_shown(each), pairs, (edge_features or {}).get(each), (edge_times or {}).get(each))
            for each, pairs in (edges or {}).items()
        }
        self._overrides = {
            name: read_overrides(given, changed.get(name), f"overlay.overrides[{name!r}]")
            for name, given in (overrides or {}).items()
        }
        _check_known(changed, self._overrides, "override_features")
        _check_known(edge_features or {}, self._edges, "edge_features")
        _check_known(edge_times or {}, self._edges, "edge_times")

    def is_binary(self, asked: Ids) -> bool:
        """Whether the overlay can be sent as arrays, with these nodes asked for."""
        ids = [asked, *(one.ends for one in self._edges.values()), *(nodes for nodes, _ in self._overrides.values())]
        rows = [one.features for one in self._nodes.values()] + [features for _, features in self._overrides.values()]
        return (
            all(one.dtype.kind == "i" for one in ids)
            and all(isinstance(one, np.ndarray) for one in rows)
            and all(one.are_counted for one in self._nodes.values())
        )

    def to_bytes(self, asked: Ids) -> bytes:
        """The binary form of a request for these nodes."""
        new = {name: one for name, one in self._nodes.items() if len(one.ids)}
        edges = {relation: one for relation, one in self._edges.items() if len(one.ends)}
        overrides = {name: one for name, one in self._overrides.items() if len(one[0])}
        parts = {
            "nodes": [[name, len(one.ids)] for name, one in new.items()],
            "edges": [[*relation, len(one.ends)] for relation, one in edges.items()],
            "overrides": [[name, len(nodes)] for name, (nodes, _) in overrides.items()],
        }
        text = b""
        if new or edges or overrides:
            named = msgspec.json.encode(parts)
            named = named.ljust(-(-len(named) // _LENGTH.size) * _LENGTH.size)
            text = _LENGTH.pack(len(named)) + named
        counts = (
            sum(len(one.ids) for one in new.values()),
            sum(len(one.ends) for one in edges.values()),
            sum(len(nodes) for nodes, _ in overrides.values()),
        )
        ids = [asked, *(one.ends for one in edges.values()), *(nodes for nodes, _ in overrides.values())]
        rows: list[FeatureRows] = [one.features for one in new.values()]
        rows += [features for _, features in overrides.values()]
        rows += [one.features for one in edges.values()]
        return b"".join(
            (
                _COUNTS.pack(len(asked), *counts),
                text,
                *(np.ascontiguousarray(one, "<i8").tobytes() for one in ids),
                *(np.ascontiguousarray(one.times, "<i8").tobytes() for one in edges.values()),
                *(pack_features(one)[1] for one in rows),
            )
        )

    def to_builtins(self, asked: Ids) -> dict[str, Any]:
        """The field `overlay` of a request in JSON."""
        edges, features, times = list[Any](), list[Any](), list[Any]()
        for (source, name, target), one in self._edges.items():
            edges += ([_named(source, first), name, _named(target, second)] for first, second in one.ends.tolist())
            features += one.features.tolist() or [None] * len(one.ends)
            times += one.times.tolist() or [None] * len(one.ends)
        overrides = list[Any]()
        for name, (nodes, rows) in self._overrides.items():
            overrides += _typed_rows(name, nodes, as_rows(rows, "override_features"))
        parts = {
            "nodes": [row for name, one in self._nodes.items() for row in one.as_json(name)],
            "edges": edges,
            "edgeFeatures": features if any(features) else [],
            "edgeTimes": times if any(time is not None for time in times) else [],
            "overrides": overrides,
        }
        return {name: part for name, part in parts.items() if part}


class _NewNodes:
    """New nodes of one type."""

    def __init__(self, name: str, nodes: ArrayLike | None, features: Features | None) -> None:
        count = 0 if features is None else len(features if isinstance(features, Sequence) else np.asarray(features))
        self.ids = read_some_ids(-1 - np.arange(count) if nodes is None else nodes, f"overlay.nodes[{name!r}]")
        self.has_features = features is not None
        self.features: FeatureRows = np.zeros((len(self.ids), 0), np.float32)
        if self.has_features:
            self.features = read_features(features, len(self.ids), f"overlay.features[{name!r}]")
        self.are_counted = self.ids.tolist() == [-1 - place for place in range(len(self.ids))]
        """Whether they have no ids of the user's choice."""

    def as_json(self, name: str) -> list[dict[str, Any]]:
        if not self.has_features:
            return [{"id": _named(name, node)} for node in self.ids.tolist()]
        return _typed_rows(name, self.ids, as_rows(self.features, f"overlay.features[{name!r}]"))


class _Edges:
    """Edges of one relation."""

    def __init__(
        self, shown: str, pairs: ArrayLike, features: ArrayLike | None, times: ArrayLike | None
    ) -> None:  # fmt: skip
        self.ends = read_edges(pairs, f"overlay.edges[{shown}]")
        self.features = read_edge_features(features, len(self.ends), f"overlay.edge_features[{shown}]")
        self.times = read_edge_times(times, len(self.ends), f"overlay.edge_times[{shown}]")


AnyOverlay = Overlay | TypedOverlay


def _shown(relation: Any) -> str:
    return repr(relation)[:80]


def _relation(given: Any) -> Relation:
    if not isinstance(given, tuple) or len(given) != 3 or not all(isinstance(name, str) for name in given):
        raise InputError("overlay.edges", f"{_shown(given)} is no relation", 'name it as ("user", "buys", "item")')
    source, name, target = given
    return source, name, target


def _check_known(given: Mapping[Any, Any], known: Mapping[Any, Any], where: str) -> None:
    for name in given:
        if name not in known:
            remedy = f"name it in {where.partition('_')[0]}s too, or leave it out"
            raise InputError(f"overlay.{where}", f"there is nothing of {_shown(name)}", remedy)


def _named(type_: str, node: int | str) -> dict[str, Any]:
    return {"type": type_, "id": node}


def _typed_rows(name: str, ids: Ids, rows: list[Any]) -> list[dict[str, Any]]:
    return [{"id": _named(name, node), "features": row} for node, row in zip(ids.tolist(), rows, strict=True)]


def brought_by(overlay: AnyOverlay | Mapping[str, Any] | None, asked: Ids) -> dict[str, Any] | None:
    """The field `overlay` of a request in JSON for these nodes; None: it brings nothing. A mapping: as JSON has it.
    Raises InputError."""
    if overlay is None:
        return None
    if isinstance(overlay, AnyOverlay):
        return overlay.to_builtins(asked) or None
    if not isinstance(overlay, Mapping):
        raise InputError(
            "overlay",
            f"{type(overlay).__name__} is none",
            "give an `Overlay`, a `TypedOverlay`, or a mapping as docs/http.md describes it",
        )
    return as_json(overlay, "overlay") or None


def _rows(ids: Ids, rows: list[Any]) -> list[dict[str, Any]]:
    return [{"id": node, "features": row} for node, row in zip(ids.tolist(), rows, strict=True)]
