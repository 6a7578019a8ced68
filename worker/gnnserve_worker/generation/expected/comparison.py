"""Holding scores against those that were expected: how far they are off, at which nodes, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.spec.model import ScoreKind
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.file import ExpectedNodes, GivenScores, read_scores
from gnnserve_worker.generation.expected.listed import ListedScores, listed_scores
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import EXPECTED, Progress, ProgressListener

TRIED_ROWS = 64
"""Nodes, the worst ones, that other ways are tried with."""
_WORST = 3
"""Nodes that a message names."""
_UNLIKELY_PERMILLE = 100.0
"""Difference above which the nearest reading tells nothing."""
_MOST_SEARCHED = 1 << 22
"""Most scores among which those of other nodes are looked for."""
_MOST_MATCHED_ROWS = 4096
"""Most rows by which columns are matched; the order that they give must hold for all."""
_FEWEST_ROWS = 4
"""Worst rows below which chance may find those of other nodes."""
_MOVED_SHARE = 0.9
"""Share of the worst rows that must be those of other nodes, each of another one."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A way to compute a network that is not the one that is served, and the scores that it gives."""

    words: str
    remedy: str
    scores: np.ndarray
    """float64 [rows, classes], before softmax or sigmoid."""


class ComparedNetwork(Protocol):
    """A network with given weights, over the source's graph."""

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        """Scores of nodes over all of their neighbours, before softmax or sigmoid: [nodes, classes]."""

    def causes(self, nodes: np.ndarray) -> Iterable[Cause]:
        """Other ways to compute these nodes' scores, in the order in which they are tried."""


