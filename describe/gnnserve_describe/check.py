"""The program beside the live module: over samples of neighbourhoods that the export never saw it must give the scores
that the module gives over the whole graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_describe.expected import ExpectedNodeScores
from gnnserve_describe.graph import GraphTensors, NeighbourLists
from gnnserve_describe.layout import InputLayout
from gnnserve_describe.probe import Probe
from gnnserve_describe.reach import NotSampledError, Reach
from gnnserve_describe.running import ProgramSession
from gnnserve_describe.scoring import Scorer

TOLERANCE = 1e-5
"""Largest difference, of the largest score."""
_ALONE = 8
"""Nodes that are asked about one by one."""
_TOGETHER = 32
"""Nodes of a sample."""
_SAMPLES = 4
_MOST_EDGES = 20_000_000
"""Edges of a sample, above which it is left out."""


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison that was made, and the largest difference as a part of the largest score."""

    samples: int
    nodes: int
    difference: float

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Check:
        """One check of all types whose nodes are scored."""
        found = list(checks)
        return cls(
            sum(each.samples for each in found), sum(each.nodes for each in found),
            max(each.difference for each in found),
        )  # fmt: skip


def runs_small_graphs(path: Path, layout: InputLayout, scorer: Scorer, probe: Probe, reach: Reach) -> bool:
    """Whether the program is right over a node that reads none, and one that reads one other."""
    lists = NeighbourLists(probe.graph)
    scores = scorer.scores(probe.graph).float().numpy()
    scale = float(np.abs(scores).max()) or 1.0
    program = ProgramSession(path, layout)
    for seed in probe.apart(scorer.target):
        sample = lists.sample(scorer.target, np.array([seed]), reach.sampled_hops)
        try:
            found = program.run(sample)[scorer.name][:1]
        except Exception:  # noqa: BLE001 - whatever ONNX Runtime raises
            return False
        if found.shape != scores[[seed]].shape or not _largest(found - scores[[seed]]) <= TOLERANCE * scale:
            return False
    return True


def check_program(
    path: Path, layout: InputLayout, scorer: Scorer, lists: NeighbourLists, reach: Reach, expected: ExpectedNodeScores
) -> Check:
    """InputError: it differs; NotSampledError: the module itself does so over samples."""
    program = ProgramSession(path, layout)
    largest, samples, seen = 0.0, 0, 0
    for rows in _groups(expected, lists.degrees(scorer.target)):
        sample = lists.sample(scorer.target, expected.nodes[rows], reach.sampled_hops)
        if sum(edges.shape[1] for edges in sample.edges.values()) > _MOST_EDGES:
            continue
        wanted = expected.scores[rows]
        try:
            found = program.run(sample)[scorer.name][: len(rows)]
        except Exception as error:
            raise _not_run(error, sample) from error
        difference = _largest(found - wanted) / expected.scale
        if not difference <= TOLERANCE:
            raise _differs(scorer, sample, wanted, found, expected.scale)
        largest, samples, seen = max(largest, difference), samples + 1, seen + len(rows)
    return Check(samples, seen, largest)


def _groups(expected: ExpectedNodeScores, degrees: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of expected scores: the busiest node and one that reads none by themselves, others together."""
    by_degree = np.argsort(degrees[expected.nodes], kind="stable")
    alone = by_degree[np.linspace(0, len(by_degree) - 1, min(_ALONE, len(by_degree))).astype(int)]
    for row in alone:
        yield np.array([row])
    random = np.random.default_rng(0)
    order = random.permutation(len(expected.nodes))
    for first in range(0, min(len(order), _SAMPLES * _TOGETHER), _TOGETHER):
        yield order[first : first + _TOGETHER]


def _largest(difference: np.ndarray) -> float:
    """Infinite where it is no number."""
    found = np.abs(difference)
    return float(np.where(np.isnan(found), np.inf, found).max(initial=0.0))


def _not_run(error: Exception, sample: GraphTensors) -> InputError:
    counts = ", ".join(
        [f"{sample.nodes(kind)} nodes" + (f" of {kind}" if kind else "") for kind in sample.types]
        + [f"{sum(edges.shape[1] for edges in sample.edges.values())} edges"]
    )
    return InputError(
        "model.onnx", f"it does not run over another graph than its example ({counts}): {str(error).splitlines()[0]}",
        "a size of the example is probably fixed in it: take sizes from the tensors where they are used",
    )  # fmt: skip


def _differs(scorer: Scorer, sample: GraphTensors, wanted: np.ndarray, found: np.ndarray, scale: float) -> InputError:
    module = scorer.scores(sample).float().numpy()[: len(wanted)]
    of_module, of_program = _largest(module - wanted) / scale, _largest(found - module) / scale
    if of_module > TOLERANCE and of_program <= TOLERANCE:
        return NotSampledError(
            "module", f"its scores over a sample of neighbours differ by {of_module:.2g} of the largest from those "
            f"over the whole graph; expected at most {TOLERANCE:g}",
            "give --hops, the number of layers that read neighbours; a module that normalises over all nodes cannot be "
            "served",
        )  # fmt: skip
    return InputError(
        "model.onnx", f"its scores over another graph than its example differ by {of_program:.2g} of the largest from "
        f"the module's; expected at most {TOLERANCE:g}",
        "a number of the example is probably fixed in it: compute from tensors what depends on the graph",
    )  # fmt: skip
