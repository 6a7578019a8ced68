"""Recommendations, found with the embedding that was computed, and told of the index, before any form writes it."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from gnnserve_api.files.embeddings import IndexState
from gnnserve_api.http.recommend import RecommendedNode
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.search import SearchHits
from gnnserve_worker.serving.http.codecs.recommending.index_query import IndexQuery, find
from gnnserve_worker.serving.requests import Answer, Question


class Recommendations(msgspec.Struct, frozen=True):
    items: list[RecommendedNode]
    """The nearest first."""
    index: IndexState


def recommend(answer: Answer, question: Question, revision: ServedRevision) -> Recommendations:
    """Search the index with what was computed. It takes a millisecond or two, which counts as part of the request's
    time."""
    sought: IndexQuery = question.form
    items: list[RecommendedNode] = []
    query = sought.held.comparison.queries(revision.task.recommending.embedding(answer, sought.folded))
    if not query.point_nowhere:
        begun_s = time.perf_counter()
        found = find(query, sought, revision)
        sought.held.searches += 1
        sought.held.search_seconds += time.perf_counter() - begun_s
        items = shown_items(found, answer.variant, revision)
    follower = revision.changes.index_follower
    index = sought.index.state if follower is None else follower.state(sought.held, sought.index)
    return Recommendations(items, index)


def shown_items(found: SearchHits, variant: str, revision: ServedRevision) -> list[RecommendedNode]:
    # A node may have left since it was found: then nothing is shown of it.
    shown = [revision.graph.naming.shown(place, place + 1) for place in found.positions.tolist()]
    products = found.products[np.array([bool(one) for one in shown], bool)]
    return revision.task.recommending.told([id_ for one in shown for id_ in one], products, variant)
