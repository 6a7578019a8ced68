"""Recommendations by similarity: the nodes whose embeddings point most in the direction of one node's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_api.http.protocol import Output
from gnnserve_api.http.recommend import RecommendedNode
from gnnserve_worker.asking.question import RECOMMEND_PATH, ErrorCode, RequestError, shown_value
from gnnserve_worker.nearest.comparison import ByCosine, Comparison
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.tasks.embedded import MissingEmbeddings
from gnnserve_worker.tasks.recommending import FoldedNode, QueryNodes, lies_nowhere


@dataclass(frozen=True, slots=True)
class NearestNodes:
    part: IndexPart
    missing: MissingEmbeddings | None
    """None: a variant gives embeddings."""
    output: Output = "embeddings"
    measures: tuple[str, ...] = ("cosines",)
    example: int = 0
    folder: None = None

    @property
    def parts(self) -> tuple[IndexPart, ...]:
        return (self.part,)

    def called(self, node: Any) -> Any:
        return node

    def part_for(self, node: Any, named: str | None, *, may_be_new: bool) -> IndexPart:
        kind = self.part.type
        if named is None or named == kind:
            return self.part
        problem = f"nodes of type {kind} are recommended" if kind else "nodes of this graph have no types"
        raise RequestError(ErrorCode.INVALID_VALUE, "type", f"{problem}, got {shown_value(named)}", "leave it out")

    def part_like(self, position: int, node: Any, named: str | None) -> IndexPart:
        return self.part_for(node, named, may_be_new=False)

    def no_part(self, revision: str) -> RequestError:
        return lies_nowhere(revision)

    def check_computed(self, revision: str) -> None:
        if self.missing is not None:
            raise RequestError(
                ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
                f"no variant of revision {revision} computes embeddings, by which nodes are recommended",
                self.missing.remedy,
            )  # fmt: skip

    def compares(self, weights: str, index_weights: str) -> bool:
        return weights == index_weights

    def unread_by(self, node: int) -> int | None:
        return None

    def comparison(self, part: IndexPart) -> Comparison:
        return ByCosine()

    def embedding(self, answer: QueryNodes, folded: FoldedNode | None) -> np.ndarray:
        assert answer.embeddings is not None  # noqa: S101  (it was asked for)
        return answer.embeddings[:1]

    def told(self, ids: Sequence[int | str], scores: np.ndarray, variant: str) -> list[RecommendedNode]:
        return [RecommendedNode(id_, cosine=round(cosine, 6)) for id_, cosine in zip(ids, scores.tolist(), strict=True)]
