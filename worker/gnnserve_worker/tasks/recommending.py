"""A task's part in recommendations: for which node which are recommended, and what an index is searched with.

The search itself is `nearest/`, and what HTTP makes of it `serving/http/codecs/recommend.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gnnserve_api.http.protocol import Output, TypedOverlay
from gnnserve_api.http.recommend import RecommendedNode
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.overlay_ids import EdgeFields
from gnnserve_worker.asking.question import RECOMMEND_PATH, ErrorCode, RequestError
from gnnserve_worker.nearest.comparison import Comparison
from gnnserve_worker.nearest.parts import IndexPart


class QueryNodes(Protocol):
    """Nodes of a question, as the engine has computed them (`tasks/served.py: ScoredNodes`)."""

    @property
    def scores(self) -> np.ndarray: ...
    @property
    def embeddings(self) -> np.ndarray | None: ...


@dataclass(frozen=True, slots=True)
class FoldedNode:
    """A node whose embedding is made of those of other nodes, which are computed in its place."""

    node: int | None
    """Its position; None: it is new."""
    like: int
    """Position of a stored node of its type."""
    joined: np.ndarray
    """Positions of the nodes that it is joined to, int64, distinct."""
    weights: np.ndarray
    """float32: what the embedding of each of them is multiplied by, before they are added up."""
    has_length_1: bool
    """Whether embeddings of stored nodes of its type have length 1, so that its own is brought to it."""


class NodeFolder(Protocol):
    """Makes embeddings of nodes of those that a request joins them to."""

    def fold(self, node: Any, overlay: TypedOverlay, limits: OverlayLimits, fields: EdgeFields) -> FoldedNode:
        """What the node is made of that a request names. `fields`: where the request has edges. Raises
        RequestError."""


class Recommender(Protocol):
    @property
    def output(self) -> Output:
        """The output that embeddings are in."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What is told of each node that is recommended, as tensors of the Open Inference Protocol: their names."""

    @property
    def example(self) -> int:
        """Position of a node that others are recommended for."""

    @property
    def parts(self) -> tuple[IndexPart, ...]:
        """Parts of the graph that have an index each; empty: no index finds the best nodes."""

    @property
    def folder(self) -> NodeFolder | None:
        """What makes embeddings of what a request joins; None: what it brings is an overlay of the graph."""

    def called(self, node: Any) -> Any:
        """The id of a node in the form that messages show, as a request names it. Raises RequestError."""

    def part_for(self, node: Any, named: str | None, *, may_be_new: bool) -> IndexPart:
        """The nodes that are recommended for one, as the request names it. `named`: the type that the request names.
        `may_be_new`: whether the request brings anything. Raises RequestError."""

    def part_like(self, position: int, node: Any, named: str | None) -> IndexPart:
        """The nodes that are recommended for one of the type of a stored node."""

    def no_part(self, revision: str) -> RequestError:
        """Error for a revision that has no index of any part."""

    def check_computed(self, revision: str) -> None:
        """Raises RequestError where no variant computes embeddings."""

    def compares(self, weights: str, index_weights: str) -> bool:
        """Whether embeddings by a network can be compared with those of the index. Both are digests of weights."""

    def unread_by(self, node: int) -> int | None:
        """The node, if those that read it are known beside those that it reads; None: both are the same."""

    def comparison(self, part: IndexPart) -> Comparison:
        """How nodes of a part are compared."""

    def embedding(self, answer: QueryNodes, folded: FoldedNode | None) -> np.ndarray:
        """The embedding that an index is searched with, float32 [1, columns]."""

    def told(self, ids: Sequence[int | str], scores: np.ndarray, variant: str) -> list[RecommendedNode]:
        """Nodes that were found, with what is told of each. `scores`: as of the comparison, float32 [nodes]."""


def lies_nowhere(revision: str) -> RequestError:
    """The revision has no folder that could have an index."""
    return RequestError(
        ErrorCode.NO_RECOMMENDATIONS, RECOMMEND_PATH,
        f"revision {revision} lies in no folder that could have an index of embeddings",
        "publish it in a repository",
    )  # fmt: skip
