"""Links that came to be, and pairs that did not, as labels in service.

The value of a link is how often it has a higher score than a pair that is drawn at random: the mean over links is the
ROC-AUC that a profile has of held-out links, whatever part of the labels are links. Of a pair that did not come to be
it is how often the last links that did have a higher score; which such pairs clients know of depends on what was shown
to them, so that these values tell variants apart, and are not held against the profile.

A link that the graph has by now is no label: an answer would know it. So links that come by changes are labels only if
they are told before.

Two answers are alike by how often both put a drawn pair on the same side of the pair that was asked about, and two
recommendations by how many of the best of the drawn nodes both have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.profile import LinkScores, Metric, Profile, VariantProfile
from gnnserve_api.http.live_accuracy import MOST_LABELS, LabelProblem, PairLabelsRequest
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.tasks.score_links.ends import PairEnds
from gnnserve_worker.tasks.score_links.links import ServedLinks
from gnnserve_worker.tasks.score_links.pairs import PairForm, check_pair_count, form_pairs
from gnnserve_worker.tasks.served_labels import NO_VALUES, GivenLabel, KeptAnswer

_DRAWN = 256
"""Pairs that links are compared with."""
_TRIES = 8
"""Most pairs that are looked at for each of them: of nearly all pairs of a small graph one may be a link."""
_SEED = 0
_LATEST = 1000
"""Links whose scores are kept for pairs that did not come to be."""
_FEWEST = 20
"""Links before which nothing is said of such pairs."""
_BEST = 10
_FORM = BodyForm(
    {"": ("pairs", "labels", "times"), "pairs[][]": ("type", "id")},
    frozenset({"pairs[][]"}),
    {
        "pairs": "give a list of pairs of node ids: [[first, second], …]",
        "pairs[]": "give a pair of node ids: [first, second]",
        "pairs[][].type": "give the name of a type",
        "pairs[][].id": "give an id within the type",
        "labels": "give a list with true or false for each pair",
        "labels[]": "give true where the pair came to be a link, and false where it did not",
        "times": "give a list with a time for each pair, or leave it out",
        "times[]": "write it as RFC 3339 has it, with a zone: 2026-11-23T05:00:00Z",
    },
    lambda revision: revision.task.live_labels.example(),
)
_DECODER: msgspec.json.Decoder[Any] = decoding.decoder(PairLabelsRequest)


class NoNodeLabels:
    """`SourceLabels` where pairs are scored: nodes have none."""

    def of_node(self, node: int) -> Any:
        return None

    def wearing(self, labels: Sequence[Any]) -> np.ndarray:
        raise RequestError(ErrorCode.INVALID_VALUE, "filter.labels", "nodes have no labels here", "leave it out")


@dataclass(frozen=True, slots=True)
class LinkLabels:
    """`LiveLabels` of pairs."""

    graph: ServedGraph
    links: ServedLinks
    standing: LinksManifest
    """Links with their ends as nodes are numbered."""
    ends: PairEnds
    decoder: msgspec.json.Decoder[Any] = _DECODER
    form: BodyForm = _FORM
    item: str = "pair"
    ids_per_item: int = 2

    def example(self) -> str:
        pair = ", ".join(map(shown_value, self.ends.example()))
        return f'{{"pairs": [[{pair}]], "labels": [true]}}'

    def items(self, request: Any) -> Sequence[Sequence[Any]]:
        check_pair_count(len(request.pairs), 2 * MOST_LABELS)
        pairs: Sequence[Sequence[Any]] = request.pairs
        return pairs

    def refused(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> Mapping[int, tuple[LabelProblem, str]]:
        """A node stands at an end where links do not have it."""
        found: dict[int, tuple[LabelProblem, str]] = {}
        for side, end in enumerate((self.standing.first, self.standing.second)):
            for place in np.flatnonzero((items[:, side] < end.start) | (items[:, side] >= end.end)).tolist():
                node = int(items[place, side])
                (shown,) = self.graph.naming.shown(node, node + 1) or ("",)
                where = f"which links of {self.standing.relation} {('begin', 'end')[side]} at"
                words = f"node {shown_value(shown)} is not of type {end.type}, {where}"
                found.setdefault(place, (LabelProblem.UNKNOWN_NODE, words))
        return found

    def are_known(self, items: np.ndarray, labels: Sequence[GivenLabel]) -> np.ndarray:
        told = zip(items.tolist(), labels, strict=True)
        return np.array([bool(label) and self.is_linked(*pair) for pair, label in told], bool)

    def is_linked(self, first: int, second: int) -> bool:
        """Whether the graph joins two nodes, whichever reads the other."""
        read = self.graph.neighbours_of
        return bool((read(first) == second).any() or (read(second) == first).any())

    def truths(self, labels: Sequence[GivenLabel]) -> np.ndarray:
        """bool [labels]"""
        return np.array(labels, bool)

    def asked(self, items: np.ndarray) -> tuple[np.ndarray, PairForm]:
        return form_pairs(np.ascontiguousarray(items).ravel())

    def measure(self) -> LinkMeasure:
        return LinkMeasure(self.links, self.standing, lambda: form_pairs(self._drawn().ravel()))

    def _drawn(self) -> np.ndarray:
        """Pairs without a link, int64 [pairs, 2], uniformly among all, as those are that a profile has."""
        random = np.random.default_rng(_SEED)
        found: list[tuple[int, int]] = []
        for _ in range(_TRIES * _DRAWN):
            first, second = (self._drawn_of(end, random) for end in (self.standing.first, self.standing.second))
            if first is None or second is None or len(found) == _DRAWN:
                break
            if first != second and not self.is_linked(first, second):
                found.append((first, second))
        return np.array(found, np.int64).reshape(-1, 2)

    def _drawn_of(self, end: EndManifest, random: np.random.Generator) -> int | None:
        """A node of an end that has been there from the beginning; None: all seem to have left."""
        schema = self.graph.types
        stored = schema.types[schema.place_of(end.type)].nodes
        for _ in range(_TRIES if stored else 0):
            node = end.start + int(random.integers(stored))
            if self.graph.naming.shown(node, node + 1):
                return node
        return None


@dataclass(frozen=True)
class LinkMeasure:
    """A `Measure` of pairs."""

    links: ServedLinks
    standing: LinksManifest
    draw: Callable[[], tuple[np.ndarray, PairForm]]
    """Draws pairs without a link, once something is to be measured: their nodes, and how they are made of them."""
    metric: Metric = "rocAuc"
    compares_by_nodes: bool = True
    _rows: dict[str, np.ndarray] = field(default_factory=dict)
    """What variants give of `nodes`, float32 [nodes, columns]; NaN: not computed."""
    _came: dict[str, deque[float]] = field(default_factory=dict)
    """Scores of the last links that came to be, by variant."""

    @cached_property
    def _pairs(self) -> tuple[np.ndarray, PairForm]:
        return self.draw()

    @property
    def nodes(self) -> np.ndarray:
        return self._pairs[0]

    @property
    def drawn(self) -> PairForm:
        return self._pairs[1]

    def promise(self, profile: Profile, variant: VariantProfile) -> tuple[float, int] | None:
        judged = variant.judged
        return (judged.roc_auc, judged.links) if isinstance(judged, LinkScores) else None

    def note(self, variant: str, start: int, scores: np.ndarray) -> np.ndarray:
        rows = self._rows.get(variant)
        if rows is None:
            rows = self._rows[variant] = np.full((len(self.nodes), scores.shape[1]), np.nan, np.float32)
        rows[start : start + len(scores)] = scores
        return NO_VALUES

    def values(self, variant: str, scores: np.ndarray, form: PairForm, truths: np.ndarray) -> np.ndarray:
        found = self.links.score_by(variant, scores, form.first, form.second)
        values = np.full(len(truths), np.nan)
        others = self._scores_of_drawn(variant)
        if len(others := np.sort(others[np.isfinite(others)])):
            values[truths] = _share_below(found[truths], others)
        came = self._came.setdefault(variant, deque(maxlen=_LATEST))
        came.extend(found[truths].tolist())
        if len(came) >= _FEWEST:
            values[~truths] = 1 - _share_below(found[~truths], np.sort(np.array(came, np.float32)))
        return values

    def promised(self, truths: np.ndarray) -> np.ndarray:
        return truths

    def keep(self, variant: str, nodes: np.ndarray, scores: np.ndarray, form: Any, most: int) -> KeptAnswer | None:
        """Pairs, or a node that others are recommended for."""
        if isinstance(form, PairForm):
            kept = np.flatnonzero((form.first < most) & (form.second < most))
            if not len(kept):
                return None
            pairs = PairForm(form.first[kept].copy(), form.second[kept].copy())
            found = self.links.score_by(variant, scores, pairs.first, pairs.second)
            return KeptAnswer(variant, nodes[:most].copy(), (pairs, found))
        # What a request joins to more is made of several nodes.
        return None if len(nodes) != 1 else KeptAnswer(variant, nodes.copy(), (None, scores.copy()))

    def agreement(self, kept: KeptAnswer, variant: str, scores: np.ndarray) -> np.ndarray:
        form, answered = kept.answered
        if form is None:
            node = int(kept.nodes[0])
            ours, theirs = (self._best_for(node, *of) for of in ((kept.variant, answered), (variant, scores)))
            return NO_VALUES if ours is None or theirs is None else np.array([np.isin(ours, theirs).mean()])
        before, after = (self._scores_of_drawn(name) for name in (kept.variant, variant))
        is_known = np.isfinite(before) & np.isfinite(after)
        if not is_known.any():
            return NO_VALUES
        found = self.links.score_by(variant, scores, form.first, form.second)
        sides = np.sign(answered[:, None] - before[is_known]) == np.sign(found[:, None] - after[is_known])
        return np.asarray(sides.mean(axis=1))

    def _scores_of_drawn(self, variant: str) -> np.ndarray:
        """float32 [drawn pairs]; NaN: not computed."""
        rows = self._rows.get(variant)
        if rows is None:
            return np.full(len(self.drawn), np.nan, np.float32)
        return self.links.score_by(variant, rows, self.drawn.first, self.drawn.second)

    def _best_for(self, node: int, variant: str, row: np.ndarray) -> np.ndarray | None:
        """The best of the drawn nodes at the other end, by their places; None: they are not computed, or too few."""
        rows, is_first = self._rows.get(variant), self.standing.first.start <= node < self.standing.first.end
        places = np.unique(self.drawn.second if is_first else self.drawn.first)
        if rows is None or len(places) <= _BEST or not np.isfinite(rows[places]).all():
            return None
        own = np.broadcast_to(row, (len(places), row.shape[1]))
        pairs = (own, rows[places]) if is_first else (rows[places], own)
        return places[np.argsort(-self.links.scorer_of(variant).score(*pairs), kind="stable")[:_BEST]]


def _share_below(scores: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """The share of these ascending numbers that is lower than each score, float64; equal ones count half."""
    below, up_to = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return np.asarray((below + up_to) / (2 * len(ordered)))
