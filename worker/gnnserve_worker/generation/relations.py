"""Networks over the relations of a graph: prepared, learnt, and what variants are made of them.

Variants of one network read products of each relation; others have fewer channels of it, or read fewer columns of each
type. The networks of one-row variants stand beside them, and read none.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.families import PRUNED, VariantPoint
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.repository import NOT_RANKED, NetworkManifest, RankingManifest
from gnnserve_api.spec.channels import ChannelsTable
from gnnserve_api.spec.made_variants import made_variants, search_space
from gnnserve_api.spec.pruning import DEFAULT_FACTORS
from gnnserve_api.spec.searched import SearchSpace
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import check_factors, variant_name
from gnnserve_worker.generation.cascades import check_cascades
from gnnserve_worker.generation.checkpoint import given_decoder_of, given_weights, one_decoder, wanted_of
from gnnserve_worker.generation.checkpoint_over_relations import WantedOverRelations
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients
from gnnserve_worker.generation.families.registry import plan_beside, with_factors
from gnnserve_worker.generation.families.relation_tables import States, hidden_states
from gnnserve_worker.generation.families.relations import (
    RelationalNetwork,
    RelationalNetworks,
    as_arrays,
    fanouts_by_relation,
    fewer_channels,
    layers_tensors,
    plan_variants,
    states_of,
)
from gnnserve_worker.generation.families.type_columns import ColumnNetwork, ColumnNetworks
from gnnserve_worker.generation.families.write import write_relation_row_source
from gnnserve_worker.generation.given_variants import GivenVariant, load_given_over_relations
from gnnserve_worker.generation.learning import digest_of
from gnnserve_worker.generation.lessons import (
    LearntNetworks,
    Lesson,
    OneNetwork,
    OneRowModels,
    Teacher,
    TensorsAndRuns,
    WeightSources,
    WideNetwork,
    ranks_columns,
    steps_behind_choice,
    take_lessons,
)
from gnnserve_worker.generation.ranking import Ranking, columns_by_type, ranking_over_types
from gnnserve_worker.generation.relation_channels import narrow_relations_aloud
from gnnserve_worker.generation.relation_columns import (
    RelationalColumns,
    choose_by_width,
    first_columns,
    refit_columns,
    schema_of_columns,
    with_columns,
    with_narrow_factors,
)
from gnnserve_worker.generation.steps import (
    Networks,
    RequestedRevision,
    RevisionContents,
    VariantMeter,
    assumptions_of,
    import_graph,
    report_assumptions,
)
from gnnserve_worker.generation.training_set import (
    TrainingSet,
    means_by_relation,
    normalization_of,
    training_set,
    with_features,
)
from gnnserve_worker.graph.relation_lists import parted_lists
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, embedding_key
from gnnserve_worker.models.registry import Tensors, relational_spec_of, with_decoder, without_decoder
from gnnserve_worker.progress import CHOOSE_FACTORS, Progress
from gnnserve_worker.repository.revision_files import RowLayout, StagedRevision
from gnnserve_worker.tasks.generated import GivenDecoder, LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import LearningContext

_NO_LISTS = Graph(np.zeros(1, np.int64), np.zeros(0, np.int32))


def prepare(wanted: RequestedRevision) -> RelationsPreparation:
    """Prepare networks over the relations of a graph."""
    task, identity, progress = wanted.task, wanted.identity, wanted.progress
    data, problem = import_graph(wanted)
    spec, schema = task.settled(wanted.spec), data.schema
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    check_cascades(spec)
    fanouts_by_relation(spec.model, schema)
    architecture = relational_spec_of(spec.model.architecture)
    report_assumptions(spec, architecture, progress)
    network = spec.network(len(data.classes))
    if spec.variants.is_searched:
        spec = with_narrow_factors(spec, schema, network.projected_columns)
    shape = RelationalShape(
        schema, spec.model.hidden, network.classes, network.layers, spec.model.bases, network.attention
    )
    fitting = wanted_of(spec, WantedOverRelations(architecture, shape))
    given = given_weights(spec.model, identity.checkpoint, fitting, progress)
    variants = load_given_over_relations(spec, identity.given, architecture, shape)
    decoders = [one.decoder for one in variants if one.decoder is not None]
    if given is not None and spec.model.checkpoint is not None:
        decoders = [given_decoder_of("spec.model.checkpoint", spec.model.checkpoint, given), *decoders]
        given = without_decoder(given)[0]
    decoder, subject = one_decoder(task, decoders), _training_set(spec, data, problem)
    prepared = RelationsPreparation(replace(wanted, spec=spec), subject, shape, given, decoder, variants)
    return replace(prepared, compared=prepared.compare())


@dataclass(frozen=True, slots=True)
class RelationsPreparation:
    """The `Preparation` of networks over relations."""

    wanted: RequestedRevision
    subject: TrainingSet
    shape: RelationalShape
    given: Tensors | None
    """Weights of the network; None: it is trained."""
    given_decoder: GivenDecoder | None = None
    """What reads outputs of given weights in pairs; None: outputs are answers, or no weights are given."""
    variants: Sequence[GivenVariant] = ()
    """Variants of spec.variants.given, in its order."""
    compared: Sequence[ComparedScores] = ()
    tables_bytes: int = 0

    def compare(self) -> Sequence[ComparedScores]:
        """Hold expected scores against given weights, over the source's graph."""
        wanted, spec, subject, shape = self.wanted, self.wanted.spec, self.subject, self.shape
        if not wanted.identity.expected:
            return ()
        # Imported here: few revisions have expected scores.
        from gnnserve_worker.generation.expected.relations import compare_scores_over_relations  # noqa: PLC0415

        data, problem = subject.data, subject.problem
        if wanted.graph_version is not None:
            data, problem, _ = wanted.task.import_graph(wanted.repository.downloads, wanted.progress)
        subject = _training_set(spec, problem.whole(data), problem)
        shape = replace(shape, graph=subject.schema)
        weights = {one.name: (_shape_of(one, shape), one.tensors) for one in self.variants}
        if self.given is not None:
            weights[MODEL] = shape, self.given
        architecture = relational_spec_of(spec.model.architecture)
        return compare_scores_over_relations(
            spec, wanted.identity.expected, architecture, subject, weights, self.given_decoder, wanted.progress
        )

    def learn(self, lessons: Sequence[Lesson], learning: LearningContext | None) -> Networks:
        spec, subject = self.wanted.spec, self.subject
        self.wanted.repository.put_graph(subject.data)

        # The columns of the first type, as its source has them.
        as_they_are = Ranking(np.arange(subject.schema.target.features or 0), {})
        one_rows = None if learning is None else self._one_rows(learning)
        models = OneNetwork(
            partial(self._weights, learning), partial(self._narrowed, learning), partial(self._pruned, learning)
        )
        sources = WeightSources(models, one_rows, self._rank, self._choose)
        started = time.monotonic()
        learnt = take_lessons(lessons, sources, LearntNetworks(spec, as_they_are))
        network_s = time.monotonic() - started
        architecture, tensors = relational_spec_of(spec.model.architecture), learnt.master or {}
        states, problem = states_of(subject, tensors), subject.problem
        ends = problem.answered_types(subject.schema) if problem.keeps_outputs else ()
        ranking = RankingManifest(
            spec.variants.pruning.method if ranks_columns(spec) else NOT_RANKED, learnt.ranking.settings,
            tuple(learnt.ranking.by_type[0].tolist()), chosen=learnt.chosen,
        )  # fmt: skip
        made_of = [] if learnt.master is None else self._layers(tensors)
        given = [
            RelationalNetwork(
                one.network(spec.network(len(subject.data.classes))),
                self._layers(one.tensors, _shape_of(one, self.shape)), one.name, is_given=True,
            )
            for one in self.variants
        ]  # fmt: skip
        decoder = (self.given_decoder.weights if self.given_decoder is not None else {}) or sources.decoder
        made = RelationNetworks(
            self.wanted, made_of, given, subject, states, ends, GraphSizes.of(subject.data, problem.items),
            sources, learnt, network_s,
        )  # fmt: skip
        return Networks(
            subject, sources, ranking, None, assumptions_of(spec, architecture), decoder, made.plan,
            tuple,  # all are kept: none is added unasked beside others
            partial(write_relation_row_source, subject, states),
            made.search if spec.variants.is_searched else None,
        )  # fmt: skip

    def _one_rows(self, learning: LearningContext) -> OneRowModels | None:
        spec, subject = self.wanted.spec, self.subject
        if not spec.variants.one_row and not spec.variants.is_searched:
            return None
        # Imported here: it trains, for which torch is needed.
        from gnnserve_worker.generation.node_rows import node_rows  # noqa: PLC0415
        from gnnserve_worker.generation.one_row import TrainedOneRows, given_master  # noqa: PLC0415

        def teacher_of(master: Tensors | None, decoder: Mapping[str, np.ndarray]) -> Teacher:
            return RelationTeacher(spec.model.architecture, self.shape, subject, given_master(master), decoder)

        rows = node_rows(subject, spec.model.training.scope, RowLayout.BY_TYPE)
        return TrainedOneRows(spec.model, rows, teacher_of, self.wanted.progress, *learning)

    def _layers(self, tensors: Tensors, shape: RelationalShape | None = None) -> list[RelationalLayer]:
        """`shape`: of the network; None: of the model."""
        architecture = relational_spec_of(self.wanted.spec.model.architecture)
        return [as_arrays(layer) for layer in architecture.layers(tensors, shape or self.shape)]

    def _weights(self, learning: LearningContext | None, name: str) -> TensorsAndRuns:
        """Weights of the network, and of a decoder beside it: given, those that an interrupted generation has learnt
        already, or else trained."""
        if self.given is not None:
            decoder = self.given_decoder
            return with_decoder(self.given, {} if decoder is None else decoder.weights), ()
        if learning is None:
            raise ValueError(f"{name} is trained, for which torch is needed")
        # Imported here: it needs torch.
        from gnnserve_worker.generation.train import train_with_retries, trainee_over_relations  # noqa: PLC0415

        model, progress, subject = self.wanted.spec.model, self.wanted.progress, self.subject
        architecture = relational_spec_of(model.architecture)

        def train() -> TensorsAndRuns:
            device = learning.device
            trainee = trainee_over_relations(architecture, self.shape, model, subject, name, progress, device)
            trained, run = train_with_retries(name, trainee, subject, model.training, progress)
            return with_decoder(trained.tensors, trained.decoder), (run,)

        return learning.resumption.network(name, {"columns": "all"}, train)

    def _rank(self, master: Tensors | None, seed: int) -> Ranking:
        """As `WeightSources.rank`, of the columns of each type."""
        spec, progress, states = self.wanted.spec, self.wanted.progress, states_of(self.subject, master or {})
        if spec.variants.pruning.factors != DEFAULT_FACTORS:
            check_factors(spec.variants.pruning.factors, max(state.shape[1] for state in states))
        stage = f"rank by {spec.variants.pruning.method}"
        progress(Progress(stage, 0, 1))
        first, subject = self._layers(master or {})[0], with_features(self.subject, states)
        reader = RelationalColumns(spec.model, first, subject, states)
        ranking = ranking_over_types(spec.variants.pruning, reader, seed)
        progress(Progress(stage, 1, 1))
        return ranking

    def _choose(self, learnt: LearntNetworks) -> ChosenFactors:
        """As `WeightSources.choose`."""
        wanted, data, spec = self.wanted, self.subject.data, learnt.spec
        wanted.progress(Progress(CHOOSE_FACTORS, 0, 1))
        chosen = choose_by_width(spec, learnt.ranking, data, spec.network(len(data.classes)).projected_columns)
        left = with_factors(spec, tuple(one for one in spec.variants.pruning.factors if one not in chosen.left_out))
        sizes = GraphSizes.of(data, self.subject.problem.items)
        steps = steps_behind_choice(left, sizes, wanted.profile_budget_s)
        wanted.progress(Progress(CHOOSE_FACTORS, 1, 1, chosen.why, steps))
        return chosen

    def _pruned(
        self, learning: LearningContext | None, whole: Tensors, decoder: Mapping[str, np.ndarray], columns: np.ndarray,
        name: str,
    ) -> TensorsAndRuns:  # fmt: skip
        """As `lessons.Prune`, as matrices of layers: fitted where weights are given, else trained. Embeddings of nodes
        are columns of those of the whole network."""
        model, progress, states = self.wanted.spec.model, self.wanted.progress, states_of(self.subject, whole)
        kept = columns_by_type(columns, [state.shape[1] for state in states])
        subject = with_features(self.subject, states)
        if self.given is not None or learning is None:
            layers = refit_columns(model, self._layers(whole), kept, subject, states, name, progress)
            return layers_tensors(layers), ()
        # Imported here: it needs torch.
        from gnnserve_worker.generation.train import train_with_retries, trainee_over_relations  # noqa: PLC0415

        architecture = relational_spec_of(model.architecture)
        shape, seen = replace(self.shape, graph=schema_of_columns(self.shape.graph, kept)), with_columns(subject, kept)

        def train() -> TensorsAndRuns:
            trainee = trainee_over_relations(architecture, shape, model, seen, name, progress, learning.device)
            trained, run = train_with_retries(name, trainee, seen, model.training, progress, decoder)
            return layers_tensors(self._layers(trained.tensors, shape)), (run,)

        made_for = {"columns": digest_of({"columns": columns}), "beside": digest_of(whole)}
        return learning.resumption.network(name, made_for, train)

    def _narrowed(self, learning: LearningContext | None, wide: WideNetwork, factor: int, name: str) -> TensorsAndRuns:
        """As `lessons.Narrow`, as matrices of layers: fitted, and trained further unless weights are given. Embeddings
        of nodes stay those of the network of all columns."""
        model, progress, states = self.wanted.spec.model, self.wanted.progress, states_of(self.subject, wide.whole)
        subject, shape = with_features(self.subject, states), self.shape
        if wide.columns is None:
            layers = self._layers(wide.tensors)
        else:
            kept = columns_by_type(wide.columns, [state.shape[1] for state in states])
            subject, shape = with_columns(subject, kept), replace(shape, graph=schema_of_columns(shape.graph, kept))
            states = states_of(subject, {})
            network = self.wanted.spec.network(len(subject.data.classes))
            layers = list(RelationalNetwork.read(network, shape.graph, wide.tensors, name).layers)

        def narrow() -> list[RelationalLayer]:
            return narrow_relations_aloud(model, layers, factor, subject, states, name, progress)

        if self.given is not None or learning is None:
            return layers_tensors(narrow()), ()
        # Imported here: it needs torch.
        from gnnserve_worker.generation.train import train_beside, trainee_over_relations  # noqa: PLC0415

        architecture, narrowed = relational_spec_of(model.architecture), model.with_fewer_channels(factor)

        def train() -> TensorsAndRuns:
            trainee = trainee_over_relations(
                architecture, shape, narrowed, subject, name, progress, learning.device, narrow()
            )
            return train_beside(name, trainee, subject, model.training, progress, wide.decoder)

        columns = "all" if wide.columns is None else digest_of({"columns": wide.columns})
        made_for = {"columns": columns, "channels": f"1/{factor}", "pruned": digest_of(wide.tensors)}
        return learning.resumption.network(name, made_for, train)


