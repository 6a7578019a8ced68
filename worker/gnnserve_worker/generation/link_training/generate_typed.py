"""From a manifest that scores links between types, by a network over all relations, to a published revision.

Held-out links are in no list, as of one type. All variants share the network and the decoder: those that read products
answer about new nodes at either end, and one has a row for each stored node, of what the last layer gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnserve_api.repository import NOT_RANKED, RankingManifest, RevisionManifest
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.links.exam import LinkExam
from gnnserve_worker.generation.links.reach import check_ends_are_reached
from gnnserve_worker.generation.profile import measure_profile, profile_budget_s, with_calibrations
from gnnserve_worker.generation.scores import metric_of
from gnnserve_worker.generation.steps import IMPORT, steps_over_types
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.typed.learn import MASTER, learn_master, trainer
from gnnserve_worker.generation.typed.plan import as_arrays, fanouts_by_relation, plan_variants, states_of
from gnnserve_worker.generation.typed.row_source import write_row_source
from gnnserve_worker.generation.typed.subject import TypedTrainingSet, typed_training_set
from gnnserve_worker.graph.links import LinkSet, message_relations
from gnnserve_worker.graph.sources.links import load_links
from gnnserve_worker.graph.typed import TypedGraphData
from gnnserve_worker.graph.typed_lists import describe_typed
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalShape
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository

if TYPE_CHECKING:
    import torch


def generate_typed_links(
    spec: GNNServiceSpec, task: Links, identity: RevisionIdentity, repository: Repository, progress: ProgressListener,
    *, use_gpu: bool,
) -> RevisionManifest:  # fmt: skip
    """Generate the revision, which is not published yet. Errors: as of `pipeline.generate`."""
    data, links = _import(spec, task, identity, repository, progress)
    typed = describe_typed(data)
    # Before training, as what may not fit the graph is.
    metric = metric_of(False, spec.variants.metric, are_links=True)
    profile_budget = profile_budget_s()
    fanouts_by_relation(spec.model, typed)
    network = spec.model.network(task.dimensions)
    shape = RelationalShape(
        typed, spec.model.hidden, task.dimensions, network.layers, spec.model.bases, network.attention
    )
    waiting = Progress("wait for another process that is generating", 0, 1)
    with repository.locked(on_wait=lambda: progress(waiting)):
        published = repository.find(
            identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
        )
        if published is not None:
            return published
        repository.put_graph(data)
        subject = typed_training_set(data, typed, spec.graph.normalization, Scope.TRANSDUCTIVE, metric)
        trained, runs = _train(spec, identity, shape, subject, links, repository, progress, use_gpu=use_gpu)
        layers = [
            as_arrays(layer) for layer in relational_spec_of(spec.model.architecture).layers(trained.network, shape)
        ]
        states = states_of(subject, trained.network)
        plan = plan_variants(spec, network, layers, subject, states, links.end_types(typed))
        with repository.stage(
            identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
        ) as staged:
            exam = LinkExam(links, task, trained.decoder)
            decoder = staged.write_decoder(exam.weights)
            generated = write_plans([plan], staged, progress)
            loaded = open_revision(staged.files_of([made.variant for made in generated]))
            generated = with_calibrations(loaded, generated, exam)
            profile = measure_profile(
                loaded, generated, lambda done, total: progress(Progress(PROFILE, done, total)), metric,
                profile_budget, exam=exam,
            )  # fmt: skip
            return staged.commit(
                scope=Scope.TRANSDUCTIVE,
                ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(typed.target.features or 0))),
                variants=[made.variant for made in generated],
                profile=profile,
                generator=trainer(),
                created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
                training=training_of(spec.model.training, tuple(runs), None),
                row_source=write_row_source(subject, states, layers[0], staged),
                links=exam.describe(decoder),
            )


def _import(
    spec: GNNServiceSpec, task: Links, identity: RevisionIdentity, repository: Repository, progress: ProgressListener
) -> tuple[TypedGraphData, LinkSet]:
    """The graph without its held-out links, and all links."""
    progress(Progress(IMPORT, 0, 1))
    loaded = load_links(spec.graph.source, task, repository.downloads, progress)
    if loaded.typed is None:
        raise ValueError("the source has one type")
    whole, one_type = loaded.typed, loaded.graph
    check_ends_are_reached(spec.model, task, loaded.links, whole)
    data = replace(
        whole,
        digest=identity.graph,
        relations=message_relations(whole, loaded.links),
        labels=np.full(whole.target.nodes, -1, np.int64),
        classes=(),
        splits=one_type.splits,
        names=one_type.ids,
    )
    counts = f"{data.nodes:,} nodes of {len(data.types)} types, {data.edges:,} edges by {len(data.relations)} relations"
    links = len(loaded.links.train)
    steps = steps_over_types(spec, data.nodes, data.edges, links, profile_budget_s(), MASTER)
    progress(Progress(IMPORT, 1, 1, counts, steps))
    # What was left out must be reported, not only show as a poor score.
    report_findings(one_type.findings, progress)
    return data, loaded.links


class _Trained(NamedTuple):
    network: Tensors
    decoder: Tensors


def _train(
    spec: GNNServiceSpec, identity: RevisionIdentity, shape: RelationalShape, subject: TypedTrainingSet, links: LinkSet,
    repository: Repository, progress: ProgressListener, *, use_gpu: bool,
) -> tuple[_Trained, Sequence[TrainingRun]]:  # fmt: skip
    def learn(device: torch.device) -> tuple[Tensors, TrainingRun]:
        from gnnserve_worker.generation.link_training.typed_networks import (  # noqa: PLC0415  (torch takes seconds)
            learn_over_types,
        )

        return learn_over_types(spec, shape, subject, links, MASTER, progress, device)

    tensors, runs = learn_master(learn, identity, repository, progress, use_gpu=use_gpu)
    from gnnserve_worker.generation.link_training.decoders import without_decoder  # noqa: PLC0415  (loads torch too)

    return _Trained(*without_decoder(tensors)), runs
