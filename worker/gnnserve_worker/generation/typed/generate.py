"""From a manifest over a graph of several types to a published revision: what `pipeline.py` is for graphs of one type.

Where links are scored it is `link_training/generate_typed.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import NOT_RANKED, RankingManifest, RevisionManifest
from gnnserve_api.spec.heterogeneous import TypedSource
from gnnserve_api.spec.scoring import Thresholds
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.assumptions import assumptions_of, report_assumptions
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.checkpoint import read_checkpoint
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.features import normalization_of
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.label_fit import label_misfits
from gnnserve_worker.generation.profile import measure_profile, profile_budget_s, with_thresholds
from gnnserve_worker.generation.scores import metric_of
from gnnserve_worker.generation.steps import IMPORT, steps_over_types
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.thresholds import check_thresholds
from gnnserve_worker.generation.typed.checkpoint import check_typed
from gnnserve_worker.generation.typed.learn import MASTER, learn_master, trainer
from gnnserve_worker.generation.typed.plan import as_arrays, fanouts_by_relation, plan_variants, states_of
from gnnserve_worker.generation.typed.row_source import write_row_source
from gnnserve_worker.generation.typed.subject import TypedTrainingSet, typed_training_set
from gnnserve_worker.graph.sources.load import load_typed_source
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.graph.typed_lists import describe_typed
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalShape
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    import torch


def generate_typed(
    spec: GNNServiceSpec,
    source: TypedSource,
    identity: RevisionIdentity,
    repository: Repository,
    progress: ProgressListener,
    *,
    use_gpu: bool,
    graph_version: str | None = None,
) -> RevisionManifest:
    """Generate the revision, which is not published yet. `graph_version` and errors: as of `pipeline.generate`."""
    progress(Progress(IMPORT, 0, 1))
    data = load_typed_source(source, progress) if graph_version is None else _read_version(repository, graph_version)
    typed = describe_typed(data)
    counts = f"{data.nodes:,} nodes of {len(data.types)} types, {data.edges:,} edges by {len(data.relations)} relations"
    steps = steps_over_types(spec, data.nodes, data.edges, len(data.splits.train), profile_budget_s(), MASTER)
    progress(Progress(IMPORT, 1, 1, counts, steps))
    report_findings(data.findings, progress)
    # Before training, since a metric may not fit the graph, and a variable may be no number.
    metric = metric_of(data.multi_label, spec.variants.metric)
    profile_budget = profile_budget_s()
    check_thresholds(spec.variants.thresholds, multi_label=data.multi_label, classes=len(data.classes))
    fanouts_by_relation(spec.model, typed)
    architecture = relational_spec_of(spec.model.architecture)
    report_assumptions(spec, architecture, progress)
    network = spec.model.network(len(data.classes))
    shape = RelationalShape(
        typed, spec.model.hidden, len(data.classes), network.layers, spec.model.bases, network.attention
    )
    given = None
    if spec.model.checkpoint is not None and identity.checkpoint is not None:
        given = check_typed(
            read_checkpoint(spec.model.checkpoint, identity.checkpoint), architecture, shape, spec.model
        )
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        published = repository.find(
            identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
        )
        if published is not None:
            return published
        repository.put_graph(data)
        method = normalization_of(spec)
        subject = typed_training_set(data, typed, method, spec.model.training.scope, metric)
        tensors, generator = given or {}, f"gnnserve {version('gnnserve')}"
        compared: Sequence[ComparedScores] = ()
        if given is not None and identity.expected:
            compared = _compare(
                spec, source, identity, shape, subject if graph_version is None else None, given, progress
            )
        runs: Sequence[TrainingRun] = ()
        if given is None:
            generator = trainer()
            tensors, runs = _train(spec, identity, shape, subject, repository, progress, use_gpu=use_gpu)
        layers = [as_arrays(layer) for layer in architecture.layers(tensors, shape)]
        states = states_of(subject, tensors)
        plan = plan_variants(spec, network, layers, subject, states)
        with repository.stage(
            identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
        ) as staged:
            generated = write_plans([plan], staged, progress)
            loaded = open_revision(staged.files_of([made.variant for made in generated]))
            if spec.variants.thresholds is Thresholds.PER_CLASS:
                generated = with_thresholds(loaded, generated)
            answers: dict[str, np.ndarray] = {}
            profile = measure_profile(
                loaded, generated, lambda done, total: progress(Progress(PROFILE, done, total)), metric,
                profile_budget, answers=answers,
            )  # fmt: skip
            labels = data.labels[data.splits.validation]
            misfits = label_misfits(spec, profile.variants, answers, labels, data.classes, subject.majority)
            return staged.commit(
                scope=spec.model.training.scope,
                # The columns of the type that is classified, as its source has them.
                ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(typed.target.features or 0))),
                variants=[made.variant for made in generated],
                profile=profile,
                generator=generator,
                created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
                training=training_of(spec.model.training, tuple(runs), subject.majority) if runs else None,
                row_source=write_row_source(subject, states, layers[0], staged),
                assumptions=assumptions_of(spec, architecture),
                compared=compared,
                label_misfits=[*misfits],
            )


def _compare(
    spec: GNNServiceSpec, source: TypedSource, identity: RevisionIdentity, shape: RelationalShape,
    subject: TypedTrainingSet | None, tensors: Tensors, progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold expected scores against the weights, over the source's graph, which is loaded where `subject` is None."""
    # Imported here: few revisions have expected scores.
    from gnnserve_worker.generation.typed.expected import compare_typed_scores  # noqa: PLC0415

    if subject is None:
        data = load_typed_source(source, progress)
        described = describe_typed(data)
        method, scope = normalization_of(spec), spec.model.training.scope
        metric = metric_of(data.multi_label, spec.variants.metric)
        subject, shape = typed_training_set(data, described, method, scope, metric), replace(shape, graph=described)
    architecture = relational_spec_of(spec.model.architecture)
    return compare_typed_scores(spec, identity.expected, architecture, shape, subject, tensors, progress)


def _read_version(repository: Repository, digest: str) -> TypedGraphData:
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
    spec: GNNServiceSpec, identity: RevisionIdentity, shape: RelationalShape, subject: TypedTrainingSet,
    repository: Repository, progress: ProgressListener, *, use_gpu: bool,
) -> tuple[Tensors, Sequence[TrainingRun]]:  # fmt: skip
    def learn(device: torch.device) -> tuple[Tensors, TrainingRun]:
        from gnnserve_worker.generation.typed.train import train_typed  # noqa: PLC0415  (torch takes many seconds)

        architecture = relational_spec_of(spec.model.architecture)
        return train_typed(architecture, shape, subject, spec.model, MASTER, progress, device)

    return learn_master(learn, identity, repository, progress, use_gpu=use_gpu)
