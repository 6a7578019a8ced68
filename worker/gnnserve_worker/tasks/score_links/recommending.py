"""Recommendations by score: the nodes that make the best pairs with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.http.protocol import Output
from gnnserve_api.http.recommend import RecommendedNode
from gnnserve_worker.asking.overlay import Overlays
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.asking.type_ids import as_text
from gnnserve_worker.models.decoder import LinkDecoder
from gnnserve_worker.nearest.comparison import ByScore, Comparison
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.tasks.recommending import FoldedNode, QueryNodes, lies_nowhere
from gnnserve_worker.tasks.score_links.folding import Folder, of_no_end


@dataclass(frozen=True, slots=True)
class BestPairs:
    """Links join nodes of a graph that are called without a type: any node is recommended for any other."""

    links: LinksManifest
    decoder: LinkDecoder
    probabilities: Callable[[str, np.ndarray], np.ndarray]
    """Calibrated probabilities of a variant's scores."""
    reads_one_way: bool
    """Whether a node may be joined to one that is not in its own list."""
    parts: tuple[IndexPart, ...]
    output: Output = "scores"
    """Networks that score links end in embeddings."""
    measures: tuple[str, ...] = ("scores", "probabilities")
    folder: Folder | None = None

    @property
    def example(self) -> int:
        return self.links.first.start

    def called(self, node: Any) -> Any:
        return node

    def part_for(self, node: Any, named: str | None, *, may_be_new: bool) -> IndexPart:
        (part,) = self.parts
        if named is None or named == part.type:
            return part
        problem = f"nodes of this graph have no types, got {shown_value(named)}"
        raise RequestError(ErrorCode.INVALID_VALUE, "type", problem, "leave it out")

    def part_like(self, position: int, node: Any, named: str | None) -> IndexPart:
        return self.part_for(node, named, may_be_new=False)

    def no_part(self, revision: str) -> RequestError:
        return lies_nowhere(revision)

    def check_computed(self, revision: str) -> None:
        """Every variant computes embeddings."""

    def compares(self, weights: str, index_weights: str) -> bool:
        return weights == index_weights

    def unread_by(self, node: int) -> int | None:
        return node if self.reads_one_way else None

    def comparison(self, part: IndexPart) -> Comparison:
        return ByScore(self.decoder, part.stand_first)

    def embedding(self, answer: QueryNodes, folded: FoldedNode | None) -> np.ndarray:
        return answer.scores[:1]

    def told(self, ids: Sequence[int | str], scores: np.ndarray, variant: str) -> list[RecommendedNode]:
        likely = self.probabilities(variant, scores)
        return [
            RecommendedNode(id_, score=round(score, 6), probability=round(probability, 6))
            for id_, score, probability in zip(ids, scores.tolist(), likely.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPairsOfTypes(BestPairs):
    """Links join nodes of types, which their ids name: for a node at one end those at the other are recommended."""

    graph: ServedGraph
    overlays: Overlays
    model_weights: frozenset[str]
    """Digests of the weights of variants that run the whole model."""

    def called(self, node: Any) -> Any:
        return as_text(node, "node", self.graph.naming.shown(0, 1))

    def part_for(self, node: Any, named: str | None, *, may_be_new: bool) -> IndexPart:
        return self.part_like(self._like_stored(node, may_be_new=may_be_new), node, named)

    def part_like(self, position: int, node: Any, named: str | None) -> IndexPart:
        own, other = self._ends_for(position, node)
        if named is not None and named != other.type:
            raise RequestError(
                ErrorCode.INVALID_VALUE, "type",
                f"{self.links.relation} joins nodes of type {own.type} to nodes of type {other.type}, got "
                f"{shown_value(named)}",
                f"give {other.type}, or leave it out",
            )  # fmt: skip
        return next(part for part in self.parts if part.type == other.type)

    def compares(self, weights: str, index_weights: str) -> bool:
        """Variants of the model are of one network over types, whatever of it is stored."""
        is_alike = self.overlays.takes_json and {weights, index_weights} <= self.model_weights
        return is_alike or weights == index_weights

    def embedding(self, answer: QueryNodes, folded: FoldedNode | None) -> np.ndarray:
        if folded is None or self.folder is None:
            return answer.scores[:1]
        return self.folder.embedding_of(folded, answer.scores)[np.newaxis]

    def _like_stored(self, node: Any, *, may_be_new: bool) -> int:
        """The position of the node, or where it is new that of the first one of its type."""
        if not may_be_new:
            return self.graph.naming.find_one(node, "node", self.overlays.hint)
        id_ = self.graph.ids.read_named(node, "node")
        number, numbered = self.graph.ids.number(id_), self.graph.numbered
        return numbered.first_nodes[numbered.place_of(id_.type)] if number < 0 else number

    def _ends_for(self, position: int, asked: Any) -> tuple[EndManifest, EndManifest]:
        """The end that the node stands at, and the other one."""
        first, second = self.links.first, self.links.second
        if first.start <= position < first.end:
            return first, second
        if second.start <= position < second.end:
            return second, first
        raise of_no_end("node", asked, self.links)
