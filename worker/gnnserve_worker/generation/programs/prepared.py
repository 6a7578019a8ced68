"""Programs, from a manifest to a published revision, over a graph of one type or of several.

Each file is read and checked before the graph is imported. Over the graph each program is held against the scores that
its model gave, and run twenty times over the same rows, before anything is written. Then tables are written, one-row
variants learn the scores of `spec.model.program`, and all is measured as it will serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import NOT_RANKED, RankingManifest, program_network
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.made_variants import made_variants, search_space
from gnnserve_api.spec.searched import SearchSpace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.checkpoint import one_decoder
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    ListedColumns,
    Outline,
    PlacedProgram,
)
from gnnserve_worker.generation.families.given import kept_as
from gnnserve_worker.generation.families.registry import bytes_of_tables, plan_families, with_factors
from gnnserve_worker.generation.families.write import moments, write_row_source, write_type_row_source
from gnnserve_worker.generation.given_program import (
    GivenProgram,
    check_file,
    check_program,
    naming,
    read_programs,
)
from gnnserve_worker.generation.learning import digest_of
from gnnserve_worker.generation.lessons import (
    LearntNetworks,
    Lesson,
    OneNetwork,
    OneRowModels,
    TensorsAndRuns,
    WeightSources,
    WideNetwork,
    ranks_columns,
    steps_behind_choice,
    take_lessons,
)
from gnnserve_worker.generation.one_relation import check_range
from gnnserve_worker.generation.profile import worth_keeping
from gnnserve_worker.generation.programs.compared import ComparedProgram, compare_programs
from gnnserve_worker.generation.programs.running import (
    CHECKED_LANES,
    ProgramScores,
    ProgramTeacher,
    called_by,
    compute_all,
    read_graph,
    served_features,
)
from gnnserve_worker.generation.ranking import Ranking, columns_by_type
from gnnserve_worker.generation.steps import (
    Networks,
    RequestedRevision,
    RevisionContents,
    VariantMeter,
    WriteRowSource,
    import_graph,
)
from gnnserve_worker.generation.training_set import TrainingSet, normalization_of, training_set
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.registry import Tensors, with_decoder, without_decoder
from gnnserve_worker.programs.answers import Runner
from gnnserve_worker.programs.facts import FIELD, ProgramFacts
from gnnserve_worker.progress import CHECK, CHOOSE_FACTORS, Progress
from gnnserve_worker.repository.revision_files import RowLayout, RowRecipe, StagedRevision
from gnnserve_worker.tasks.generated import GivenDecoder, LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import LearningContext
    from gnnserve_worker.generation.programs.layer_columns import LayerColumns
    from gnnserve_worker.layers.channels import NetworkChannels


def prepare(wanted: RequestedRevision) -> PreparedPrograms:
    """Prepare programs."""
    progress, programs = wanted.progress, _read(wanted, read_programs(wanted.spec))
    # Before the graph is imported, which may take minutes.
    facts = {one.weights: check_file(one) for one in programs}
    graph, problem = import_graph(wanted)
    spec = wanted.task.settled(wanted.spec)
    spec = spec.model_copy(update={"variants": made_variants(spec)})
    wanted = replace(wanted, spec=spec)
    programs = programs or _read(wanted, _listed(wanted, graph, problem))
    asked = {one.weights: _check_reads(one, facts.get(one.weights), wanted, graph, problem) for one in programs}
    given = [one for one in programs if not one.is_learnt]
    decoders = [one.decoder_tensors() for one in given]
    if decoders:
        wanted.task.given_decoder(decoders[0])  # that of the model, which reads rows of all, has to be there
    decoder = one_decoder(wanted.task, decoders) if decoders else None
    widest = max(kind.features or 0 for kind in graph.schema.types)
    made_factors = spec.variants.pruning.factors
    columns = [one.columns for one in programs]
    columns += [tuple(range(columns_of(widest, factor))) for factor in made_factors if factor > 1]
    if programs[0].contract.layers is not UNSET:
        _columns_of(programs[0], graph.schema).check(made_factors, is_learnt=programs[0].is_learnt)
    stored_columns = _stored_columns(programs[0], spec, graph.schema)
    outline = Outline(
        spec, programs[0].network, graph.nodes, widest, columns_of_programs=columns, stored_columns=stored_columns,
        product_columns=_product_columns(programs[0].contract, graph.schema),
        narrow_columns=_narrow_columns(programs[0], spec, graph.schema),
    )  # fmt: skip
    tables_bytes = bytes_of_tables(outline)
    wanted.repository.require_free(tables_bytes)
    source, learnt = graph, problem.learnt_graph
    if wanted.graph_version is not None:
        source = load_source(spec.graph.source, wanted.repository.downloads, progress)
        learnt = _as_it_is  # the problem is posed over another graph
    with ExitStack() as running:
        runners = {one.weights: running.enter_context(closing(one.runner(CHECKED_LANES))) for one in given}
        compared = {one.weights: _compared(one, wanted, source, learnt, runners[one.weights]) for one in given}
        found = compare_programs(compared, wanted.identity.expected, decoder, progress) if compared else ()
        for done, one in enumerate(given):
            progress(Progress(CHECK, done, len(given)))
            _check_runs(one, spec, graph, asked[one.weights], runners[one.weights])
            progress(Progress(CHECK, done + 1, len(given)))
    return PreparedPrograms(wanted, programs, graph, problem, tables_bytes, found, decoder)


def _read(wanted: RequestedRevision, given: Sequence[GivenProgram]) -> tuple[GivenProgram, ...]:
    """The programs, as the task reads them. InputError: one is another than when the revision's name was made."""
    digests, task = {MODEL: wanted.identity.checkpoint, **wanted.identity.given}, wanted.spec.task.asked()
    programs = tuple(replace(one, contract=task.program(one.contract)) for one in given)
    for one in programs:
        if not one.is_learnt and one.digest != digests[one.weights]:
            raise InputError(f"{one.field}.uri", f"{one.file} changed while it was read", "generate again")
        if one.network.classes != (columns := programs[0].network.classes):
            raise InputError(
                f"{one.field}.scores", f"has {one.network.classes} columns, and that of {FIELD} has {columns}",
                "give a program of the same task, which gives as many",
            )  # fmt: skip
    return programs