@dataclass(frozen=True, slots=True)
class RelationNetworks:
    """Networks over the relations of a graph: the `SearchSubject` of a search."""

    wanted: RequestedRevision
    layers: Sequence[RelationalLayer]
    """Layers of the model; empty: all variants are given."""
    given: Sequence[RelationalNetwork]
    """Networks of spec.variants.given, in its order."""
    data: TrainingSet
    states: States
    ends: Collection[int]
    """As of `plan_variants`."""
    sizes: GraphSizes
    sources: WeightSources
    learnt: LearntNetworks
    network_s: float
    """What the first networks took to be learnt, in seconds."""

    @property
    def space(self) -> SearchSpace:
        return search_space(self.wanted.spec, self.wanted.spec.variants.pruning.factors)

    def plan(self, variants: Variants | None = None) -> list[FamilyPlan]:
        """`variants`: others than those of the spec, as of a round of a search."""
        spec, data = self.wanted.spec, self.data
        spec = spec if variants is None else spec.model_copy(update={"variants": variants})
        network = spec.network(len(data.data.classes))
        model = None if spec.variants.are_all_given else RelationalNetwork(network, self.layers)
        left = self.learnt.spec.variants.pruning.factors
        factors = [one for one in made_variants(self.wanted.spec).pruning.factors if one in left]
        narrow = {
            one.network_name: RelationalNetwork.read(
                spec.model.with_fewer_channels(one.factor).network(network.classes), data.schema,
                self.learnt.networks[one.network_name], one.network_name,
            )
            for one in spec.variants.channels
        }  # fmt: skip
        columns = self._columns(spec, network, narrow, factors if variants is None else variants.pruning.factors)

        def plan(over: TrainingSet) -> FamilyPlan:
            given = self.given if spec.variants.given else ()
            return plan_variants(spec, RelationalNetworks(model, narrow, given, columns), over, self.states, self.ends)

        def plan_over(lists: Graph) -> FamilyPlan:
            relations = zip(data.data.relations, parted_lists(lists), strict=True)
            own = replace(data.data, relations=tuple(replace(one, lists=other) for one, other in relations))
            return plan(replace(data, data=own))

        # What stands beside the model's own variants is made of one-row networks alone.
        made_from = Ingredients(
            spec, network, _NO_LISTS, np.zeros((0, 0), np.float32), self.learnt.ranking, None,
            one_rows=self.learnt.one_rows,
        )  # fmt: skip
        return plan_beside(made_from, replace(plan(data), over=plan_over))

    def _columns(
        self, spec: GNNServiceSpec, network: NetworkManifest, narrow: Mapping[str, RelationalNetwork],
        factors: Sequence[int],
    ) -> ColumnNetworks | None:  # fmt: skip
        """Networks over columns of each type, of these factors, and with fewer channels of them (`narrow`, by name);
        None: there are none."""
        if not factors:
            return None
        ranked = {factor: self.learnt.ranking.first_by_type(factor) for factor in sorted(factors)}

        def over(one: RelationalNetwork, point: VariantPoint, name: str, factor: int) -> ColumnNetwork:
            """A network, of all columns in the order of the source, or of those of the factor in rank order."""
            kept, (first, *later) = ranked[factor], one.layers
            first = first_columns(first, kept, self.data.schema) if factor == 1 else first
            tensors = layers_tensors([first, *later])
            return ColumnNetwork(name, point, one.manifest, factor, max(map(len, kept)), tensors)

        whole = RelationalNetwork(network, self.layers)
        learnt = {
            factor: RelationalNetwork.read(network, self.data.schema, self.learnt.networks[variant_name(factor)], "")
            for factor in ranked
            if factor > 1
        }
        found = [over(learnt.get(factor, whole), PRUNED, variant_name(factor), factor) for factor in ranked]
        found += [
            over(narrow[one.network_name], fewer_channels(PRUNED), one.name, one.column_factor)
            for one in spec.variants.canonical().channels
            if one.table is ChannelsTable.FEATURES
        ]
        return ColumnNetworks(ranked[min(ranked)], found)

    def after(self, lessons: Sequence[Lesson]) -> RelationNetworks:
        """With networks of further lessons."""
        return replace(self, learnt=take_lessons(lessons, self.sources, self.learnt))

    def search(self, staged: StagedRevision, measure: VariantMeter) -> RevisionContents:
        # Imported here: few revisions are searched for.
        from gnnserve_worker.generation.search.search import search  # noqa: PLC0415

        return search(self, staged, measure)


