"""Revisions over graphs that are there already, of weights that a test brings: the steps behind the import."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.lessons import Models, lessons_of
from gnnserve_worker.generation.one_relation import OneRelation, OneRowsOf
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.steps import RequestedRevision, publish_networks
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.progress import ProgressListener, silent
from gnnserve_worker.repository.paths import RevisionIdentity
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import LearningProblem
from gnnserve_worker.tasks.generation import task_of


def generate_over(
    spec: GNNServiceSpec, data: GraphData, problem: LearningProblem, repository: Repository,
    models_of: Callable[[TrainingSet, Features], Models], *, given: Sequence[GivenVariant] = (),
    one_rows_of: OneRowsOf | None = None, progress: ProgressListener = silent,
) -> RevisionManifest:  # fmt: skip
    identity = RevisionIdentity("recipe", data.digest, None, {})
    wanted = RequestedRevision(spec, task_of(spec), identity, repository, progress, None, profile_budget_s())
    networks = OneRelation(wanted, data, problem, given).learn_by(lessons_of(spec), models_of, one_rows_of)
    return publish_networks(wanted, networks, "tests")
