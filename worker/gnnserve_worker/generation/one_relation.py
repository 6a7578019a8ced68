"""Networks over one list of neighbours, prepared and trained: ranked, pruned, projected and profiled in `variants.py`.

Given weights need no torch, unless one-row variants are trained beside them. Training is `trained.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.domination import says_expected
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.searched import derived_rounds, merged, trained_rounds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_api.variants import check_factors
from gnnserve_worker.generation.assumptions import report_assumptions
from gnnserve_worker.generation.checkpoint import given_weights
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.families.family import Outline
from gnnserve_worker.generation.families.registry import bytes_of_tables
from gnnserve_worker.generation.given_variants import GivenVariant, load_given
from gnnserve_worker.generation.learning import begin_learning, generator_of
from gnnserve_worker.generation.preparation import Wanted, import_graph
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.steps import GraphSizes, steps_of
from gnnserve_worker.generation.wide import with_factors, with_searched_factors, written_factors
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generated import LearningProblem

if TYPE_CHECKING:
    import torch

    from gnnserve_worker.generation.families.family import Models, OneRowModels
    from gnnserve_worker.generation.features import Normalized
    from gnnserve_worker.generation.propagation import ModelRows
    from gnnserve_worker.generation.resume import Resumption
    from gnnserve_worker.generation.tensors import Tensors
    from gnnserve_worker.generation.training_set import TrainingSet


def prepare(wanted: Wanted) -> OneRelation:
    """Prepare networks over one list of neighbours."""
    identity, progress = wanted.identity, wanted.progress
    graph, problem = _import_graph(wanted)
    spec = wanted.task.settled(wanted.spec)
    columns = spec.model.row_columns(graph.features.shape[1])
    if spec.variants.is_searched:
        spec = with_searched_factors(spec, columns)
    spec = _without_wide_tables(spec, graph, problem, progress)
    report_assumptions(spec, spec_of(spec.model.architecture), progress)
    wanted = replace(wanted, spec=spec)
    given = _load_given(wanted, graph)
    outline = Outline(spec, spec.network(len(graph.classes)), graph.graph.nodes, columns, given)
    tables_bytes = _tables_bytes(outline)
    wanted.repository.require_free(tables_bytes)
    network = WantedOverRows(spec.model, columns, len(graph.classes))
    master = given_weights(spec.model, identity.checkpoint, network, progress)
    compared = _compare(wanted, graph, master, given)
    return OneRelation(wanted, graph, problem, given, master, tables_bytes, compared)


@dataclass(frozen=True, slots=True)
class OneRelation:
    """The `Preparation` of networks over one list of neighbours."""

    wanted: Wanted
    graph: GraphData
    problem: LearningProblem
    given: tuple[GivenVariant, ...]
    master: Tensors | None
    """Given weights of all columns; None: none are given."""
    tables_bytes: int
    """What tables would take on the disk at most."""
    compared: Sequence[ComparedScores]

    def generate(self, *, use_gpu: bool) -> RevisionManifest:
        # Imported here: what is refused before needs nothing of what makes and profiles variants.
        from gnnserve_worker.generation.variants import generate_revision  # noqa: PLC0415

        wanted, graph = self.wanted, self.graph
        spec, progress = wanted.spec, wanted.progress
        models_of: ModelsOf | None = None if self.master is None else _giving(spec, self.master, progress)
        one_rows_of: OneRowsOf | None = None
        if spec.trains_networks:
            device, resumption = begin_learning(wanted, self.tables_bytes, use_gpu=use_gpu)
            if spec.model.learns_embeddings:
                graph, models_of = _learn_rows(spec, graph, self.problem, progress, resumption)
            one_rows_of = _training_one_rows(spec, progress, device, resumption)
            if models_of is None:
                models_of = _training(spec, progress, device, resumption)
                _advise_scope(spec, graph, progress)
        return generate_revision(
            spec, wanted.identity, graph, self.problem, self.given, wanted.repository, progress, models_of, one_rows_of,
            generator_of(trains=spec.trains_networks), self.compared,
        )  # fmt: skip


def _import_graph(wanted: Wanted) -> tuple[GraphData, LearningProblem]:
    spec, progress = wanted.spec, wanted.progress
    graph, problem = import_graph(wanted, partial(_as_read, spec))
    columns = spec.model.row_columns(graph.features.shape[1])
    if (advice := says_expected(spec, columns, spec.network(len(graph.classes)).classes)) is not None:
        progress(Progress("expected", 1, 1, advice))
    return graph, problem


def _as_read(spec: GNNServiceSpec, graph: GraphData) -> GraphData:
    """The graph with what the model reads of its nodes."""
    if spec.model.learns_embeddings:
        # The embeddings, once they are learnt: as many columns are asked about before.
        columns = spec.network(len(graph.classes)).classes
        graph = graph.with_features(np.zeros((graph.graph.nodes, columns), np.float32))
    if not spec.variants.is_searched:
        check_factors(spec.variants.pruning.factors, spec.model.row_columns(graph.features.shape[1]))
    return graph


def _tables_bytes(outline: Outline) -> int:
    """What all tables would take on the disk at most."""
    spec = outline.spec
    listed: Sequence[Variants] = (spec.variants,)
    if spec.variants.is_searched:
        factors = spec.variants.pruning.factors
        derived = derived_rounds(spec.variants, spec.model, factors)
        listed = [*(each.variants for each in derived), merged(spec.variants, trained_rounds(spec.variants, factors))]
    outlines = [replace(outline, spec=spec.model_copy(update={"variants": variants})) for variants in listed]
    return sum(map(bytes_of_tables, outlines))


def _without_wide_tables(
    spec: GNNServiceSpec, graph: GraphData, problem: LearningProblem, progress: ProgressListener
) -> GNNServiceSpec:
    written = written_factors(spec, graph.features)
    if not written.left_out:
        return spec
    left = with_factors(spec, written.kept)
    steps = steps_of(left, GraphSizes.of(graph, problem.items), profile_budget_s())
    progress(Progress("variants left out", 1, 1, written.said(), steps))
    return left


def _load_given(wanted: Wanted, graph: GraphData) -> tuple[GivenVariant, ...]:
    if not wanted.spec.variants.given:
        return ()
    wanted.progress(Progress("load given variants", 0, 1))
    found = load_given(wanted.spec, wanted.identity.given, graph)
    wanted.progress(Progress("load given variants", 1, 1))
    return found


def _compare(
    wanted: Wanted, graph: GraphData, master: Tensors | None, given: Sequence[GivenVariant]
) -> Sequence[ComparedScores]:
    """Hold expected scores against the weights, over the source's graph."""
    expected, progress, downloads = wanted.identity.expected, wanted.progress, wanted.repository.downloads
    if not expected:
        return ()
    # Imported here: nothing else computes scores before training.
    from gnnserve_worker.generation.expected.one_relation import ComparedWeights, compare_scores  # noqa: PLC0415

    weights = {one.name: ComparedWeights(one.tensors, one.columns) for one in given}
    if master is not None:
        weights[MODEL] = ComparedWeights(master, None)
    if wanted.graph_version is not None:
        graph = load_source(wanted.spec.graph.source, downloads, progress)
    return compare_scores(wanted.spec, expected, graph, weights, lambda other: load_source(other, downloads), progress)