@dataclass(frozen=True, eq=False)
class RelationTeacher:
    """A `lessons.Teacher` with the weights of a network over relations, computed over whole neighbour lists."""

    architecture: str
    shape: RelationalShape
    subject: TrainingSet
    master: Tensors
    decoder: Mapping[str, np.ndarray]

    @cached_property
    def digest(self) -> str:
        return digest_of(self.master)

    @property
    def embedded(self) -> Mapping[int, np.ndarray]:
        """As `lessons.Teacher.embedded`."""
        kinds = self.shape.graph.types
        return {place: self.master[embedding_key(kinds[place].name)] for place in self.shape.embedded()}

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        """As `lessons.Teacher.scores`."""
        # Imported here: it is needed where one-row networks are trained.
        from gnnserve_worker.generation.node_rows import taught_over  # noqa: PLC0415

        data = replace(self.subject.data, relations=tuple(taught_over(self.subject, self.decoder)))
        layers = [as_arrays(layer) for layer in relational_spec_of(self.architecture).layers(self.master, self.shape)]
        means = [means_by_relation(data, one) for one in data.relations if layers[0].heads is None]
        states = states_of(self.subject, self.master)
        for number, layer in enumerate(layers, start=1):
            states = hidden_states(data, means, layer, states, is_last=number == len(layers))
        outputs: np.ndarray = np.concatenate([np.asarray(one) for one in states])[nodes]
        return outputs


def _shape_of(variant: GivenVariant, shape: RelationalShape) -> RelationalShape:
    """The shape of a given variant's network, by that of the model."""
    return shape if variant.hidden is None else replace(shape, hidden=variant.hidden)


def _training_set(spec: GNNServiceSpec, data: GraphData, problem: LearningProblem) -> TrainingSet:
    classes = spec.network(len(data.classes)).classes
    return training_set(data, problem, classes, spec.model.training.scope, normalization_of(spec))