def _listed(wanted: RequestedRevision, graph: GraphData, problem: LearningProblem) -> tuple[GivenProgram, ...]:
    """Layers of the spec, which stand for programs over the graph."""
    # Imported here: few programs are layers.
    from gnnserve_worker.generation.given_layers import read_layers  # noqa: PLC0415

    return read_layers(wanted, graph, problem)


def _stored_columns(given: GivenProgram, spec: GNNServiceSpec, schema: GraphSchema) -> Sequence[int]:
    """As `Outline.stored_columns`. InputError: a layer that is to be stored is none of the network's, or
    spec.variants.fanouts do not say what is left of them behind it."""
    layers = given.contract.layers
    if layers is UNSET:
        return ()
    # Imported here: few programs are layers.
    from gnnserve_worker.generation.families.listed import columns_behind  # noqa: PLC0415
    from gnnserve_worker.layers.passes import why_not_stored  # noqa: PLC0415

    asked = spec.variants.stored
    if problem := why_not_stored(layers, max(asked, default=0)):
        raise InputError("spec.variants.stored", problem, "name layers by their numbers, the first being 1")
    if asked and spec.variants.fanouts and layers.hops > len(layers.layers):
        problem = "layers of several hops are stored, of which spec.variants.fanouts have several numbers"
        raise InputError("spec.variants.stored", problem, "leave out one of the two")
    return columns_behind(given.contract, layers, schema)


def _columns_of(given: GivenProgram, schema: GraphSchema) -> LayerColumns:
    # Imported here: few programs are layers.
    from gnnserve_worker.generation.programs.layer_columns import LayerColumns  # noqa: PLC0415

    assert given.contract.layers is not UNSET  # noqa: S101 - asked of these alone
    return LayerColumns(given.contract.layers, schema, tuple(kind.features or 0 for kind in schema.types))


def _product_columns(contract: ProgramManifest, schema: GraphSchema) -> int:
    """As `Outline.product_columns`."""
    if contract.layers is UNSET:
        return 0
    # Imported here: few programs are layers.
    from gnnserve_worker.generation.families.listed import product_columns  # noqa: PLC0415

    return product_columns(contract, contract.layers, schema)


