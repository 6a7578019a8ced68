"""Pairs of nodes that a request asks about, in whatever form: from ids to the nodes that are computed.

A node that stands in several pairs is computed once. The pairs are made of the answer's rows when it is encoded.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from gnnserve_api.links import LinksManifest
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.links import ServedLinks
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.sampling.distinct import DistinctScratch, find_distinct
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.serving.requests import Answer


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.distinct = DistinctScratch()


_workspace = _Workspace()
PAIR_OUTPUTS = ("scores", "probabilities")
_ASKED = re.compile(r"^nodes\[(\d+)\]$")


class PairForm(msgspec.Struct, frozen=True):
    """Where the nodes of each pair stand among those that are computed."""

    first: np.ndarray
    """Integers [pairs]."""
    second: np.ndarray
    """Integers [pairs]."""

    def __len__(self) -> int:
        return len(self.first)


def links_of(revision: ServedRevision) -> ServedLinks:
    """Raises RequestError where the service classifies nodes."""
    if revision.links is None:
        raise wrong_task("pairs", revision)
    return revision.links


def wrong_task(where: str, revision: ServedRevision) -> RequestError:
    """The request is of the task that the service does not have. `where`: its field."""
    if revision.links is None:
        example = f'{{"nodes": [{shown_value(revision.shown_ids(0, 1)[0])}]}}'
        return RequestError(
            ErrorCode.WRONG_TASK, where, "this service classifies nodes, and does not score pairs of them",
            f"send {example}, or ask a service with task.links",
        )  # fmt: skip
    return RequestError(
        ErrorCode.WRONG_TASK, where, "this service scores pairs of nodes, and does not classify nodes",
        f"send {example_of(revision)}, or ask a service without task.links",
    )  # fmt: skip


def no_tensors(where: str, revision: ServedRevision) -> RequestError:
    """The service scores links, and the request is one of the Open Inference Protocol. `where`: its field."""
    return RequestError(
        ErrorCode.WRONG_TASK, where, "this service scores pairs of nodes, which have no tensors in this protocol",
        f"POST {example_of(revision)} to /v1/predict, or ask a service without task.links",
    )  # fmt: skip


def example_of(revision: ServedRevision) -> str:
    """A request that the graph permits."""
    return f'{{"pairs": [[{", ".join(map(shown_value, example_pair(revision)))}]]}}'


def example_pair(revision: ServedRevision) -> list[int | str]:
    links = links_of(revision).manifest
    second = links.second.start + (links.first == links.second)
    return [*revision.shown_ids(links.first.start, links.first.start + 1), *revision.shown_ids(second, second + 1)]


def check_pair_count(count: int, max_nodes: int) -> None:
    if not count:
        raise RequestError(ErrorCode.EMPTY_PAIRS, "pairs", "the list is empty", "name at least one pair of node ids")
    if 2 * count > max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_PAIRS,
            "pairs",
            f"{count:,} pairs, more than the {max_nodes // 2:,} that one request may have",
            "split the list over several requests, or raise spec.worker.batching.maxQueuedSeeds",
        )


@contextmanager
def told_of_pairs() -> Iterator[None]:
    """Mistakes of the nodes that are asked about name the pair: the ids of all pairs are looked up as one list."""
    try:
        yield
    except RequestError as error:
        found = _ASKED.match(error.where)
        if found is None:
            raise
        raise RequestError(error.code, _place(int(found[1])), error.problem, error.remedy) from None


def distinct_ends(
    ends: np.ndarray, revision: ServedRevision, overlay: Overlay | None = None
) -> tuple[np.ndarray, PairForm]:
    """The nodes to compute (int64), and how pairs are made of them. `ends`: positions int64 [2 pairs], first, second,
    first, second, …; what is behind those of the graph is of the overlay. Raises RequestError for a node of a type that
    cannot stand there."""
    links = links_of(revision).manifest
    if links.first.type:
        _check_types(ends, links, revision, overlay)
    return form_pairs(ends)


def form_pairs(ends: np.ndarray) -> tuple[np.ndarray, PairForm]:
    """`ends`: as `distinct_ends` takes them. Where next to none repeat, they are the nodes as they are."""
    found = find_distinct(ends, _workspace.distinct)
    if found is None:
        places = np.arange(len(ends))
        return ends, PairForm(places[0::2], places[1::2])
    places = found.places.copy()  # the scratch is the next request's
    return found.seeds.copy(), PairForm(places[0::2], places[1::2])


def like_stored(nodes: np.ndarray, revision: ServedRevision, overlay: Overlay | None) -> np.ndarray:
    """Positions of stored nodes of the same types, int64: of a node of the graph its own, of a new one that of the
    first of its type. `nodes`: as in a `Question`, int64."""
    graph = revision.numbered_types
    if overlay is None or graph is None:
        return nodes
    is_behind = nodes >= revision.first_new
    origins = overlay.origins[np.where(is_behind, nodes - revision.first_new, 0)]
    firsts = np.array(graph.first_nodes, np.int64)[np.where(origins < 0, -1 - origins, 0)]
    found: np.ndarray = np.where(is_behind, np.where(origins < 0, firsts, origins), nodes)
    return found


def _is_new(node: int, revision: ServedRevision, overlay: Overlay | None) -> bool:
    """Whether the graph does not have the node. Stored ones of other neighbours or features are overlay nodes too."""
    return overlay is not None and node >= revision.first_new and int(overlay.origins[node - revision.first_new]) < 0


def _check_types(ends: np.ndarray, links: LinksManifest, revision: ServedRevision, overlay: Overlay | None) -> None:
    known = like_stored(ends, revision, overlay)
    for offset, end, which in ((0, links.first, "begin"), (1, links.second, "end")):
        positions = known[offset::2]
        wrong = (positions < end.start) | (positions >= end.end)
        if wrong.any():
            at = int(wrong.argmax())
            is_new = _is_new(int(ends[2 * at + offset]), revision, overlay)
            node = [] if is_new else revision.shown_ids(int(positions[at]), int(positions[at]) + 1)
            raise RequestError(
                ErrorCode.WRONG_NODE_TYPE,
                _place(2 * at + offset),
                f"node {shown_value(node[0]) if node else 'of the overlay'} is not of type {end.type}, which links of "
                f"{links.relation} {which} at",
                f"give a node of type {links.first.type} and one of type {links.second.type}, such as "
                f"{example_of(revision)}",
            )


def _place(asked: int) -> str:
    return f"pairs[{asked // 2}][{asked % 2}]"


def outputs_of(
    answer: Answer, form: PairForm, outputs: tuple[str, ...], revision: ServedRevision
) -> dict[str, np.ndarray]:
    """The arrays that are asked for, float32 [pairs] each, C-contiguous."""
    links = links_of(revision)
    scores = links.score(answer.scores, form.first, form.second)
    made = {"scores": scores}
    if "probabilities" in outputs:
        made["probabilities"] = links.probabilities(answer.variant, scores)
    return {name: np.ascontiguousarray(made[name], np.float32) for name in outputs}
