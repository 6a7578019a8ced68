"""From a manifest over a graph of several types to a published revision: what `one_type.py` is for graphs of one type.

All variants share one network, and the decoder that reads it where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import NOT_RANKED, RankingManifest, RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.assumptions import assumptions_of, report_assumptions
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.checkpoint import read_checkpoint
from gnnserve_worker.generation.families.relations import as_arrays, fanouts_by_relation, plan_variants, states_of
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.features import normalization_of
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity, find_published
from gnnserve_worker.generation.profile import calibrated, measure_profile, profile_budget_s
from gnnserve_worker.generation.relation_checkpoint import check_relations
from gnnserve_worker.generation.relation_learning import MASTER, learn_master, trainer
from gnnserve_worker.generation.relation_row_source import write_row_source
from gnnserve_worker.generation.relation_training_set import RelationTrainingSet, relation_training_set
from gnnserve_worker.generation.steps import IMPORT, steps_over_types
from gnnserve_worker.generation.tensors import Tensors, without_decoder
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalShape
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import GenerationTask, OverTypes, Verdict
from gnnserve_worker.tasks.generation import task_of

if TYPE_CHECKING:
    import torch


def generate_over_relations(
    spec: GNNServiceSpec,
    identity: RevisionIdentity,
    repository: Repository,
    progress: ProgressListener,
    *,
    use_gpu: bool,
    graph_version: str | None = None,
) -> RevisionManifest:
    """Generate the revision, which is not published yet. `graph_version` and errors: as of `pipeline.generate`."""
    task = task_of(spec)
    imported = _import_graph(spec, task, graph_version, repository, progress)
    data, problem = imported.graph, imported.problem
    spec = task.settled(spec)
    typed = data.schema
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    problem.check(spec.variants)
    profile_budget = profile_budget_s()
    fanouts_by_relation(spec.model, typed)
    architecture = relational_spec_of(spec.model.architecture)
    report_assumptions(spec, architecture, progress)
    network = spec.network(len(data.classes))
    shape = RelationalShape(
        typed, spec.model.hidden, network.classes, network.layers, spec.model.bases, network.attention
    )
    given = None
    if spec.model.checkpoint is not None and identity.checkpoint is not None:
        given = check_relations(
            read_checkpoint(spec.model.checkpoint, identity.checkpoint), architecture, shape, spec.model
        )
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        if (published := find_published(repository, identity)) is not None:
            return published
        repository.put_graph(data)
        subject = relation_training_set(data, typed, normalization_of(spec), spec.model.training.scope, problem)
        learnt, generator = given or {}, f"gnnserve {version('gnnserve')}"
        compared: Sequence[ComparedScores] = ()
        if given is not None and identity.expected:
            compared = _compare(
                spec,
                task,
                repository.downloads,
                identity,
                shape,
                subject if graph_version is None else None,
                given,
                progress,
            )
        runs: Sequence[TrainingRun] = ()
        if given is None:
            generator = trainer()
            learnt, runs = _train(spec, identity, shape, subject, repository, progress, use_gpu=use_gpu)
        tensors, decoder = without_decoder(learnt)
        layers = [as_arrays(layer) for layer in architecture.layers(tensors, shape)]
        states = states_of(subject, tensors)
        ends = problem.answered_types(typed) if problem.keeps_outputs else ()
        plan = plan_variants(spec, network, layers, subject, states, ends)
        with repository.stage(
            identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
        ) as staged:
            judge = problem.judge(decoder)
            weights = staged.write_decoder(judge.weights)
            generated = write_plans([plan], staged, progress)
            loaded = open_revision(staged.files_of([made.variant for made in generated]))
            generated = calibrated(loaded, generated, judge)
            verdicts: dict[str, Verdict] = {}
            profile = measure_profile(
                loaded, generated, lambda done, total: progress(Progress(PROFILE, done, total)), judge,
                profile_budget, verdicts=verdicts,
            )  # fmt: skip
            answers = {
                name: one.validation.answers for name, one in verdicts.items() if one.validation.answers is not None
            }
            return staged.commit(
                scope=spec.model.training.scope,
                # The columns of the first type, as its source has them.
                ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(typed.target.features or 0))),
                variants=[made.variant for made in generated],
                profile=profile,
                generator=generator,
                created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
                training=training_of(spec.model.training, tuple(runs), problem.majority) if runs else None,
                row_source=write_row_source(subject, states, layers[0], staged),
                links=judge.describe(weights),
                assumptions=assumptions_of(spec, architecture),
                compared=compared,
                label_misfits=judge.misfits(spec, profile.variants, answers),
            )


def _import_graph(
    spec: GNNServiceSpec, task: GenerationTask, graph_version: str | None,
    repository: Repository, progress: ProgressListener,
) -> OverTypes:  # fmt: skip
    progress(Progress(IMPORT, 0, 1))
    imported = (
        task.import_over_types(repository.downloads, progress)
        if graph_version is None
        else task.pose_over_types(_read_version(repository, graph_version))
    )
    data = imported.graph
    counts = f"{data.nodes:,} nodes of {len(data.types)} types, {data.edges:,} edges by {len(data.relations)} relations"
    steps = steps_over_types(spec, data.nodes, data.edges, imported.problem.items, profile_budget_s(), MASTER)
    progress(Progress(IMPORT, 1, 1, counts, steps))
    # What was left out must be reported, not only show as a poor accuracy.
    report_findings(imported.findings, progress)
    return imported


def _compare(
    spec: GNNServiceSpec, task: GenerationTask, downloads: Path, identity: RevisionIdentity, shape: RelationalShape,
    subject: RelationTrainingSet | None, tensors: Tensors, progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold expected scores against the weights, over the source's graph, which is loaded where `subject` is None."""
    # Imported here: few revisions have expected scores.
    from gnnserve_worker.generation.expected.relations import compare_scores_over_relations  # noqa: PLC0415

    if subject is None:
        data, problem, _ = task.import_over_types(downloads, progress)
        described = data.schema
        method, scope = normalization_of(spec), spec.model.training.scope
        subject, shape = relation_training_set(data, described, method, scope, problem), replace(shape, graph=described)
    architecture = relational_spec_of(spec.model.architecture)
    return compare_scores_over_relations(spec, identity.expected, architecture, shape, subject, tensors, progress)


def _read_version(repository: Repository, digest: str) -> GraphData:
    data = repository.read_graph(digest)
    for kind in data.types:
        if not kind.nodes:
            raise InputError(
                "spec.graph.source.typed",
                f"changes have removed all nodes of type {kind.name}, so that nothing can be learned about the type",
                "add nodes of the type, or leave the networks as they are: without retraining",
            )
    return data


def _train(
    spec: GNNServiceSpec, identity: RevisionIdentity, shape: RelationalShape, subject: RelationTrainingSet,
    repository: Repository, progress: ProgressListener, *, use_gpu: bool,
) -> tuple[Tensors, Sequence[TrainingRun]]:  # fmt: skip
    """Weights of the network, and of a decoder beside it."""

    def learn(device: torch.device) -> tuple[Tensors, TrainingRun]:
        from gnnserve_worker.generation.relation_train import train_over_relations  # noqa: PLC0415  (torch takes many seconds)

        architecture = relational_spec_of(spec.model.architecture)
        return train_over_relations(architecture, shape, subject, spec.model, MASTER, progress, device)

    return learn_master(learn, identity, repository, progress, use_gpu=use_gpu)
