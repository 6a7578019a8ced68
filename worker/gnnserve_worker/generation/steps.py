"""Steps that a generation is expected to take, with guesses of their seconds. Pure.

The guesses are those of a common processor, from sizes alone: how many rows a network reads, how wide they are, how
many epochs. They need not be good, since `progress.py` corrects them by what steps took; `gnnserve plan` measures
first. Stages are named as those who report them name them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import expm1, prod
from typing import Protocol

import numpy as np

from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, Batches, Model
from gnnserve_api.spec.searched import trained_rounds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.spec.variants import OneRow, Projection
from gnnserve_api.variants import columns_of, one_row_name, variant_name
from gnnserve_worker.generation.batches import batches_of, whole_graph_numbers
from gnnserve_worker.generation.families.registry import needs_master
from gnnserve_worker.generation.profile import BATCH_SEEDS
from gnnserve_worker.generation.schedule import expected_epochs
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.progress import PROFILE, Step
from gnnserve_worker.tasks.generation import task_of

IMPORT, CHOOSE_FACTORS, PUBLISH = "import graph", "choose factors", "publish"
EXPECTED, CHECK = "compare expected scores", "run the program"
ONE_NETWORK = "network"
"""Name of a network that is trained and is no variant itself."""
ONE_ROW_SOURCES = ("labels", "scores", "both")
"""What each one-row network is trained from."""
_IMPORT_S, _TORCH_S, _CHOICE_S, _PUBLISH_S, _RUN_S = 3.0, 5.0, 4.0, 0.5, 3.0
_NUMBER_S, _BATCH_S = 4e-9, 4e-3
"""Seconds for each number that training reads, times what is made of it, and for each batch besides."""
_BYTE_S = 2e-9
"""Seconds to make and write a byte of a table."""
_PASSES = 3
"""Passes that a training step is counted as: one forward, and two for gradients and update."""
_SIZES = len(BATCH_SEEDS) + 1.6
"""Batch sizes that a profile measures: those of stored nodes, a test size, and new nodes with a part of the time."""


@dataclass(frozen=True, slots=True)
class GraphSizes:
    nodes: int
    neighbours: float
    """Mean number of a node."""
    columns: int
    """Features of a node, of several types of the one that has most."""
    numbers: float
    """Numbers of a node's features that are stored: all of dense ones, those that are not zero of sparse ones."""
    train: int
    """Items that training goes through in an epoch."""
    validation: int

    @property
    def edges(self) -> int:
        """Entries of neighbour lists."""
        return round(self.nodes * self.neighbours)

    @staticmethod
    def of(data: GraphData, items: int) -> GraphSizes:
        """`items`: those of the problem over the graph."""
        nodes, features = max(1, data.nodes), [kind.features for kind in data.types if kind.features is not None]
        columns = max((one.shape[1] for one in features), default=0)
        numbers = sum(map(_stored_numbers, features))
        return GraphSizes(nodes, data.edges / nodes, columns, numbers / nodes, items, len(data.splits.validation))


UNKNOWN = GraphSizes(10_000, 10.0, 200, 200.0, 5_000, 2_000)
"""Sizes that stand for those of a graph that is not imported yet."""


def _stored_numbers(features: Features) -> int:
    return features.size if isinstance(features, np.ndarray) else len(features.data)


class StepsOf(Protocol):
    """Steps behind the import of a graph, as networks of one kind need them."""

    def __call__(self, spec: GNNServiceSpec, sizes: GraphSizes, profile_budget_s: float) -> tuple[Step, ...]: ...


def steps_from_import(steps: StepsOf, spec: GNNServiceSpec, profile_budget_s: float) -> tuple[Step, ...]:
    """All steps, before anything is known of the graph. `steps`: those behind the import."""
    return (Step(IMPORT, "import", _IMPORT_S), *steps(spec, UNKNOWN, profile_budget_s))


