"""Networks that a generation learns: which, why, in which order, and what of each may be learnt before. A pure list.

A lesson is a part of the slow step of a generation. It says what is learnt and why, names what it needs, guesses its
seconds, and has it learnt from `WeightSources`, whatever these are: training, a refit of given weights, or shapes alone
where a search only asks what there could be. `steps.py` takes lessons in their order, a search those of each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.repository import RankingRun
from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.made_variants import made_variants, search_space
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.spec.variants import ProjectionMode, Variants
from gnnserve_api.variants import one_row_name, variant_name
from gnnserve_api.wording import in_words
from gnnserve_worker.generation.estimates import (
    UNKNOWN,
    GraphSizes,
    network_over_relations_s,
    network_s,
    profile_s,
    stale_s,
    tables_s,
)
from gnnserve_worker.generation.families.family import OneRowNetwork
from gnnserve_worker.generation.families.registry import needs_master, with_factors
from gnnserve_worker.generation.ranking import Ranking, reads_master
from gnnserve_worker.models.registry import Tensors, without_decoder
from gnnserve_worker.progress import CHECK, CHOOSE_FACTORS, EXPECTED, IMPORT, PROFILE, PUBLISH, STALE, WRITE, Step
from gnnserve_worker.tasks.generation import task_of

TensorsAndRuns = tuple[Tensors, Sequence[TrainingRun]]
"""Weights, and what the revision records of their training."""
ONE_NETWORK = "network"
"""Name of a network that is trained and is no variant itself."""
_IMPORT_S, _TORCH_S, _CHOICE_S, _PUBLISH_S, _RUN_S = 3.0, 5.0, 4.0, 0.5, 3.0


# --- by what they are learnt


class Models(Protocol):
    """A source of weights. `name` is what progress calls it."""

    @property
    def runs(self) -> Sequence[TrainingRun]:
        """How the networks so far were trained, those of other seeds apart. Empty: the weights are given."""

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        """Weights of what reads the outputs of all networks, once the master is there; empty: they are scores."""

    def master(self, name: str) -> Tensors:
        """Weights for all columns, in the order of the source."""

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        """Weights for the given columns (ids), in their order."""

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        """Weights of a network with fewer hidden channels, made of `wide`, which reads the given columns (ids) in their
        order, or all in the order of the source."""

    def another_master(self, seed: int, name: str) -> Tensors:
        """A master that differs in its seed alone. Only where weights are trained."""


@dataclass(frozen=True, slots=True)
class WideNetwork:
    """A network whose hidden channels are pruned."""

    tensors: Tensors
    columns: np.ndarray | None
    """Ids of the columns that it reads, in their order; None: all, in the order of the source."""
    whole: Tensors
    """Weights of the network of all columns."""
    decoder: Mapping[str, np.ndarray]
    """As of `Models`."""


class Narrow(Protocol):
    def __call__(self, wide: WideNetwork, factor: int, name: str) -> TensorsAndRuns:
        """Weights of a network of that name with fewer hidden channels."""


class Prune(Protocol):
    def __call__(
        self, whole: Tensors, decoder: Mapping[str, np.ndarray], columns: np.ndarray, name: str
    ) -> TensorsAndRuns:
        """Weights of a network of that name over the given columns (ids), beside `whole`, which reads all. `decoder`:
        as of `Models`."""


class OneNetwork:
    """The `Models` of what has one network, which reads all there is, and those with fewer channels or columns of
    it."""

    def __init__(
        self, weights: Callable[[str], TensorsAndRuns], narrow: Narrow | None = None, prune: Prune | None = None
    ) -> None:
        """`weights`: of the network of a name, with those of a decoder beside it. `narrow` None: it has no hidden
        channels; `prune` None: no columns that it could go without."""
        self._weights, self._narrow, self._prune = weights, narrow, prune
        self._master: Tensors = {}
        self.runs: Sequence[TrainingRun] = ()
        self.decoder: Mapping[str, np.ndarray] = {}

    def master(self, name: str) -> Tensors:
        tensors, self.runs = self._weights(name)
        self._master, self.decoder = without_decoder(tensors)
        return self._master

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        if self._prune is None:
            raise ValueError(f"{name}: there are no columns to go without")
        tensors, runs = self._prune(self._master, self.decoder, columns, name)
        self.runs = (*self.runs, *runs)
        return tensors

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        if self._narrow is None:
            raise ValueError(f"{name}: there are no hidden channels to go without")
        tensors, runs = self._narrow(WideNetwork(wide, columns, self._master, self.decoder), factor, name)
        self.runs = (*self.runs, *runs)
        return tensors

    def another_master(self, seed: int, name: str) -> Tensors:
        raise ValueError(f"{name}: columns are not ranked")


class Teacher(Protocol):
    """A model whose outputs other networks may learn."""

    @property
    def digest(self) -> str:
        """Digest of what outputs depend on beside the graph."""

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        """Weights of what reads its outputs, and those of the networks that learn them; empty: it has none."""

    @property
    def embedded(self) -> Mapping[int, np.ndarray]:
        """Embeddings that it has learnt of nodes without features, float32 [nodes, columns], by the place of their
        type; empty: of none."""

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        """Outputs of `nodes` (int64) over the lists that training may see, float32 [nodes, outputs]."""


class OneRowModels(Protocol):
    """A source of one-row variants' networks, which are trained even beside given weights."""

    @property
    def runs(self) -> Sequence[TrainingRun]:
        """How the networks so far were trained."""

    def teacher_of(self, master: Tensors | None, decoder: Mapping[str, np.ndarray]) -> Teacher:
        """The model that they stand in for: the network with these weights; None: it is no network of layers.
        `decoder`: weights of what reads its outputs, where the network is one of layers."""

    def one_row(self, hops: int, name: str, teacher: Teacher) -> OneRowNetwork:
        """Train one over features of that many hops. `teacher`: the model whose scores it may learn from."""