def _channels_of(given: GivenProgram, schema: GraphSchema, layers: LayersManifest | None = None) -> NetworkChannels:
    """Channels of the layers, or of those that read other columns."""
    # Imported here: few programs are layers.
    from gnnserve_worker.layers.channels import NetworkChannels  # noqa: PLC0415
    from gnnserve_worker.layers.contract import answered_types  # noqa: PLC0415
    from gnnserve_worker.layers.shapes import columns_of as features_of  # noqa: PLC0415

    assert given.contract.layers is not UNSET  # noqa: S101 - asked of these alone
    read = given.contract.layers if layers is None else layers
    return NetworkChannels(read, schema, features_of(schema), answered_types(given.contract, schema))


def _narrow_columns(given: GivenProgram, spec: GNNServiceSpec, schema: GraphSchema) -> dict[str, ListedColumns]:
    """As `Outline.narrow_columns`. InputError: layers cannot have as few channels, or no such table has their rows."""
    found: dict[str, ListedColumns] = {}
    for place, one in enumerate(spec.variants.channels):
        # Imported here: few programs are layers with fewer channels.
        from gnnserve_worker.generation.families.listed import columns_of_rows  # noqa: PLC0415

        field, channels = f"spec.variants.channels[{place}]", _channels_of(given, schema)
        if problem := channels.why_not(one.factor, is_learnt=given.is_learnt):
            raise InputError(f"{field}.factor", f"{one.factor}: {problem}", "leave it out, or give a smaller factor")
        columns = found[one.network_name] = columns_of_rows(given.contract, channels.narrowed(one.factor), schema)
        if one.table is ChannelsTable.PROJECTED and not columns.products:
            problem = "is Projected, and no products stand before the first aggregation of model.layers"
            raise InputError(f"{field}.table", problem, "use Features or Stored")
    return found


def _check_reads(
    given: GivenProgram,
    facts: ProgramFacts | None,
    wanted: RequestedRevision,
    graph: GraphData,
    problem: LearningProblem,
) -> np.ndarray:
    """Refuse a program that does not fit the task, the graph or the spec. Returns the nodes that it may be asked about,
    as `_asked_nodes`."""
    with naming(given.field):
        wanted.task.check_given(given.contract.scores.columns, graph)
        check_program(given, facts, wanted.spec, graph.schema)
        return _asked_nodes(given.contract, graph, problem)


def _asked_nodes(contract: ProgramManifest, graph: GraphData, problem: LearningProblem) -> np.ndarray:
    """Numbers of the nodes that may be asked about, int64. InputError: the program gives nothing for a type of
    them."""
    schema, found = graph.schema, []
    if graph.names is not None and not contract.scores.type:
        raise InputError(
            f"{FIELD}.scores.type", "is absent, and links join types", "name the type of the nodes whose rows it has"
        )
    for place in problem.answered_types(schema):
        kind, first = schema.types[place], schema.first_nodes[place]
        if contract.scores_of(kind.name, schema) is None:
            raise InputError(
                f"{FIELD}.otherScores",
                f"has no output for nodes of type {kind.name}, which are asked about, and scores are of type "
                f"{contract.scored_type(schema)}",
                "export the model with rows of each type, and give each output its type",
            )  # fmt: skip
        found.append(np.arange(first, first + kind.nodes, dtype=np.int64))
    return np.concatenate(found)


def _compared(
    given: GivenProgram, wanted: RequestedRevision, source: GraphData, learnt: Callable[[GraphData], GraphData],
    runner: Runner,
) -> ComparedProgram:  # fmt: skip
    """Comparison of its scores with those that its model gave of the source's graph."""
    return ComparedProgram(
        wanted.spec, given, source, runner, lambda other: load_source(other, wanted.repository.downloads), learnt
    )  # fmt: skip


def _as_it_is(graph: GraphData) -> GraphData:
    return graph