def steps_of(spec: GNNServiceSpec, sizes: GraphSizes, profile_budget_s: float) -> tuple[Step, ...]:
    """Steps of networks that read rows of nodes, and of programs."""
    choice_s = _CHOICE_S + _total_s(step for step in _first_networks(spec, sizes) if step.kind == "train") / 4
    is_chosen = spec.variants.optional_factors and not spec.variants.is_searched
    choice = (Step(CHOOSE_FACTORS, "choose", choice_s),) if is_chosen else ()
    return (*_first_networks(spec, sizes), *choice, *steps_behind_choice(spec, sizes, profile_budget_s))


def steps_behind_choice(spec: GNNServiceSpec, sizes: GraphSizes, profile_budget_s: float) -> tuple[Step, ...]:
    """Steps behind the network of all columns, over the factors that are left."""
    variants = spec.variants
    rows_bytes = 4.0 * sizes.nodes * len(variants.storage)
    columns = sizes.columns if variants.pruning.factors or variants.is_searched else 0
    products = spec.model.hidden if variants.projection is Projection.AUTO or variants.stored else 0
    measured = _measured(_BYTE_S * rows_bytes * (columns + products), profile_budget_s)
    if variants.is_searched:
        promising_s = _total_s(_searched_networks(spec, sizes, None)) / 2
        search_s = min(promising_s, float(variants.budget.seconds)) + _total_s(measured)
        return (*measured, Step("search", "search", search_s), _publishing())
    others = _other_networks(spec, sizes, variants.pruning.factors, variants.canonical().one_row)
    return (*others, *measured, _publishing())


def steps_of_search(
    spec: GNNServiceSpec, sizes: GraphSizes, names: Iterable[str], profile_budget_s: float
) -> tuple[Step, ...]:
    """Steps behind the prediction of latencies, where networks of these names (`Round.trains`) are to be trained."""
    networks = tuple(_searched_networks(spec, sizes, names))
    again = _measured(1.0, profile_budget_s) if networks else ()
    return (*networks, *again, Step("search", "search", 0.1), _publishing())


def _searched_networks(spec: GNNServiceSpec, sizes: GraphSizes, names: Iterable[str] | None) -> Iterator[Step]:
    """Networks of these names, in their order; None: all that a search may train."""
    rounds = {each.trains: each.variants for each in trained_rounds(spec.variants, spec.variants.pruning.factors)}
    for listed in (rounds[name] for name in (rounds if names is None else names)):
        yield from _other_networks(spec, sizes, listed.pruning.factors, listed.one_row)


def _total_s(steps: Iterable[Step]) -> float:
    return sum(step.seconds for step in steps)


def steps_over_relations(spec: GNNServiceSpec, sizes: GraphSizes, profile_budget_s: float) -> tuple[Step, ...]:
    """Steps of the one network that reads products of relations."""
    model = spec.model
    if batches_of(model, sizes.nodes, sizes.edges) is Batches.SAMPLED:
        as_read = replace(sizes, columns=model.hidden, numbers=float(model.hidden), validation=0)
        training_s = _network_s(model, as_read)
    else:
        epoch_s = _BATCH_S + _PASSES * _NUMBER_S * whole_graph_numbers(model, sizes.nodes, sizes.edges)
        training_s = expected_epochs(model.training.epochs, 1) * epoch_s
    trained = (Step("load torch", "load", _TORCH_S), Step(f"train {ONE_NETWORK}", "train", training_s))
    tables_s = _BYTE_S * 4 * model.hidden * sizes.nodes * len(spec.variants.storage)
    return (*(trained if model.checkpoint is None else ()), *_measured(tables_s, profile_budget_s), _publishing())


def master_name(spec: GNNServiceSpec) -> str:
    """Name of the network of all columns."""
    return variant_name(1) if 1 in spec.variants.pruning.factors else ONE_NETWORK


def embeddings_name(spec: GNNServiceSpec) -> str:
    """Name of embeddings that are learnt in place of a network."""
    return f"embeddings-{spec.model.architecture}".lower()