@dataclass(frozen=True, slots=True)
class WeightSources:
    """Sources that a generation learns its networks by."""

    models: Models | None
    """None: nothing is made of weights of all columns, as of a program, or where all variants are given."""
    one_rows: OneRowModels | None = None
    """None: the spec asks for no one-row variants, and no search does."""
    rank: Callable[[Tensors | None, int], Ranking] | None = None
    """Ranks columns by the weights of a network, with a seed. None: columns stay in the order of the source."""
    choose: Callable[[LearntNetworks], ChosenFactors] | None = None
    """Decides which of the optional factors to leave out; None: nothing is left out."""

    @property
    def of_model(self) -> Models:
        if self.models is None:
            raise ValueError("networks are made of a model, and there is none")
        return self.models

    @property
    def runs(self) -> tuple[TrainingRun, ...]:
        return tuple(run for source in (self.models, self.one_rows) if source is not None for run in source.runs)

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self.models is None else self.models.decoder


@dataclass(frozen=True, slots=True)
class LearntNetworks:
    """Networks that have been learnt so far."""

    spec: GNNServiceSpec
    """With the factors that are left."""
    ranking: Ranking
    master: Tensors | None = None
    """Weights of the network of all columns, for inputs in the order of the source; None: no lesson was about it."""
    networks: Mapping[str, Tensors] = field(default_factory=dict)
    """Weights of other networks by their names, for inputs in rank order; with fewer channels as `Models.narrowed`."""
    one_rows: Mapping[str, OneRowNetwork] = field(default_factory=dict)
    """One-row networks by their names."""
    other_rankings: tuple[RankingRun, ...] = ()
    chosen: ChosenFactors | UnsetType = UNSET

    def ranked(self, factor: int) -> np.ndarray:
        """Ids of the columns that a network of the factor reads, in rank order."""
        return self.ranking.first(factor)