def compare_listed(
    spec: GNNServiceSpec, digests: Mapping[str, str], graph: GraphData, hint: str,
    network_of: Callable[[str], ComparedNetwork], progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold all expected scores of the spec against those of the weights. `digests`: of the files, by the weights.
    `network_of`: by what `ListedScores` calls its weights. InputError: they differ by more than they may."""
    listed = listed_scores(spec)
    if not listed:
        return ()
    progress(Progress(EXPECTED, 0, len(listed)))
    task, of = spec.task.asked(), scored_nodes(spec, graph)
    names = task.output_names(graph.classes)
    files = [read_scores(one, of) for one in listed]
    found = []
    for done, (one, given) in enumerate(zip(listed, files, strict=True), start=1):
        comparison = ScoreComparison(one, given, names, graph.multi_label, hint, task.output_word)
        network = network_of(one.weights)
        scores = network.scores(given.positions)
        differences = comparison.differences(scores)
        if differences.max() > one.expected.tolerance_permille:
            rows = comparison.worst_rows(differences)[:TRIED_ROWS]
            raise comparison.refuse(scores, differences, network.causes(given.positions[rows]), rows)
        found.append(comparison.outcome(digests[one.weights], float(differences.max())))
        progress(Progress(EXPECTED, done, len(listed), found[-1].in_words))
    return found


def scored_nodes(spec: GNNServiceSpec, graph: GraphData) -> ExpectedNodes:
    """Nodes that files of expected scores may name, and how many columns they have."""
    target, task = graph.target, spec.task.asked()
    nodes, ids = (target.nodes, target.ids) if graph.names is None else (graph.nodes, graph.names)
    return ExpectedNodes(nodes, ids, task.outputs(len(graph.classes)), task.output_word)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreComparison:
    listed: ListedScores
    given: GivenScores
    columns: Classes
    """What the columns of scores are called."""
    multi_label: bool
    hint: str = ""
    """What else may be the cause where none is found, of this graph."""
    word: str = "class"
    """What a column is of."""

    @property
    def scale(self) -> float:
        """Largest absolute expected score, or 1 where all are 0."""
        return float(np.abs(self.given.scores).max()) or 1.0

    def differences(self, scores: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """In permille of the scale, as the scores; infinite where a score is no number. `rows`: of the file, that the
        scores are of; None: all."""
        expected = self.given.scores if rows is None else self.given.scores[rows]
        found = np.abs(expected - self.as_given(scores)) * (1000 / self.scale)
        return np.asarray(np.where(np.isnan(found), np.inf, found))

    def as_given(self, scores: np.ndarray) -> np.ndarray:
        """Scores as the file's kind is."""
        if self.listed.expected.scores is ScoreKind.LOGITS:
            return scores.astype(np.float64)
        return sigmoid(scores) if self.multi_label else softmax(scores)

    def outcome(self, sha256: str, largest: float) -> ComparedScores:
        return ComparedScores(
            weights=self.listed.weights, sha256=sha256, nodes=len(self.given.positions),
            scores=str(self.listed.expected.scores), difference_permille=largest,
            tolerance_permille=self.listed.expected.tolerance_permille,
        )  # fmt: skip

    def worst_rows(self, differences: np.ndarray) -> np.ndarray:
        return np.argsort(-differences.max(axis=1), kind="stable")

    def refuse(
        self, scores: np.ndarray, differences: np.ndarray, causes: Iterable[Cause], rows: np.ndarray
    ) -> InputError:
        """The error for scores that differ too much. `causes`: computed as they are asked for, of these `rows`."""
        computed, tolerance = self.as_given(scores), self.listed.expected.tolerance_permille
        named = "; ".join(
            f"node {self.given.shown[row]!r}, {self.word} {self.columns[column]!r}: expected "
            f"{self.given.scores[row, column]:.6g}, computed {computed[row, column]:.6g}"
            for row in self.worst_rows(differences)[:_WORST]
            for column in [int(differences[row].argmax())]
        )
        beyond = int((differences.max(axis=1) > tolerance).sum())
        problem = (
            f"scores of {beyond:,} of {len(differences):,} nodes differ by more than {tolerance:g} permille of the "
            f"largest, the worst by {differences.max():.4g}: {named}"
        )
        return InputError(self.listed.field, problem, self._remedy(scores, causes, rows))

    def _remedy(self, scores: np.ndarray, causes: Iterable[Cause], rows: np.ndarray) -> str:
        for told in (self._kind_of_file, self._order_of_columns):
            if (of_file := told(scores)) is not None:
                return of_file
        nearest: tuple[float, str] | None = None
        tried = 0
        for cause in causes:
            tried += 1
            off = float(self.differences(cause.scores, rows).max())
            if off <= self.listed.expected.tolerance_permille:
                return f"{cause.words} the scores are equal to {off / 1000:.2g}: {cause.remedy}"
            if nearest is None or off < nearest[0]:
                nearest = off, cause.words
        if (of_file := self._order_of_rows(scores, rows)) is not None:
            return of_file
        near = ""
        if nearest is not None and nearest[0] < _UNLIKELY_PERMILLE:
            near = f" (nearest: {nearest[1]}, off by {nearest[0]:.3g} permille)"
        return (
            f"none of {tried} other ways to compute the network gives them{near}: check that the scores are of these "
            "weights, over full neighbourhoods of this graph and its direction of edges, in evaluation mode, as "
            f"docs/models.md shows{self.hint}"
        )

    def _order_of_columns(self, scores: np.ndarray) -> str | None:
        """The order of the file's columns, where they are those that are computed in another order."""
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (takes a tenth of a second)

        computed, tolerance = self.as_given(scores), self.listed.expected.tolerance_permille * self.scale / 1000
        expected, some = self.given.scores[:_MOST_MATCHED_ROWS], computed[:_MOST_MATCHED_ROWS]
        apart = np.column_stack([np.abs(expected - one[:, None]).max(axis=0) for one in some.T])
        if not np.isfinite(apart).all():
            return None
        order = linear_sum_assignment(apart > tolerance)[1]
        if (np.abs(self.given.scores - computed[:, order]) > tolerance).any():
            return None
        names = ", ".join(str(self.columns[column]) for column in order)
        return (
            f"with its columns in another order the file has these scores: columns seem to be {names}. Write them in "
            f"the order of the service ({', '.join(map(str, self.columns))}), or, where that is what the file has, the "
            "rows of the last layer's tensors"
        )

    def _order_of_rows(self, scores: np.ndarray, rows: np.ndarray) -> str | None:
        """That rows of the file are those of other nodes of it."""
        if scores.size > _MOST_SEARCHED:
            return None
        computed, tolerance = self.as_given(scores), self.listed.expected.tolerance_permille
        found = {}
        for row in rows:
            apart = np.abs(computed - self.given.scores[row]).max(axis=1)
            if apart.min() * 1000 <= tolerance * self.scale:
                found[int(row)] = int(apart.argmin())
        if len(rows) < _FEWEST_ROWS or len(set(found.values())) < len(rows) * _MOVED_SHARE:
            return None
        row, other = next(iter(found.items()))
        return (
            f"rows of scores seem to belong to other nodes: that of node {self.given.shown[row]!r} is that of node "
            f"{self.given.shown[other]!r}: write `nodes` in the order of the rows of scores"
        )

    def _kind_of_file(self, scores: np.ndarray) -> str | None:
        """What the file's scores are, where they are those that are served in another form."""
        tolerance, raw = self.listed.expected.tolerance_permille, self.given.scores
        shares = sigmoid(scores) if self.multi_label else softmax(scores)

        def equal(found: np.ndarray) -> bool:
            return bool(np.abs(raw - found).max() * 1000 <= tolerance * self.scale)

        field = f"{self.listed.field}.scores"
        are_logits = self.listed.expected.scores is ScoreKind.LOGITS
        if equal(np.log(np.maximum(shares, 1e-300))):
            what = "the file has logarithms of probabilities (log_softmax): write their exp()"
            return f"{what}, and set {field} to {ScoreKind.PROBABILITIES}" if are_logits else what
        if are_logits:
            return f"the file has probabilities: set {field} to {ScoreKind.PROBABILITIES}" if equal(shares) else None
        return f"the file has logits: set {field} to {ScoreKind.LOGITS}" if equal(scores) else None


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -500, 500))))
