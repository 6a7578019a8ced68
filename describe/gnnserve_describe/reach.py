"""How far a module reads, measured over a graph that is made up: how many hops, whether it counts edges, and whether it
reads nodes that nothing joins to the ones that are scored."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from gnnserve_api.errors import InputError
from gnnserve_describe.blame import Blame, blame_of, blame_of_caller
from gnnserve_describe.findings import Findings
from gnnserve_describe.graph import Blocks, GraphTensors, NeighbourLists
from gnnserve_describe.probe import Probe
from gnnserve_describe.scoring import Scorer

_DOUBLE_TOLERANCE, _SINGLE_TOLERANCE = 1e-9, 2e-5
"""Largest difference of equal scores, of the largest score."""
_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Reach:
    hops: int
    reads_degrees: bool

    @property
    def sampled_hops(self) -> int:
        return self.hops + self.reads_degrees


class ReadsFurtherError(InputError):
    """Nodes that are further away than the probe tells change scores."""


class SizesOfAnotherError(InputError):
    """The module fails over a sample whose types have other numbers of nodes than in the graph."""


class NotSampledError(InputError):
    """Samples of the edges that lead to nodes do not give the scores; perhaps those of a graph with reverses do."""


def measure_reach(scorer: Scorer, probe: Probe, given: int | None, findings: Findings) -> Reach:
    """`given`: hops by the user; None: unknown. InputError: no sample of neighbours gives the scores of the whole
    graph; SizesOfAnotherError: perhaps types of equal sizes help; ReadsFurtherError: perhaps a deeper probe tells;
    NotSampledError: perhaps a graph with reverses does."""
    meter = _meter(scorer, probe)
    meter.check_parts_apart()
    hops = meter.hops()
    if given is not None and given < hops:
        raise InputError(
            "--hops", f"{given} is given, and nodes {hops} hops away change scores", f"say {hops}, or leave it out"
        )
    exact = next((each for each in range(hops, probe.most_hops + 2) if meter.is_exact(each)), None)
    if exact is None:
        raise meter.not_sampled()
    if hops == 0 and exact == 0 and given in (None, 0):
        findings.tell("no neighbour changes a score: the module reads the features of the node alone")
    reads_degrees = exact > hops
    # Layers that count edges which leave a node read two hops further, and what reads degrees alone has no features'
    # hops to tell.
    hops = max(hops, exact - 1) if reads_degrees else hops
    return Reach(max(hops, given or 0), reads_degrees)


def _meter(scorer: Scorer, probe: Probe) -> _Meter:
    """In float64 where the module can, since what is far away counts little."""
    try:
        double = replace(scorer, module=copy.deepcopy(scorer.module).double())
        meter = _Meter(double, replace(probe, graph=probe.graph.as_double()), _DOUBLE_TOLERANCE)
    except (RuntimeError, TypeError, ValueError):
        return _Meter(scorer, probe, _SINGLE_TOLERANCE)
    return meter if meter.is_finite else _Meter(scorer, probe, _SINGLE_TOLERANCE)


class _Meter:
    def __init__(self, scorer: Scorer, probe: Probe, tolerance: float) -> None:
        self._scorer, self._probe, self._seeds = scorer, probe, probe.seeds[scorer.target]
        self._lists = NeighbourLists(probe.graph)
        self._scores = scorer.scores(probe.graph)[self._seeds]
        self.is_finite = bool(self._scores.isfinite().all())
        self._most = tolerance * (float(self._scores.abs().max()) or 1.0)

    def hops(self) -> int:
        """The most hops from which features change a score."""
        most = self._probe.most_hops
        distances = self._lists.distances(self._scorer.target, self._seeds, most + 2)
        reached, beyond = 0, most + 2
        while reached + 1 < beyond:
            hops = (reached + beyond) // 2
            if any(self._differs(changed) for changed in self._changed(lambda kind: distances[kind] >= hops)):  # noqa: B023
                reached = hops
            else:
                beyond = hops
        if reached > most:
            raise ReadsFurtherError(
                "module", f"it reads nodes more than {most} hops away, and no more than {most} are served, which is a "
                "limit of gnnserve and not of such models",
                "propagate ahead of time: give what the propagation makes as features, and describe what comes behind",
            )  # fmt: skip
        return reached

    def is_exact(self, hops: int) -> bool:
        """Whether a sample of so many hops, with whole lists, gives the scores of the whole graph."""
        sample = self._lists.sample(self._scorer.target, self._seeds, hops)
        try:
            found = self._scorer.scores(sample)[: len(self._seeds)]
        except Exception as error:
            if hops == 0:  # without any edge; programs have some (`export_program`)
                return False
            raise SizesOfAnotherError(
                str(blame_of(error)) or "forward",
                f"the module fails over a sample of neighbours: {type(error).__name__}: {error}",
                "take each size from the tensor that it is of: a sample has more or fewer nodes of one type than of "
                "another, and perhaps none",
            ) from error  # fmt: skip
        return not self._is_off(found)

    def check_parts_apart(self) -> None:
        """InputError: nodes that no path joins to the scored ones change their scores."""
        joined = self._probe.joined

        def is_apart(kind: str) -> np.ndarray:
            return np.arange(self._probe.graph.nodes(kind)) >= joined[kind]

        changes = any(self._differs(changed) for changed in self._changed(is_apart))
        if not changes:
            graph = self._probe.graph
            alone = graph.part(
                {kind: np.arange(count) for kind, count in joined.items()},
                {key: np.flatnonzero(edges.numpy()[1] < joined[key.target]) for key, edges in graph.edges.items()},
            )
            changes = self._differs(alone)
        if changes:
            raise self._reads_the_whole()

    def not_sampled(self) -> NotSampledError:
        return NotSampledError(
            "module", f"its scores over a sample of {self._probe.most_hops + 1} hops, with all edges that these nodes "
            "read, are not those over the whole graph: it reads more than the edges that lead to a node",
            "it may look at the numbers of nodes, use the order of edges, or count edges that leave a node: give such "
            "numbers as features of nodes",
        )  # fmt: skip

    def _reads_the_whole(self) -> InputError:
        likely = list(whole_graph_layers(self._scorer.module))
        problem = "scores change with nodes that nothing joins to the scored ones: it reads the graph as a whole"
        if not likely:
            return InputError(
                "module", f"{problem}{self._line_of_reduction()}",
                "norms, means, attention and pooling over all nodes have another value over each sample of neighbours: "
                "compute them of each node by itself, of its neighbours, or of numbers that training has stored "
                "(BatchNorm), and train again, or keep what they are over your graph as a buffer, which later changes "
                "of the graph leave as it is",
            )  # fmt: skip
        named = ", ".join(f"{name} ({words})" for name, words, _ in likely[:3])
        remedies = dict.fromkeys(remedy for _, _, remedy in likely)
        return InputError("module", f"{problem}: {named}", "; ".join(remedies))

    def _line_of_reduction(self) -> str:
        """The first line that computes over all nodes, where one is seen."""
        graph = self._probe.graph
        seen = _SeenReductions({graph.nodes(kind) for kind in graph.types})
        with seen:
            self._scorer.scores(graph)
        return next((f", at {line}" for line in seen.lines if str(line)), "")

    def _differs(self, graph: GraphTensors) -> bool:
        return self._is_off(self._scorer.scores(graph)[self._seeds])

    def _is_off(self, scores: torch.Tensor) -> bool:
        difference = (scores - self._scores).abs()
        return not bool((difference <= self._most).all())

    def _changed(self, is_changed: Callable[[str], np.ndarray]) -> Iterator[GraphTensors]:
        """Graphs whose nodes of that choice have rows of others."""
        random = np.random.default_rng(7)
        for _ in range(_DRAWS):
            features: dict[str, Blocks] = {}
            for kind, blocks in self._probe.graph.features.items():
                rows = np.arange(self._probe.graph.nodes(kind))
                chosen = np.flatnonzero(is_changed(kind))
                rows[chosen] = random.permutation(len(rows))[: len(chosen)]
                places = torch.from_numpy(rows)
                features[kind] = {name: block[places] for name, block in blocks.items()}
            yield replace(self._probe.graph, features=features)


_NORM = (
    "no server of neighbourhoods can be right here; use a norm of each node (torch.nn.LayerNorm, LayerNorm("
    "mode='node')) or BatchNorm, and train again, or keep its mean and deviation over your graph as buffers, which "
    "later changes of the graph leave as they are"
)
_RELATIONS = (
    "add up what relations give (HeteroConv), or weigh them by parameters, and train again, or keep the weights that "
    "they have over your graph as a buffer, which later changes of the graph leave as they are"
)
_ATTENTION = "attend to neighbours alone (TransformerConv, GATv2Conv) in place of all nodes, and train again"
_POOLING = "leave the pooling out, which chooses among all nodes, and train again"
_NORMS = ("GraphNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm", "GraphSizeNorm")
_ATTENTIONS = ("SGFormerAttention", "PolynormerAttention", "PerformerAttention", "GPSConv")
_POOLINGS = ("TopKPooling", "SAGPooling", "ASAPooling", "EdgePooling", "ClusterPooling", "PANPooling", "MemPooling")
_KNOWN: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(_NORMS, ("a norm over all nodes", _NORM)),
    **dict.fromkeys(_ATTENTIONS, ("attention over all nodes", _ATTENTION)),
    **dict.fromkeys(_POOLINGS, ("pooling of nodes", _POOLING)),
    "HANConv": ("which weighs relations by a mean over all nodes", _RELATIONS),
}
"""What layers do and what to do in their place, by the names of their classes."""


def whole_graph_layers(module: torch.nn.Module) -> Iterator[tuple[str, str, str]]:
    """Layers that are known to read all nodes: the name of each, what it does, and the next step."""
    for name, each in module.named_modules():
        kind = type(each).__name__
        if kind in _KNOWN:
            words, remedy = _KNOWN[kind]
            yield name, f"{kind}, {words}", remedy
        elif kind == "LayerNorm" and getattr(each, "mode", "") == "graph":
            yield name, "torch_geometric's LayerNorm, whose mode is 'graph' by default", _NORM
        elif kind == "InstanceNorm" and not getattr(each, "track_running_stats", False):
            yield name, "torch_geometric's InstanceNorm", _NORM
        elif getattr(each, "track_running_stats", True) is False and "Norm" in kind:
            yield name, f"{kind}(track_running_stats=False)", _NORM


_OVER_ROWS = frozenset(
    """
    mean sum std var std_mean var_mean norm vector_norm amax amin max min softmax log_softmax cumsum sort argsort
    median quantile logsumexp prod
    """.split()  # noqa: SIM905 - one a line would take a page
)


class _SeenReductions(TorchFunctionMode):
    """Remembers lines that compute one number of all nodes, or give each node something of all."""

    def __init__(self, rows: Collection[int]) -> None:
        super().__init__()
        self.lines: list[Blame] = []
        self._rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = args[0] if args else None
        if getattr(func, "__name__", "") in _OVER_ROWS and torch.is_tensor(given) and given.dim():
            axis = (kwargs or {}).get("dim", args[1] if len(args) > 1 else None)
            axes = {each % given.dim() for each in (axis if isinstance(axis, tuple | list) else [axis])
                    if isinstance(each, int)}  # fmt: skip
            is_over_rows = 0 in axes if axes else not _has_rows(found, given.shape[0])
            if given.shape[0] in self._rows and given.is_floating_point() and is_over_rows:
                self.lines.append(blame_of_caller())
        return found


def _has_rows(found: Any, rows: int) -> bool:
    return torch.is_tensor(found) and found.dim() > 0 and found.shape[0] == rows
