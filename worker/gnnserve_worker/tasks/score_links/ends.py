"""The nodes that may stand at the two ends of links."""

from __future__ import annotations

import numpy as np

from gnnserve_api.files.links import LinksManifest
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.score_links.pairs import place_of

_MOST_LOOKED_AT = 100
"""Nodes among which an example is looked for: the first ones may have left."""


class PairEnds:
    def __init__(self, links: LinksManifest, graph: ServedGraph) -> None:
        self._links = links
        self._graph = graph

    def example_body(self) -> str:
        """A body in JSON that the graph permits."""
        return f'{{"pairs": [[{", ".join(map(shown_value, self.example()))}]]}}'

    def example(self) -> list[int | str]:
        """Ids of a pair that the graph permits."""
        links, shown = self._links, self._graph.naming.shown
        firsts, seconds = (shown(end.start, end.start + _MOST_LOOKED_AT) for end in (links.first, links.second))
        return [*firsts[:1], *seconds[int(links.first == links.second) :][:1]]

    def check(self, ends: np.ndarray, overlay: Overlay | None) -> None:
        """Raises RequestError for a node of a type that cannot stand there. `ends`: positions int64 [2 pairs], first,
        second, …; what is behind those of the graph is of the overlay."""
        links = self._links
        if not links.first.type:
            return
        known = like_stored(ends, self._graph, overlay)
        for offset, end, which in ((0, links.first, "begin"), (1, links.second, "end")):
            positions = known[offset::2]
            wrong = (positions < end.start) | (positions >= end.end)
            if wrong.any():
                at = int(wrong.argmax())
                is_new = self._is_new(int(ends[2 * at + offset]), overlay)
                node = [] if is_new else self._graph.naming.shown(int(positions[at]), int(positions[at]) + 1)
                raise RequestError(
                    ErrorCode.WRONG_NODE_TYPE,
                    place_of(2 * at + offset),
                    f"node {shown_value(node[0]) if node else 'of the overlay'} is not of type {end.type}, which links "
                    f"of {links.relation} {which} at",
                    f"give a node of type {links.first.type} and one of type {links.second.type}, such as "
                    f"{self.example_body()}",
                )

    def _is_new(self, node: int, overlay: Overlay | None) -> bool:
        """Whether the graph does not have the node. Stored ones of other neighbours or features are overlay nodes
        too."""
        first_new = self._graph.first_new
        return overlay is not None and node >= first_new and int(overlay.origins[node - first_new]) < 0


def like_stored(nodes: np.ndarray, graph: ServedGraph, overlay: Overlay | None) -> np.ndarray:
    """Positions of stored nodes of the same types, int64: of a node of the graph its own, of a new one that of the
    first of its type. `nodes`: as in a `Question`, int64."""
    if overlay is None:
        return nodes
    is_behind = nodes >= graph.first_new
    origins = overlay.origins[np.where(is_behind, nodes - graph.first_new, 0)]
    firsts = np.array(graph.numbered.first_nodes, np.int64)[np.where(origins < 0, -1 - origins, 0)]
    found: np.ndarray = np.where(is_behind, np.where(origins < 0, firsts, origins), nodes)
    return found
