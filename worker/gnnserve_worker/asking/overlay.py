"""Nodes, edges and features that requests bring, from ids and numbers to the arrays that are arranged over a graph.

Whether a revision takes any, and in which form, is decided when it is opened: an `Overlays` object reads what a request
in JSON brings, or says why there is nothing to be brought. Ids are found in `overlay_ids.py`, features read in
`features.py`, what comes as arrays in `overlay_arrays.py`. Nothing of the graph is read but its ids, and features of
overridden nodes. Every mistake is found before anything is computed. A message names the place in the request, the
value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gnnserve_api.http.protocol import RequestOverlay, TypedOverlay
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.edge_payload import BARE_EDGES, EdgePayloads
from gnnserve_worker.asking.features import StoredFeatures, TypeFeatures, runs_of
from gnnserve_worker.asking.overlay_arrays import NO_ARRAYS, PAYLOAD, Arrange, ArrayForm, ArrayOverlays
from gnnserve_worker.asking.overlay_checks import check_edge_bytes, check_sizes
from gnnserve_worker.asking.overlay_ids import BRING_IT, OverlayIds
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import EdgeRows, Overlay

AnyOverlay = RequestOverlay[Any] | TypedOverlay
"""What a request in JSON brings, as its graph calls nodes."""


def brings_nothing(overlay: AnyOverlay) -> bool:
    return not (
        overlay.nodes or overlay.edges or overlay.overrides or overlay.edge_features or overlay.edge_times
    )  # fmt: skip


StandIn = Callable[[Sequence[np.ndarray]], tuple[Overlay, np.ndarray]]
"""Arranges a new node that has the rows of a stored one and these lists (numbers of nodes, int64, ascending), one for
each of the stored one's; the new node is the seed."""


@dataclass(frozen=True, slots=True)
class OverlaySupport:
    """Parts of a graph that arrange what requests bring over it."""

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
    def array_form(self) -> ArrayForm:
        """Which arrays may be brought."""

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

    def arrays(self, limits: OverlayLimits) -> ArrayOverlays:
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
    array_form: ArrayForm = NO_ARRAYS
    hint: str = ""
    features: int = 0
    lists: int = 0
    edge_features: int = 0
    edge_times: bool = False

    def check(self, limits: OverlayLimits) -> None:
        raise _none_taken(self.why, limits)

    def arrays(self, limits: OverlayLimits) -> ArrayOverlays:
        raise _none_taken(self.why, limits)

    def arrange(self, nodes: Sequence[Any], overlay: Any, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        raise _none_taken(self.why, limits)

    def stand_in(self, node: int) -> StandIn | str:
        return f"no edge can be left out: {self.why}"


class GraphOverlays:
    """Overlays of a graph, in JSON as its nodes are called, and as arrays."""

    takes_json = True
    why = ""

    def __init__(
        self,
        ids: OverlayIds,
        types: Sequence[TypeFeatures],
        support: OverlaySupport,
        stand_in: Callable[[int], StandIn | str],
        schemas: OverlaySchemas = overlay_schemas.PLAIN,
        hint: str = BRING_IT,
    ) -> None:
        """`types`: features of each type of nodes. `stand_in`, `hint`: as of `Overlays`."""
        self._ids = ids
        self._types = types
        self.support = support
        self._arrays = ArrayOverlays(ids, types, support.payloads, support.arrange)
        self.schemas = schemas
        self.hint = hint
        self.stored = support if support.features_of is not None else None
        self.stand_in = stand_in
        self.array_form = self._arrays.form
        self.features = max(one.width for one in types)
        self.lists = max(one.lists for one in types)
        self.edge_features = support.payloads.width
        self.edge_times = support.payloads.has_times
        self._has_payload = support.payloads.takes_any

    def check(self, limits: OverlayLimits) -> None:
        if not limits.max_nodes:
            raise _none_taken("", limits)

    def arrays(self, limits: OverlayLimits) -> ArrayOverlays:
        self.check(limits)
        return self._arrays

    def arrange(self, nodes: Sequence[Any], overlay: AnyOverlay, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        if not limits.max_nodes:
            raise _none_taken("", limits)
        new, overrides, types = overlay.nodes, overlay.overrides, self._types
        check_sizes(len(new), len(overrides), len(overlay.edges), self.features, limits)
        placed = self._ids.place(self._ids.named(nodes, overlay))
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
        return self.support.arrange(
            features, placed.overridden, placed.edges, placed.asked, placed.new_types, placed.relations, payload
        )

    def _payload_of(self, overlay: AnyOverlay, relations: np.ndarray) -> EdgeRows | None:
        payloads, edges = self.support.payloads, len(overlay.edges)
        check_edge_bytes(edges, payloads.width)
        read = payloads.read_lists(overlay.edge_features, overlay.edge_times, relations, edges, PAYLOAD)
        return read if payloads.takes_any else None


def _none_taken(why: str, limits: OverlayLimits) -> RequestError:
    """`why`: why the revision takes none, where the limits would let it."""
    if not limits.max_nodes:
        remedy = "leave it out, or set spec.endpoint.overlay.maxNodes above 0"
        return RequestError(ErrorCode.NO_OVERLAYS, "overlay", "the service takes none", remedy)
    return RequestError(ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {why}", "leave it out")
