"""Expected scores over a graph of several types, compared over full neighbourhoods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.alternatives import CANNOT, single_readings
from gnnserve_worker.generation.expected.comparison import Cause, compare_listed
from gnnserve_worker.generation.expected.pairs import compare_all_pairs
from gnnserve_worker.generation.families.relation_tables import hidden_states
from gnnserve_worker.generation.families.relations import as_arrays, states_of
from gnnserve_worker.generation.training_set import TrainingSet, means_by_relation
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, RelationalSpec
from gnnserve_worker.models.plain import SERVED, Reading, activated
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import GivenDecoder

_MOST_PERMUTED = 5
"""Most relations of which every order is tried: there are 120 of five."""


def compare_scores_over_relations(
    spec: GNNServiceSpec, digests: Mapping[str, str], architecture: RelationalSpec, subject: TrainingSet,
    weights: Mapping[str, tuple[RelationalShape, Tensors]], decoder: GivenDecoder | None, progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold expected scores of the spec against those of the weights, and of pairs against those that `decoder` makes of
    their rows. `subject`: of the source's graph. `weights`: by what `ListedScores` calls them. InputError: they differ
    by more than they may."""
    means = [means_by_relation(subject.data, one) for one in subject.data.relations]

    def network_of(name: str) -> _Network:
        shape, tensors = weights[name]
        return _Network(architecture, shape, subject, means, tensors)

    found = compare_listed(spec, digests, subject.data, "", network_of, progress)
    compare_all_pairs(spec, subject.data, lambda name: network_of(name).scores, decoder)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Network:
    """A `ComparedNetwork` over relations."""

    architecture: RelationalSpec
    shape: RelationalShape
    subject: TrainingSet
    means: Sequence[sp.csr_array]
    """By relation: rows that average what a node reads, or sum it."""
    tensors: Tensors

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._all_scores()[nodes]
        return found

    def _all_scores(self, reading: Reading = SERVED, *, divides: bool = False) -> np.ndarray:
        """Scores of all nodes that are asked about. `divides`: what relations give is averaged, not summed."""
        layers = [as_arrays(layer) for layer in self.architecture.layers(self.tensors, self.shape)]
        states = states_of(self.subject, self.tensors)
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            outputs = hidden_states(self.subject.data, self.means, layer, states, is_last=True)
            if divides:
                outputs = [one / max(1, self._read_by(layer, kind)) for kind, one in enumerate(outputs)]
            states = [
                activated(one, one if reading.residual is None else _dense(before), reading, is_last=is_last)
                for one, before in zip(outputs, states, strict=True)
            ]
        # Where links are scored, nodes of all types are, by their numbers.
        return np.concatenate([_dense(one) for one in (states if self.subject.data.names is not None else states[:1])])

    def causes(self, positions: np.ndarray) -> Iterator[Cause]:
        """Other ways to compute the scores of these nodes; those that change nothing are left out."""
        served = self._all_scores()[positions]
        for words, remedy, scores in self._others():
            if not np.array_equal(scores[positions], served):
                yield Cause(words, remedy, scores[positions])

    def _others(self) -> Iterator[tuple[str, str, np.ndarray]]:
        mean, total = "with the mean of what relations give", "with the sum of the neighbours by each relation"
        summed = replace(self, means=[_as_sums(one) for one in self.means])
        yield mean, CANNOT, self._all_scores(divides=True)
        yield total, CANNOT, summed._all_scores()
        yield f"{mean} and {total}", CANNOT, summed._all_scores(divides=True)
        yield from self._orders()
        for one in single_readings(self.architecture.assumptions):
            yield one.words, one.remedy, self._all_scores(one.reading)
            yield f"{one.words} and {mean.removeprefix('with ')}", CANNOT, self._all_scores(one.reading, divides=True)

    def _orders(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Relations numbered in another order, of an architecture whose tensors have them by number."""
        if "order of relations" not in self.architecture.assumptions:
            return
        relations = self.shape.graph.relations
        count = len(relations)
        by_name = sorted(range(count), key=lambda place: (relations[place].source, relations[place].name))
        listed = sorted(range(count), key=lambda place: relations[place].reverse_of is not None)
        likely = [tuple(by_name), tuple(listed), tuple(reversed(range(count)))]
        orders = dict.fromkeys([*likely, *(permutations(range(count)) if count <= _MOST_PERMUTED else ())])
        for order in orders:
            names = ", ".join(relations[place].key for place in order)
            changed = replace(self, tensors=_reordered(self.tensors, order))
            yield (
                f"with relations numbered as {names}",
                "number them as `gnnserve graph inspect` lists them",
                changed._all_scores(),
            )

    def _read_by(self, layer: RelationalLayer, kind: int) -> int:
        """Relations that give something for nodes of a type."""
        name = self.shape.graph.types[kind].name
        return sum(self.shape.graph.relations[place].target == name for place in layer.relations)


def _reordered(tensors: Tensors, order: Sequence[int]) -> Tensors:
    """The tensors of a file whose n-th relation is `order[n]`, in the order of the graph."""
    places = np.argsort(order)
    has_bases = any(key.endswith(".comp") for key in tensors)
    ends = ".comp" if has_bases else ".weight"
    return {
        key: tensor[places] if key.endswith(ends) and key.startswith("convs.") else tensor
        for key, tensor in tensors.items()
    }


def _as_sums(means: sp.csr_array) -> sp.csr_array:
    """Rows that sum what a node reads, of rows that average it."""
    return sp.csr_array((np.ones_like(means.data), means.indices, means.indptr), shape=means.shape)


def _dense(rows: Features) -> np.ndarray:
    return rows if isinstance(rows, np.ndarray) else np.asarray(rows.toarray())