def _check_runs(given: GivenProgram, spec: GNNServiceSpec, graph: GraphData, asked: np.ndarray, runner: Runner) -> None:
    """Refuse a program whose runs differ, and one whose largest neighbourhood is beyond its limits."""
    with naming(given.field):
        read = read_graph(spec, graph, given.columns)
        scores = ProgramScores(given.contract, read, runner, called_by(graph), given.fanouts)
        scores.check_repeats(np.random.default_rng(0).permutation(asked))
        scores.check_largest(asked)


@dataclass(frozen=True, slots=True)
class PreparedPrograms:
    """The `Preparation` of programs."""

    wanted: RequestedRevision
    programs: Sequence[GivenProgram]
    """The model, and behind it those of spec.variants.given."""
    graph: GraphData
    problem: LearningProblem
    tables_bytes: int
    compared: Sequence[ComparedScores]
    given_decoder: GivenDecoder | None
    """What reads their rows in pairs; None: outputs are answers."""

    def learn(self, lessons: Sequence[Lesson], learning: LearningContext | None) -> Networks:
        spec, graph, classes = self.wanted.spec, self.graph, self.programs[0].network.classes
        self.problem.check(spec.variants)
        check_cascades(spec)
        data = training_set(graph, self.problem, classes, spec.model.training.scope, normalization_of(spec))
        features = served_features(data.features, graph)
        for one in features:
            check_range(one, () if spec.variants.is_searched else spec.variants.storage)
        # Before training, since a damaged copy of it in the repository should not cost the time.
        self.wanted.repository.put_graph(graph)
        models, ranks = None, ranks_columns(self.wanted.spec)
        if self.programs[0].is_learnt or ranks or spec.variants.channels:
            narrow, prune = partial(self._narrowed, data, learning), partial(self._pruned, data, learning)
            models = OneNetwork(partial(self._weights, data, learning), narrow, prune)
        one_rows = None if learning is None else self._one_rows(data, learning)
        sources = WeightSources(models, one_rows)
        if ranks:
            sources = replace(sources, rank=partial(self._rank, data), choose=self._choose)
        as_they_are = Ranking(np.arange(features[0].shape[1]), {})
        started = time.monotonic()
        learnt = take_lessons(lessons, sources, LearntNetworks(spec, as_they_are))
        network_s = 0.0 if models is None else time.monotonic() - started
        programs = [self._with_weights(one, learnt.master) for one in self.programs]
        made = ProgramNetworks(
            self.wanted, programs, data, features, GraphSizes.of(graph, self.problem.items), sources, learnt,
            network_s,
        )  # fmt: skip
        ranking = RankingManifest(
            spec.variants.pruning.method if ranks else NOT_RANKED, learnt.ranking.settings,
            tuple(learnt.ranking.by_type[0].tolist()), chosen=learnt.chosen,
        )  # fmt: skip
        rows, write = _NEW_NODES[RowLayout.of_nodes(graph.schema)](data)
        # Nothing is assumed: a program says all that it computes.
        return Networks(
            data, sources, ranking, rows, {}, self._decoder or sources.decoder, made.plan, worth_keeping, write,
            made.search if spec.variants.is_searched else None,
        )  # fmt: skip

    @property
    def _decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self.given_decoder is None else self.given_decoder.weights

    def _weights(self, data: TrainingSet, learning: LearningContext | None, name: str) -> TensorsAndRuns:
        """Weights of listed layers: given, those that an interrupted generation has learnt already, or else trained."""
        first, layers = self.programs[0].layers, self.programs[0].contract.layers
        if first is not None and first.tensors is not None:
            return with_decoder(first.tensors, self._decoder), ()
        if layers is UNSET:
            raise ValueError(f"{name} has its weights in its file")
        # What scores pairs of given variants scores those of this network, which learns to be read by it.
        fixed = self._decoder
        made_for = {"columns": "all", **({"decoder": digest_of(fixed)} if fixed else {})}
        tensors, runs = self._trained(data, learning, layers, name, made_for, fixed or None)
        return with_decoder(tensors, fixed), runs

    def _pruned(
        self, data: TrainingSet, learning: LearningContext | None, whole: Tensors, decoder: Mapping[str, np.ndarray],
        columns: np.ndarray, name: str,
    ) -> TensorsAndRuns:  # fmt: skip
        """As `lessons.Prune`, of listed layers: fitted where weights are given, else trained."""
        # Imported here: few revisions have layers of fewer columns.
        from gnnserve_worker.generation.programs.layer_columns import over_columns  # noqa: PLC0415
        from gnnserve_worker.generation.relation_columns import with_columns  # noqa: PLC0415

        read = _columns_of(self.programs[0], self.graph.schema)
        kept = columns_by_type(columns, read.features)
        if not self.programs[0].is_learnt:
            stage = f"refit {name}"
            self.wanted.progress(Progress(stage, 0, 1))
            tensors = read.fitted(whole, kept, data, self.wanted.spec.model)
            self.wanted.progress(Progress(stage, 1, 1))
            return tensors, ()
        made_for = {"columns": digest_of({"columns": columns}), "beside": digest_of(whole)}
        fewer = over_columns(read.layers, [len(own) for own in kept])
        tensors, runs = self._trained(with_columns(data, kept), learning, fewer, name, made_for, decoder)
        return without_decoder(tensors)[0], runs

    def _narrowed(
        self, data: TrainingSet, learning: LearningContext | None, wide: WideNetwork, factor: int, name: str
    ) -> TensorsAndRuns:
        """As `lessons.Narrow`, of listed layers: fitted, and trained further unless weights are given."""
        # Imported here: few revisions have layers of fewer channels.
        from gnnserve_worker.generation.programs.layer_channels import narrow_listed_aloud  # noqa: PLC0415
        from gnnserve_worker.generation.programs.layer_columns import over_columns  # noqa: PLC0415
        from gnnserve_worker.generation.relation_columns import with_columns  # noqa: PLC0415

        first, model, progress = self.programs[0], self.wanted.spec.model, self.wanted.progress
        subject, layers = data, first.contract.layers
        assert first.layers is not None and layers is not UNSET  # noqa: S101 - programs have no channels
        if wide.columns is not None:
            kept = columns_by_type(wide.columns, _columns_of(first, self.graph.schema).features)
            subject, layers = with_columns(data, kept), over_columns(layers, [len(own) for own in kept])
        channels, whole = _channels_of(first, self.graph.schema, layers), first.layers.learnt(wide.tensors)
        narrow = partial(narrow_listed_aloud, model, channels, whole, factor, subject, name, progress)
        if not first.is_learnt or learning is None:
            return narrow(), ()
        # Imported here: it needs torch.
        from gnnserve_worker.generation.programs.layer_training import trainee_of_layers  # noqa: PLC0415
        from gnnserve_worker.generation.train import train_beside  # noqa: PLC0415

        def train() -> TensorsAndRuns:
            narrowed = channels.narrowed(factor)
            trainee = trainee_of_layers(narrowed, model, subject, name, progress, learning.device, narrow())
            return train_beside(name, trainee, subject, model.training, progress, wide.decoder)

        columns = "all" if wide.columns is None else digest_of({"columns": wide.columns})
        made_for = {"columns": columns, "channels": f"1/{factor}", "pruned": digest_of(wide.tensors)}
        return learning.resumption.network(name, made_for, train)

    def _trained(
        self, data: TrainingSet, learning: LearningContext | None, layers: LayersManifest, name: str,
        made_for: Mapping[str, str], decoder: Mapping[str, np.ndarray] | None = None,
    ) -> TensorsAndRuns:  # fmt: skip
        """`decoder`: of the network of all columns; None: this one is it."""
        if learning is None:
            raise ValueError(f"{name} is trained, for which torch is needed")
        # Imported here: it needs torch.
        from gnnserve_worker.generation.programs.layer_training import trainee_of_layers  # noqa: PLC0415
        from gnnserve_worker.generation.train import train_with_retries  # noqa: PLC0415

        model, progress = self.wanted.spec.model, self.wanted.progress

        def train() -> TensorsAndRuns:
            trainee = trainee_of_layers(layers, model, data, name, progress, learning.device)
            trained, run = train_with_retries(name, trainee, data, model.training, progress, decoder)
            return with_decoder(trained.tensors, trained.decoder if decoder is None else {}), (run,)

        return learning.resumption.network(name, made_for, train)

    def _rank(self, data: TrainingSet, master: Tensors | None, seed: int) -> Ranking:
        """As `WeightSources.rank`."""
        spec, progress = self.wanted.spec, self.wanted.progress
        stage, read = f"rank by {spec.variants.pruning.method}", _columns_of(self.programs[0], self.graph.schema)
        progress(Progress(stage, 0, 1))
        ranking = read.ranking(spec.variants.pruning, master or {}, data, spec.model, seed)
        progress(Progress(stage, 1, 1))
        return ranking

    def _choose(self, learnt: LearntNetworks) -> ChosenFactors:
        """As `WeightSources.choose`."""
        # Imported here: few revisions have layers of fewer columns.
        from gnnserve_worker.generation.relation_columns import choose_by_width  # noqa: PLC0415

        wanted, spec = self.wanted, learnt.spec
        wanted.progress(Progress(CHOOSE_FACTORS, 0, 1))
        products = _product_columns(self.programs[0].contract, self.graph.schema)
        chosen = ChosenFactors((), "no projected variant has narrower rows than features", 0.0)
        if products:
            chosen = choose_by_width(spec, learnt.ranking, self.graph, products)
        left = with_factors(spec, tuple(one for one in spec.variants.pruning.factors if one not in chosen.left_out))
        steps = steps_behind_choice(left, GraphSizes.of(self.graph, self.problem.items), wanted.profile_budget_s)
        wanted.progress(Progress(CHOOSE_FACTORS, 1, 1, chosen.why, steps))
        return chosen

    @staticmethod
    def _with_weights(program: GivenProgram, master: Tensors | None) -> GivenProgram:
        return program if master is None or not program.is_learnt else program.with_weights(master)

    def _teacher(
        self, data: TrainingSet, master: Tensors | None, learnt_decoder: Mapping[str, np.ndarray]
    ) -> ProgramTeacher:
        # Imported here: few programs have perceptrons beside them.
        from gnnserve_worker.generation.node_rows import taught_over  # noqa: PLC0415

        given, decoder = self._with_weights(self.programs[0], master), self._decoder or learnt_decoder
        read = read_graph(self.wanted.spec, self.graph, given.columns)
        seen = joined_lists(replace(self.graph, relations=tuple(taught_over(data, decoder))))
        return ProgramTeacher(
            given.digest, given.contract, replace(read, lists=seen), given.runner, given.fanouts, decoder
        )  # fmt: skip

    def _one_rows(self, data: TrainingSet, learning: LearningContext) -> OneRowModels:
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.node_rows import node_rows  # noqa: PLC0415
        from gnnserve_worker.generation.one_row import TrainedOneRows  # noqa: PLC0415

        model = self.wanted.spec.model
        rows = node_rows(data, model.training.scope, RowLayout.of_nodes(self.graph.schema))
        return TrainedOneRows(model, rows, partial(self._teacher, data), self.wanted.progress, *learning)


