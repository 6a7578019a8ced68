"""Nodes, edges and features that requests bring, from ids and numbers to the arrays that are arranged over a graph.

Whether a revision takes any, and in which form, is decided when it is opened: an `Overlays` object reads what a request
in JSON brings, or says why there is nothing to be brought. Ids are found in `overlay_ids.py`, features read in
`features.py`, arrays in `serving/http/codecs/binary_overlay.py`. Nothing of the graph is read but its ids, and features
of overridden nodes. Every mistake is found before anything is computed. A message names the place in the request, the
value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import RequestOverlay, TypedOverlay
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.edge_payload import BARE_EDGES, EdgePayloads, PayloadFields
from gnnserve_worker.asking.features import StoredFeatures, TypeFeatures, runs_of
from gnnserve_worker.asking.overlay_ids import BRING_IT, OverlayIds
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import ALL_OF_FIRST, EdgeRows, Overlay

MOST_FEATURE_BYTES = 16 * 1024 * 1024
"""Features of one request's new nodes and overrides, as float32."""
NUMBER_BYTES = 4
PAYLOAD = PayloadFields("overlay.edgeFeatures", "overlay.edgeTimes")
"""Where JSON has what edges come with."""
AnyOverlay = RequestOverlay[Any] | TypedOverlay
"""What a request in JSON brings, as its graph calls nodes."""


def brings_nothing(overlay: AnyOverlay) -> bool:
    return not (
        overlay.nodes or overlay.edges or overlay.overrides or overlay.edge_features or overlay.edge_times
    )  # fmt: skip


class Brought(msgspec.Struct, frozen=True):
    """Arrays of what a request brings, checked. Nodes are called by position, and N + k is the k-th new node."""

    seeds: np.ndarray
    """int64 [nodes asked for]"""
    features: np.ndarray
    """float32 [new nodes and overrides, features], in this order, C-contiguous."""
    overridden: np.ndarray
    """Stored nodes, distinct: int64 [overrides]."""
    edges: np.ndarray
    """int64 [edges, 2]: source and target."""
    payload: EdgeRows | None = None
    """That of the edges; None: edges of the graph have none."""


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
    size = nodes * features * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise RequestError(
            ErrorCode.OVERLAY_TOO_LARGE,
            where,
            f"{nodes:,} nodes with {features:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one request may have",
            "split the request",
        )