ModelsOf = Callable[["TrainingSet", Features], "Models"]
OneRowsOf = Callable[["TrainingSet", "Normalized", "ModelRows"], "OneRowModels"]


def _learn_rows(
    spec: GNNServiceSpec, graph: GraphData, problem: LearningProblem, progress: ProgressListener,
    resumption: Resumption,
) -> tuple[GraphData, ModelsOf]:  # fmt: skip
    """The graph with embeddings as its features, and what makes networks that give them as they are."""
    from gnnserve_worker.generation.link_training.learnt_rows import learn_rows  # noqa: PLC0415

    learnt = learn_rows(spec, problem.embedding_course(), progress, resumption)
    return graph.with_features(learnt.rows), lambda data, features: learnt


def _training(
    spec: GNNServiceSpec, progress: ProgressListener, device: torch.device, resumption: Resumption
) -> ModelsOf:
    from gnnserve_worker.generation.resume import ResumedModels  # noqa: PLC0415
    from gnnserve_worker.generation.trained import TrainedModels  # noqa: PLC0415

    return lambda data, features: ResumedModels(TrainedModels(spec.model, data, features, progress, device), resumption)


def _training_one_rows(
    spec: GNNServiceSpec, progress: ProgressListener, device: torch.device, resumption: Resumption
) -> OneRowsOf | None:
    if not spec.variants.one_row and not spec.variants.is_searched:
        return None
    from gnnserve_worker.generation.one_row import TrainedOneRows  # noqa: PLC0415
    from gnnserve_worker.generation.propagation import model_rows  # noqa: PLC0415

    return lambda data, normalized, rows: TrainedOneRows(
        spec.model, data, lambda model: model_rows(model, data, normalized), rows, progress, device, resumption
    )


def _advise_scope(spec: GNNServiceSpec, graph: GraphData, progress: ProgressListener) -> None:
    # Imported here: it trains, for which torch is needed.
    from gnnserve_worker.generation.trial import advise_scope  # noqa: PLC0415

    if (advice := advise_scope(graph, spec, progress)) is not None:
        progress(Progress("advice", 1, 1, advice))


def _giving(spec: GNNServiceSpec, master: Tensors, progress: ProgressListener) -> ModelsOf:
    from gnnserve_worker.generation.given import GivenModels  # noqa: PLC0415

    return lambda data, features: GivenModels(master, data, features, spec.model, progress)