@dataclass(frozen=True, slots=True)
class ProgramNetworks:
    """Programs, and perceptrons that learn the model's scores: the `SearchSubject` of a search."""

    wanted: RequestedRevision
    programs: Sequence[GivenProgram]
    data: TrainingSet
    features: Sequence[Features]
    """Features of each type as tables have them."""
    sizes: GraphSizes
    sources: WeightSources
    learnt: LearntNetworks
    network_s: float = 0.0
    """Seconds that layers took to be learnt; 0: nothing is learnt before perceptrons are."""

    @property
    def space(self) -> SearchSpace:
        """With the fan-outs that the program's hops permit, which its folder may say."""
        contract, space = self.programs[0].contract, search_space(self.wanted.spec)
        fanouts = [one for one in space.fanouts if len(one) == contract.hops and not contract.reads_degrees]
        # Behind layers of several hops it is not known by names how many numbers of the fan-outs are left.
        has_more = contract.layers is not UNSET and contract.layers.hops > len(contract.layers.layers)
        has_products = space.has_products and _product_columns(contract, self.data.data.schema) > 0
        layers = () if fanouts and has_more else space.layers
        return replace(space, fanouts=tuple(fanouts), layers=layers, has_products=has_products)

    def plan(self, variants: Variants | None = None) -> list[FamilyPlan]:
        """`variants`: others than those of the spec, as of a round of a search."""
        spec, learnt = self.wanted.spec, self.learnt
        spec = spec if variants is None else spec.model_copy(update={"variants": variants})
        programs = [self._placed(one, spec) for one in self.programs]
        programs += [
            replace(self._placed(self._of_fewer_columns(factor), spec), factor=factor)
            for factor in sorted(spec.variants.pruning.factors)
            if factor > 1 and variant_name(factor) in learnt.networks
        ]
        return plan_families(
            Ingredients(
                spec, programs[0].network, joined_lists(self.data.data), self.features[0], learnt.ranking, None,
                one_rows=learnt.one_rows, programs=programs,
                narrow_programs={
                    one.network_name: self._of_fewer_channels(one, spec) for one in spec.variants.channels
                },
            )
        )  # fmt: skip

    def _of_fewer_columns(self, factor: int) -> GivenProgram:
        """The model's layers over the first columns in rank order."""
        # Imported here: few revisions have layers of fewer columns.
        from gnnserve_worker.generation.programs.layer_columns import over_columns  # noqa: PLC0415

        first, columns, name = self.programs[0], self.learnt.ranked(factor), variant_name(factor)
        assert first.layers is not None and first.contract.layers is not UNSET  # noqa: S101 - programs have no factors
        widths = [len(own) for own in self.learnt.ranking.first_by_type(factor)]
        made = first.layers.like(first.contract, over_columns(first.contract.layers, widths))
        if first.contract.embeddings is None:
            made = msgspec.structs.replace(made, embeddings=None)
        fewer = replace(first, contract=made, columns=tuple(columns.tolist()), weights=name)
        return fewer.with_weights(self.learnt.networks[name])

    def _of_fewer_channels(self, one: Channels, spec: GNNServiceSpec) -> PlacedProgram:
        """The model's layers with a part of their hidden channels, over all columns or those of a factor."""
        factor = one.column_factor
        wide = self.programs[0] if factor == 1 else self._of_fewer_columns(factor)
        assert wide.layers is not None and wide.contract.layers is not UNSET  # noqa: S101 - programs have no channels
        layers = _channels_of(wide, self.data.schema).narrowed(one.factor)
        made = msgspec.structs.replace(wide.layers.like(wide.contract, layers), embeddings=None)
        narrow = replace(wide, contract=made, weights=one.network_name)
        placed = self._placed(narrow.with_weights(self.learnt.networks[one.network_name]), spec)
        return replace(placed, factor=factor, has_fewer_channels=True)

    def _placed(self, given: GivenProgram, spec: GNNServiceSpec) -> PlacedProgram:
        name = variant_name(1) if given.weights == MODEL else given.weights
        kept = kept_as(given.contract, name, spec)
        network = program_network(kept, given.fanouts)
        compute = partial(compute_all, [one.payload for one in self.data.data.relations])
        return PlacedProgram(
            name, given.field, given.folder, given.contract, network, self.features, given.columns, given.layers,
            None if given.layers is None else compute,
        )  # fmt: skip

    def after(self, lessons: Sequence[Lesson]) -> ProgramNetworks:
        """With networks of further lessons."""
        return replace(self, learnt=take_lessons(lessons, self.sources, self.learnt))

    def search(self, staged: StagedRevision, measure: VariantMeter) -> RevisionContents:
        # Imported here: few revisions are searched for.
        from gnnserve_worker.generation.search.search import search  # noqa: PLC0415

        return search(self, staged, measure)


def _rows_by_node(data: TrainingSet) -> tuple[RowRecipe, WriteRowSource]:
    scaled = data.normalized
    recipe = RowRecipe(scaled.method, moments(scaled), np.arange(scaled.features.shape[1]))
    return recipe, partial(write_row_source, data.data, scaled)


def _rows_by_type(data: TrainingSet) -> tuple[None, WriteRowSource]:
    return None, partial(write_type_row_source, data.data, data.features)


_NEW_NODES: Mapping[RowLayout, Callable[[TrainingSet], tuple[RowRecipe | None, WriteRowSource]]] = {
    RowLayout.BY_NODE: _rows_by_node,
    RowLayout.BY_TYPE: _rows_by_type,
}
"""What makes rows of new nodes while variants are measured, and what writes it."""