def check_edge_bytes(edges: int, columns: int) -> None:
    """`columns`: features of an edge."""
    size = edges * columns * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise RequestError(
            ErrorCode.OVERLAY_TOO_LARGE,
            "overlay.edges",
            f"{edges:,} edges with {columns:,} features each take {size:,} bytes, more than the "
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


StandIn = Callable[[Sequence[np.ndarray]], tuple[Overlay, np.ndarray]]
"""Arranges a new node that has the rows of a stored one and these lists (numbers of nodes, int64, ascending), one for
each of the stored one's; the new node is the seed."""


class Arrange(Protocol):
    """`OverlayArranger.arrange` of the revision's graph."""

    def __call__(
        self,
        features: np.ndarray,
        overridden: np.ndarray,
        edges: np.ndarray,
        seeds: np.ndarray,
        new_types: np.ndarray = ALL_OF_FIRST,
        relations: np.ndarray = ALL_OF_FIRST,
        payload: EdgeRows | None = None,
        /,
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class OverlaySupport:
    """Support for reading requests that bring nodes, edges and features along as arrays."""

    columns: FeatureColumns
    """Features of a node of the first type, as in the source."""
    arrange: Arrange
    features_of: Callable[[np.ndarray], np.ndarray] | None = None
    """Features of stored nodes (positions, int64) as in the source, float32 [nodes, features]. None: the revision does
    not keep them, or not exactly."""
    payloads: EdgePayloads = BARE_EDGES
    """What edges have."""


class Overlays(Protocol):
    """Reader of what requests may bring to a revision. Methods raise RequestError where the service takes none, or not
    so."""

    @property
    def why(self) -> str:
        """Why the revision takes none; empty: it does."""

    @property
    def takes_json(self) -> bool: ...

    @property
    def schemas(self) -> OverlaySchemas:
        """What requests bring, in OpenAPI."""

    @property
    def stored(self) -> StoredFeatures | None:
        """Features of stored nodes as in the source; None: they are not known, or not exactly."""

    def stand_in(self, node: int) -> StandIn | str:
        """What arranges a new node in place of a stored one (its number); a text: why nothing can."""

    @property
    def takes_arrays(self) -> bool:
        """Whether forms of arrays may bring anything too."""

    @property
    def hint(self) -> str:
        """What else may be meant by an id that the graph lacks; empty: nothing."""

    @property
    def features(self) -> int:
        """Most features of a node that is brought."""

    @property
    def lists(self) -> int:
        """Columns of them that have names, and of which each may be a list in JSON."""

    @property
    def edge_features(self) -> int:
        """Most features of an edge that is brought."""

    @property
    def edge_times(self) -> bool:
        """Whether any edge that is brought has a time."""

    def check(self, limits: OverlayLimits) -> None: ...

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        """What arrays are read and arranged by."""

    def arrange(self, nodes: Sequence[Any], overlay: Any, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        """What a request in JSON brings, and positions (int64) of the nodes that it asks about, which may be new.
        `nodes`: their ids, at least one."""


@dataclass(frozen=True, slots=True)
class NoOverlays:
    """Nothing can be brought."""

    why: str
    schemas: OverlaySchemas = overlay_schemas.NONE
    stored: None = None
    takes_json: bool = False
    takes_arrays: bool = False
    hint: str = ""
    features: int = 0
    lists: int = 0
    edge_features: int = 0
    edge_times: bool = False

    def check(self, limits: OverlayLimits) -> None:
        raise _none_taken(self.why, limits)

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        raise _none_taken(self.why, limits)

    def arrange(self, nodes: Sequence[Any], overlay: Any, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        raise _none_taken(self.why, limits)

    def stand_in(self, node: int) -> StandIn | str:
        return f"no edge can be left out: {self.why}"


class GraphOverlays:
    """Overlays of a graph, in JSON as its nodes are called, and as arrays where ids are numbers or texts alone."""

    takes_json = True
    why = ""

    def __init__(
        self,
        ids: OverlayIds,
        types: Sequence[TypeFeatures],
        support: OverlaySupport,
        stand_in: Callable[[int], StandIn],
        schemas: OverlaySchemas = overlay_schemas.PLAIN,
        hint: str = BRING_IT,
        no_arrays: str = "",
    ) -> None:
        """`types`: features of each type of nodes. `stand_in`, `hint`: as of `Overlays`. `no_arrays`: why other forms
        than JSON bring nothing; empty: they do."""
        self._ids = ids
        self._types = types
        self._support = support
        self._no_arrays = no_arrays
        self.schemas = schemas
        self.hint = hint
        self.stored = support if support.features_of is not None else None
        self.stand_in = stand_in
        self.takes_arrays = not no_arrays
        self.features = max(one.width for one in types)
        self.lists = max(one.lists for one in types)
        self.edge_features = support.payloads.width
        self.edge_times = support.payloads.has_times
        self._has_payload = support.payloads.takes_any

    def check(self, limits: OverlayLimits) -> None:
        if not limits.max_nodes:
            raise _none_taken("", limits)

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        if not limits.max_nodes:
            raise _none_taken("", limits)
        if self._no_arrays:
            raise RequestError(
                ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none in this form: {self._no_arrays}",
                "bring it in JSON, to POST /v1/predict",
            )  # fmt: skip
        return self._support

    def arrange(self, nodes: Sequence[Any], overlay: AnyOverlay, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        if not limits.max_nodes:
            raise _none_taken("", limits)
        new, overrides, types = overlay.nodes, overlay.overrides, self._types
        check_sizes(len(new), len(overrides), len(overlay.edges), self.features, limits)
        placed = self._ids.place(nodes, overlay)
        payload = None
        if self._has_payload or overlay.edge_features or overlay.edge_times:
            payload = self._payload_of(overlay, placed.relations)
        features = np.zeros((len(new) + len(overrides), self.features), np.float32)
        if new:
            for kind, begin, end in runs_of(placed.new_types, len(new)):
                own = types[kind]
                own.write(new[begin:end], begin, features[begin:end, : own.width])
        if overrides:
            behind = len(new)
            for kind, begin, end in runs_of(placed.overridden_types, len(overrides)):
                own = types[kind]
                rows = features[behind + begin : behind + end, : own.width]
                own.replace(overrides[begin:end], begin, placed.overridden[begin:end], rows)
        return self._support.arrange(
            features, placed.overridden, placed.edges, placed.asked, placed.new_types, placed.relations, payload
        )

    def _payload_of(self, overlay: AnyOverlay, relations: np.ndarray) -> EdgeRows | None:
        payloads, edges = self._support.payloads, len(overlay.edges)
        check_edge_bytes(edges, payloads.width)
        read = payloads.read_lists(overlay.edge_features, overlay.edge_times, relations, edges, PAYLOAD)
        return read if payloads.takes_any else None


def _none_taken(why: str, limits: OverlayLimits) -> RequestError:
    """`why`: why the revision takes none, where the limits would let it."""
    if not limits.max_nodes:
        remedy = "leave it out, or set spec.endpoint.overlay.maxNodes above 0"
        return RequestError(ErrorCode.NO_OVERLAYS, "overlay", "the service takes none", remedy)
    return RequestError(ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {why}", "leave it out")
