"""The nodes that may stand at the two ends of links."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnnserve_api.files.links import LinksManifest
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.score_links.pairs import place_of

_MOST_LOOKED_AT = 100
"""Nodes among which an example is looked for: the first ones may have left."""


class PairEnds:
    def __init__(self, links: LinksManifest, graph: ServedGraph, *, needs_links: bool = False) -> None:
        """`needs_links`: all that is known of a new node is what it is joined to."""
        self._links = links
        self._graph = graph
        self._needs_links = needs_links

    def example_body(self) -> str:
        """A body in JSON that the graph permits."""
        return f'{{"pairs": [[{", ".join(map(shown_value, self.example()))}]]}}'

    def example_nodes(self) -> str:
        """A body in JSON that asks for the embeddings of nodes."""
        return f'{{"nodes": [{", ".join(map(shown_value, self.example()))}], "return": ["embeddings"]}}'

    def example(self) -> list[int | str]:
        """Ids of a pair that the graph permits."""
        links, shown = self._links, self._graph.naming.shown
        firsts, seconds = (shown(end.start, end.start + _MOST_LOOKED_AT) for end in (links.first, links.second))
        return [*firsts[:1], *seconds[int(links.first == links.second) :][:1]]

    def check(self, ends: np.ndarray, overlay: Overlay | None, named_at: Callable[[int], str] = place_of) -> None:
        """Raises RequestError for a node of a type that cannot stand there, or of which nothing is known. `ends`:
        positions int64 [2 pairs], first, second, …; what is behind those of the graph is of the overlay. `named_at`:
        where the request names the node at a place of `ends`."""
        links = self._links
        if not links.first.type:
            return
        known = like_stored(ends, self._graph, overlay)
        first, second = known[0::2], known[1::2]
        is_wrong = (first < links.first.start) | (first >= links.first.end)
        is_wrong |= (second < links.second.start) | (second >= links.second.end)
        # One call of numpy, for the first wrong pair and whether there is one: every request comes here.
        pair = is_wrong.argmax()
        if is_wrong[pair]:
            begins = not links.first.start <= first[pair] < links.first.end
            place = 2 * int(pair) + (not begins)
            raise self._refusal(place, named_at(place), ends, known, overlay)
        if overlay is not None and self._needs_links:
            self._check_joined(ends, overlay, named_at)

    def check_nodes(self, nodes: np.ndarray, overlay: Overlay | None) -> None:
        """As `check`, of nodes that may stand at either end."""
        links = self._links
        if not links.first.type:
            return
        known = like_stored(nodes, self._graph, overlay)
        stands = (links.first.start <= known) & (known < links.first.end)
        stands |= (links.second.start <= known) & (known < links.second.end)
        place = int(stands.argmin())
        if not stands[place]:
            raise RequestError(
                ErrorCode.WRONG_NODE_TYPE, f"nodes[{place}]",
                f"{self._named(int(nodes[place]), int(known[place]), overlay)} is of another type than links of "
                f"{links.relation} join",
                f"give nodes of type {' or '.join(dict.fromkeys((links.first.type, links.second.type)))}, such as "
                f"{self.example_nodes()}",
            )  # fmt: skip
        if overlay is not None and self._needs_links:
            self._check_joined(nodes, overlay, "nodes[{}]".format)

    def _check_joined(self, ends: np.ndarray, overlay: Overlay, named_at: Callable[[int], str]) -> None:
        first_new, links = self._graph.first_new, self._links
        for place, node in enumerate(ends.tolist()):
            if not self._is_new(node, overlay):
                continue
            begin, end = overlay.starts[[node - first_new, node - first_new + overlay.stride]].tolist()
            if all(self._is_new(other, overlay) for other in overlay.neighbours[begin:end].tolist()):
                raise RequestError(
                    ErrorCode.MISSING_FIELD, named_at(place),
                    "the node of the overlay is joined to no node of the graph, so that nothing is known of it",
                    f"give edges of {links.relation} that join it in overlay.edges, as [source, relation, target]",
                )  # fmt: skip

    def _refusal(
        self, place: int, where: str, ends: np.ndarray, known: np.ndarray, overlay: Overlay | None
    ) -> RequestError:
        """`known`: `ends` as `like_stored` has them, of which the one at that place cannot stand there."""
        links = self._links
        end, which = (links.second, "end") if place % 2 else (links.first, "begin")
        return RequestError(
            ErrorCode.WRONG_NODE_TYPE, where,
            f"{self._named(int(ends[place]), int(known[place]), overlay)} is not of type {end.type}, which links of "
            f"{links.relation} {which} at",
            f"give a node of type {links.first.type} and one of type {links.second.type}, such as "
            f"{self.example_body()}",
        )  # fmt: skip

    def _named(self, node: int, known: int, overlay: Overlay | None) -> str:
        """A node in words. `known`: the position of one like it (`like_stored`)."""
        named = [] if self._is_new(node, overlay) else self._graph.naming.shown(known, known + 1)
        return f"node {shown_value(named[0]) if named else 'of the overlay'}"

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