def _first_networks(spec: GNNServiceSpec, sizes: GraphSizes) -> Iterable[Step]:
    """The network of all columns, and what is read from it."""
    variants, model = spec.variants, spec.model
    if model.program is not None:
        yield Step(EXPECTED, "compare", _RUN_S)
        yield Step(CHECK, "run", _RUN_S)
    if spec.trains_networks:
        yield Step("load torch", "load", _TORCH_S)
    if model.program is not None:
        return
    if model.learns_embeddings:
        verb = "filter" if task_of(spec).compared_with is ComparedWith.NOTHING else "train"
        yield Step(f"{verb} {embeddings_name(spec)}", "train", _network_s(model, sizes))
    elif not model.is_given and not variants.are_all_given and needs_master(spec):
        yield Step(f"train {master_name(spec)}", "train", _network_s(model, sizes))
    if variants.are_all_given:
        return
    yield Step(f"rank by {variants.pruning.method}", "rank", 0.1)
    for seed in range(model.training.seed + 1, model.training.seed + 1 + variants.pruning.stability_seeds):
        yield Step(f"train network of seed {seed}", "train", _network_s(model, sizes))
        yield Step(f"rank by {variants.pruning.method}, seed {seed}", "rank", 0.1)


def _other_networks(
    spec: GNNServiceSpec, sizes: GraphSizes, factors: Iterable[int], one_rows: Iterable[OneRow]
) -> Iterator[Step]:
    """Networks beside the first one, in the order in which families make them."""
    model, is_given = spec.model, spec.model.is_given
    for factor in sorted(factors):
        name = variant_name(factor)
        if factor > 1 and is_given:
            yield Step(f"refit {name}", "refit", 1.0)
        elif factor > 1:
            yield Step(f"train {name}", "train", _network_s(model, sizes, factor))
    for name in dict.fromkeys(one.network_name for one in spec.variants.canonical().channels):
        yield Step(f"prune channels of {name}", "channels", 2.0)
        if not is_given:
            yield Step(f"train {name}", "train", _network_s(model, sizes) / 2)
    for one in one_rows:
        perceptron_s = _network_s(model.one_row(one.hops), sizes)
        for source in ONE_ROW_SOURCES:
            yield Step(f"train {one_row_name(one.hops)} from {source}", "train a perceptron", perceptron_s)


def _measured(tables_s: float, profile_budget_s: float) -> tuple[Step, ...]:
    return Step("write tables", "write", tables_s), Step(PROFILE, "profile", 1.0 + _SIZES * profile_budget_s)


def _publishing() -> Step:
    return Step(PUBLISH, "publish", _PUBLISH_S)


def _network_s(model: Model, sizes: GraphSizes, factor: int = 1) -> float:
    """Seconds to train a network on a part of the columns."""
    training = model.training
    batches = -(-max(1, sizes.train) // training.batch_size)
    share = columns_of(sizes.columns, factor) / max(1, sizes.columns)
    seeds_at_once = min(training.batch_size, max(1, sizes.train))
    rows = [
        _distinct(_drawn(model.fanouts[:hops], sizes.neighbours), seeds_at_once, sizes.nodes)
        for hops in range(len(model.fanouts) + 1)
    ]
    # The widest draw reads features, the others hidden rows; each is multiplied by a matrix of the hidden width.
    numbers = rows[-1] * (sizes.numbers * share + model.hidden) + sum(rows[:-1]) * model.hidden * 2
    seeds = _PASSES * sizes.train + sizes.validation
    return expected_epochs(training.epochs, batches) * (batches * _BATCH_S + seeds * numbers * _NUMBER_S)


def _drawn(fanouts: Iterable[int], neighbours: float) -> float:
    """Nodes at the end of the draw."""
    return prod(neighbours if fanout == FULL_NEIGHBOURHOOD else min(float(fanout), neighbours) for fanout in fanouts)


def _distinct(drawn: float, seeds: int, nodes: int) -> float:
    """Rows that a batch reads for each of its seeds: a node that several neighbourhoods share is read once. On a small
    graph that is nearly every one."""
    return -nodes * expm1(-drawn * seeds / nodes) / seeds