def take_lessons(lessons: Iterable[Lesson], sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
    """Learn in the order of the lessons."""
    for lesson in lessons:
        learnt = lesson.learn(sources, learnt)
    return learnt


# --- what is learnt


@dataclass(frozen=True, slots=True)
class Lesson:
    """Networks that are learnt at once."""

    name: str
    """The network that is learnt; what is done where it is none."""
    why: str
    needs: tuple[str, ...]
    """Names of lessons that come before it."""
    steps: Callable[[GraphSizes], tuple[Step, ...]]
    """Stages that it reports, with guesses of their seconds; none where weights are there already."""
    learn: Callable[[WeightSources, LearntNetworks], LearntNetworks]


def _first(spec: GNNServiceSpec) -> Lesson:
    """The network of all columns: over relations, the one of which every variant is made; where embeddings of nodes are
    learnt, one that gives them as they are."""
    model, name = spec.model, _first_name(spec)
    stage, why = f"train {name}", _why_all_columns(spec)
    if reads_products(spec) or model.is_program:
        why = "every variant is made of it"
    elif model.learns_embeddings:
        verb = "filter" if task_of(spec).compared_with is ComparedWith.NOTHING else "train"
        stage, why = f"{verb} {embeddings_name(spec)}", "embeddings of all nodes are learnt, and served as they are"

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        return () if model.is_given else (Step(stage, "train", _network_s(spec, sizes)),)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        return replace(learnt, master=sources.of_model.master(name))

    return Lesson(name, why, (), steps, learn)


def _network_s(spec: GNNServiceSpec, sizes: GraphSizes, factor: int = 1) -> float:
    """Seconds to train a network of one of so many columns, whose number matters little over relations."""
    if reads_products(spec):
        return network_over_relations_s(spec.model, sizes)
    return network_s(spec.model, sizes, factor)


def _first_name(spec: GNNServiceSpec) -> str:
    is_variant = 1 in spec.variants.pruning.factors and not reads_products(spec)
    return variant_name(1) if is_variant else ONE_NETWORK


def _why_all_columns(spec: GNNServiceSpec) -> str:
    variants, method = spec.variants.canonical(), spec.variants.pruning.method
    made = [variant_name(1)] if 1 in spec.variants.pruning.factors else []
    made += ["projected"] if variants.projection is ProjectionMode.AUTO else []
    made += [f"stored{layer}" for layer in variants.stored]
    made += [one.name for one in variants.channels if one.column_factor == 1]
    taught = [one_row_name(one.hops) for one in variants.one_row]
    reasons = {
        f"{in_words(made)} {'are' if len(made) > 1 else 'is'} made of it": bool(made),
        f"columns are ranked by its weights ({method})": reads_master(method),
        f"{in_words(taught)} may learn its scores": bool(taught),
        "the decoder of all variants is learnt with it": task_of(spec).needs_master,
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def _ranking(spec: GNNServiceSpec) -> Lesson:
    """The order of feature columns."""
    method = spec.variants.pruning.method
    name, needs = f"rank by {method}", (_first_name(spec),) if reads_master(method) else ()

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        if sources.rank is None:
            return learnt
        return replace(learnt, ranking=sources.rank(learnt.master, spec.model.training.seed))

    why = "variants of fewer columns read the first ones"
    return Lesson(name, why, needs, lambda _: (Step(name, "rank", 0.1),), learn)


def _choice(spec: GNNServiceSpec) -> Lesson:
    """Which of the optional factors a network is learnt for."""

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        first_s = sum(step.seconds for step in _first(spec).steps(sizes))
        return (Step(CHOOSE_FACTORS, "choose", _CHOICE_S + first_s / 4),)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        if sources.choose is None:
            return learnt
        chosen = sources.choose(learnt)
        factors = tuple(one for one in learnt.spec.variants.pruning.factors if one not in chosen.left_out)
        return replace(learnt, spec=with_factors(learnt.spec, factors), chosen=chosen)

    why = "spec.variants.pruning.choice is Auto"
    return Lesson(CHOOSE_FACTORS, why, (_ranking(spec).name,), steps, learn)


def _other_seed(spec: GNNServiceSpec, seed: int) -> Lesson:
    """A network of all columns that differs in its seed alone, and the order of columns by it. It is not kept."""
    name, stage = f"network of seed {seed}", f"{_ranking(spec).name}, seed {seed}"

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        return Step(f"train {name}", "train", network_s(spec.model, sizes)), Step(stage, "rank", 0.1)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        tensors = sources.of_model.another_master(seed, name)
        if sources.rank is None:
            return learnt
        run = RankingRun(seed=seed, columns=tuple(sources.rank(tensors, seed).columns.tolist()))
        return replace(learnt, other_rankings=(*learnt.other_rankings, run))

    why = "spec.variants.pruning.stabilitySeeds: it is recorded how far the ranking depends on the seed"
    return Lesson(name, why, (), steps, learn)


def _fewer_columns(spec: GNNServiceSpec, factor: int) -> Lesson:
    """A network that reads a part of the columns."""
    name = variant_name(factor)

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        if spec.model.is_given:
            return (Step(f"refit {name}", "refit", 1.0),)
        return (Step(f"train {name}", "train", _network_s(spec, sizes, factor)),)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        if factor not in learnt.spec.variants.pruning.factors:
            return learnt  # it was left out meanwhile
        tensors = sources.of_model.pruned(learnt.ranked(factor), name)
        return replace(learnt, networks={**learnt.networks, name: tensors})

    why = f"{_asked(spec, 'pruning.factors')}: it reads one of {factor} columns, the first in rank order"
    return Lesson(name, why, (_ranking(spec).name,), steps, learn)


def _fewer_channels(spec: GNNServiceSpec, one: Channels) -> Lesson:
    """A network with a part of the hidden channels of another one."""
    name, reads_all = one.network_name, one.column_factor == 1
    of = _first_name(spec) if reads_all else variant_name(one.column_factor)

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        trained = (Step(f"train {name}", "train", _network_s(spec, sizes) / 2),)
        return Step(f"prune channels of {name}", "channels", 2.0), *(() if spec.model.is_given else trained)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        wide = learnt.master if reads_all else learnt.networks[of]
        if wide is None:
            raise ValueError(f"{name} is made of {of}, which is not there")
        columns = None if reads_all else learnt.ranked(one.column_factor)
        tensors = sources.of_model.narrowed(wide, columns, one.factor, name)
        return replace(learnt, networks={**learnt.networks, name: tensors})

    why = f"spec.variants.channels: it has one of {one.factor} hidden channels of {of}"
    return Lesson(name, why, (of,), steps, learn)


def _one_row(spec: GNNServiceSpec, hops: int) -> Lesson:
    """A perceptron that reads one row of a node."""
    name = one_row_name(hops)

    def steps(sizes: GraphSizes) -> tuple[Step, ...]:
        perceptron_s = network_s(spec.model.one_row(hops), sizes)
        stages = (f"train {name} from {source}" for source in task_of(spec).one_row_sources(hops))
        return tuple(Step(stage, "train a perceptron", perceptron_s) for stage in stages)

    def learn(sources: WeightSources, learnt: LearntNetworks) -> LearntNetworks:
        if (one_rows := sources.one_rows) is None:
            raise ValueError(f"{name} is trained, and there is nothing that trains it")
        made = one_rows.one_row(hops, name, one_rows.teacher_of(learnt.master, sources.decoder))
        return replace(learnt, one_rows={**learnt.one_rows, name: made})

    reads = "its own features" if hops == 0 else f"features within {hops} hops"
    learns = in_words(task_of(spec).one_row_sources(hops), "or")
    why = f"{_asked(spec, 'oneRow')}: it reads {reads} of a node, and learns {learns}, whichever is best"
    is_taught_by_files = spec.model.is_program and spec.model.is_given
    return Lesson(name, why, () if is_taught_by_files else (_first_name(spec),), steps, learn)


def _asked(spec: GNNServiceSpec, field: str) -> str:
    """What a network is learnt for."""
    return "where a search finds it promising" if spec.variants.is_searched else f"spec.variants.{field}"


# --- which there are


def lessons_of(spec: GNNServiceSpec) -> tuple[Lesson, ...]:
    """What is learnt for a spec before variants are planned; what a search learns beside it is chosen later."""
    variants = spec.variants
    if reads_products(spec):
        ordered = _order_of_columns(spec)
        return () if variants.are_all_given else (_first(spec), *ordered, *networks_of(spec))
    if spec.model.is_program:
        is_made_of = ranks_columns(spec) or spec.variants.channels
        first = () if spec.model.is_given and not is_made_of else (_first(spec),)
        return *first, *_order_of_columns(spec), *networks_of(spec)
    if variants.are_all_given:
        return ()
    is_chosen = variants.optional_factors and not variants.is_searched
    return (
        *((_first(spec),) if needs_master(spec) else ()),
        *((_ranking(spec),) if ranks_columns(spec) else ()),
        *((_choice(spec),) if is_chosen else ()),
        *_behind_choice(spec),
    )


def _order_of_columns(spec: GNNServiceSpec) -> tuple[Lesson, ...]:
    """The ranking, and which of the optional factors a network is learnt for, where fewer columns are asked for."""
    choice = (_choice(spec),) if made_variants(spec).optional_factors else ()
    return (_ranking(spec), *choice) if ranks_columns(spec) else ()


def ranks_columns(spec: GNNServiceSpec) -> bool:
    """Whether networks read rows of features, of which some may have the first columns alone."""
    if reads_products(spec):
        searched = search_space(spec, spec.variants.pruning.factors).factors if spec.variants.is_searched else ()
        return bool(searched or made_variants(spec).pruning.factors)
    if spec.model.is_program:
        return max(made_variants(spec).pruning.factors, default=1) > 1
    return not spec.model.learns_embeddings and not spec.variants.are_all_given


def _behind_choice(spec: GNNServiceSpec) -> tuple[Lesson, ...]:
    """What is learnt once columns are ranked, for the factors that are left."""
    others = 0 if reads_products(spec) else spec.variants.pruning.stability_seeds
    seed = spec.model.training.seed
    listed = () if spec.variants.is_searched else networks_of(spec)
    return *(_other_seed(spec, seed + place) for place in range(1, others + 1)), *listed


def networks_of(spec: GNNServiceSpec, listed: Variants | None = None) -> tuple[Lesson, ...]:
    """Networks beside the first one that variants of the spec are made of. `listed`: other variants than the spec's."""
    listed = made_variants(spec) if listed is None else listed
    one_rows = tuple(_one_row(spec, one.hops) for one in listed.canonical().one_row)
    channels = {
        one.network_name: _fewer_channels(spec, one)
        for table in ChannelsTable
        for one in listed.canonical().channels
        if one.table is table
    }
    factors = (_fewer_columns(spec, factor) for factor in sorted(listed.pruning.factors) if factor > 1)
    return (*factors, *channels.values(), *one_rows)


def searched_of(spec: GNNServiceSpec, names: Iterable[str] | None = None) -> tuple[Lesson, ...]:
    """Networks of these names (`Round.trains`) that a search learns, in their order; None: all that it may learn. Empty
    where the spec asks for no search."""
    if not spec.variants.is_searched:
        return ()
    rounds = {each.trains: each.variants for each in search_space(spec, spec.variants.pruning.factors).trained_rounds}
    return tuple(one for name in (rounds if names is None else names) for one in networks_of(spec, rounds[name]))


def is_learnt(spec: GNNServiceSpec) -> bool:
    """Whether anything is trained, for which torch is needed."""
    return spec.trains_networks


def embeddings_name(spec: GNNServiceSpec) -> str:
    """Name of embeddings that are learnt in place of a network."""
    return f"embeddings-{spec.model.architecture}".lower()


# --- all steps, as they are expected


def steps_from_import(spec: GNNServiceSpec, budget_s: float) -> tuple[Step, ...]:
    """All steps, before anything is known of the graph. `budget_s`: of the profile, for each batch size."""
    return Step(IMPORT, "import", _IMPORT_S), *steps_of(spec, UNKNOWN, budget_s)


def steps_of(spec: GNNServiceSpec, sizes: GraphSizes, budget_s: float) -> tuple[Step, ...]:
    """Steps behind the import of a graph."""
    compared = (Step(EXPECTED, "compare", _RUN_S), Step(CHECK, "run", _RUN_S))
    return (
        *(compared if spec.model.is_program and spec.model.is_given else ()),
        *((Step("load torch", "load", _TORCH_S),) if is_learnt(spec) else ()),
        *_learning(lessons_of(spec), sizes),
        *_ending(spec, sizes, budget_s),
    )


def steps_behind_choice(spec: GNNServiceSpec, sizes: GraphSizes, budget_s: float) -> tuple[Step, ...]:
    """Steps behind the choice of factors. `spec`: with those that are left."""
    return *_learning(_behind_choice(spec), sizes), *_ending(spec, sizes, budget_s)


def steps_of_search(spec: GNNServiceSpec, sizes: GraphSizes, names: Iterable[str], budget_s: float) -> tuple[Step, ...]:
    """Steps behind the prediction of latencies, where networks of these names (`Round.trains`) are to be trained."""
    networks = tuple(_learning(searched_of(spec, names), sizes))
    again = _measured(1.0, budget_s) if networks else ()
    return *networks, *again, Step("search", "search", 0.1), Step(PUBLISH, "publish", _PUBLISH_S)


def _learning(lessons: Iterable[Lesson], sizes: GraphSizes) -> Iterator[Step]:
    for lesson in lessons:
        yield from lesson.steps(sizes)


def _ending(spec: GNNServiceSpec, sizes: GraphSizes, budget_s: float) -> Iterator[Step]:
    """What comes behind all networks."""
    variants = spec.variants
    made = made_variants(spec).pruning.factors if reads_products(spec) else variants.pruning.factors
    reads_columns = bool(made) or (variants.is_searched and not reads_products(spec))
    products = spec.model.hidden if variants.projection is ProjectionMode.AUTO or variants.stored else 0
    columns = (sizes.columns if reads_columns else 0) + products
    measured = _measured(tables_s(sizes.nodes, columns, len(variants.storage)), budget_s)
    yield from measured
    if variants.is_searched:
        promising_s = sum(step.seconds for step in _learning(searched_of(spec), sizes)) / 2
        again_s = sum(step.seconds for step in measured)
        yield Step("search", "search", min(promising_s, float(variants.budget.seconds)) + again_s)
    if variants.stored_follow_changes and any(number > 1 for number in variants.stored):
        yield Step(STALE, "profile", stale_s(budget_s))
    yield Step(PUBLISH, "publish", _PUBLISH_S)


def _measured(write_s: float, budget_s: float) -> tuple[Step, Step]:
    return Step(WRITE, "write", write_s), Step(PROFILE, "profile", profile_s(budget_s))
