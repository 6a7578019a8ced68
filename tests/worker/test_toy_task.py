"""A task that this file alone knows: whether the class of a node is odd, told by one output.

It goes from a manifest to a revision that is published, over one type and over several, without a line elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pytest
import torch
from tests.support.graphs import npz_arrays, planted_graph, write_npz
from tests.support.steps import HeardSteps
from tests.support.typed import divided_shop, write_folder

from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import LabelMisfit
from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.profile import Metric, VariantProfile
from gnnserve_api.repository import RevisionManifest, VariantManifest
from gnnserve_api.spec.heterogeneous import TypedSource
from gnnserve_api.spec.service import GNNService, GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith, NodeClasses
from gnnserve_api.spec.variants import Variants
from gnnserve_api.training import Source
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.html import build_page
from gnnserve_cli.report.subject import load_subject
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.graph.sources.load import load_source, load_typed_source
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks import generation
from gnnserve_worker.tasks.course import Batch, Course, EmbeddingCourse, EmbeddingRates, Part, Visible
from gnnserve_worker.tasks.generated import Imported, Judged, OutputsOf, OverOneType, OverTypes, Verdict

# --- the task


class TellOddClasses:
    """A `GenerationTask`."""

    needs_master = False

    def __init__(self, spec: GNNServiceSpec) -> None:
        self._source = spec.graph.source

    @property
    def compared_with(self) -> ComparedWith:
        raise ValueError("no embeddings are learnt")

    def graph_digest(self, source: str) -> str:
        return f"{source[:14]}0d"

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        return spec

    def check_plan(self) -> None:
        raise InputError("spec.task", "is not planned", "generate it")

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        return load_source(self._source, downloads, progress)

    def load_over_types(self, source: TypedSource, progress: ProgressListener) -> GraphData:
        return load_typed_source(source, progress)

    def says_unlabelled(self) -> tuple[str, str]:
        return "odd", "no type has classes"

    def import_graph(self, downloads: Path, progress: ProgressListener) -> OverOneType:
        return self.pose(self.load(downloads, progress))

    def import_over_types(self, source: TypedSource, progress: ProgressListener) -> OverTypes:
        return self.pose_over_types(self.load_over_types(source, progress))

    def pose(self, graph: GraphData) -> OverOneType:
        posed = replace(graph, **self._changes(graph))
        return Imported(posed, OddClasses(graph.labels % 2 == 1, graph.splits), graph.findings)

    def pose_over_types(self, graph: GraphData) -> OverTypes:
        posed = replace(graph, **self._changes(graph))
        return Imported(posed, OddClasses(graph.labels % 2 == 1, graph.splits), graph.findings)

    def _changes(self, graph: GraphData) -> dict[str, Any]:
        return {
            "digest": self.graph_digest(graph.digest),
            "classes": ("odd",),
            "labels": np.zeros(len(graph.labels), np.int64),
        }


@dataclass(frozen=True, slots=True)
class OddClasses:
    """A `LearningProblem`."""

    is_odd: np.ndarray
    splits: Splits
    metric: Metric = "accuracy"
    majority: None = None
    compares_shortly: bool = True
    keeps_outputs: bool = False

    @property
    def items(self) -> int:
        return len(self.splits.train)

    def answered_types(self, graph: GraphSchema) -> tuple[int, ...]:
        return (0,)

    def check(self, variants: Variants) -> None:
        if variants.cascades:
            raise InputError("spec.variants.cascades", "needs classes", "leave it out")

    def course(self, visible: Visible, seed: int, decoder: Mapping[str, np.ndarray] | None = None) -> Course[Visible]:
        return OddCourse(self, visible)

    def distilled(self, visible: Visible, nodes: np.ndarray, taught: np.ndarray) -> Iterator[Course[Visible]]:
        raise ValueError("no network stands in for another")

    def embedding_course(self) -> EmbeddingCourse:
        raise ValueError("no embeddings are learnt")

    def judge(self, decoder: Mapping[str, np.ndarray]) -> OddJudge:
        return OddJudge(self)


class OddJudge:
    """A `Judge`."""

    metric: Metric = "accuracy"
    weights: Mapping[str, np.ndarray] = {}

    def __init__(self, problem: OddClasses) -> None:
        self._problem = problem

    def judge(self, outputs_of: OutputsOf) -> Verdict:
        splits = self._problem.splits
        return Verdict(*(Judged(self._share(nodes, outputs_of)) for nodes in (splits.validation, splits.test)))

    def _share(self, nodes: np.ndarray, outputs_of: OutputsOf) -> float:
        return float(np.mean((outputs_of(nodes)[:, 0] > 0) == self._problem.is_odd[nodes]))

    def calibrate(self, variant: VariantManifest, outputs_of: OutputsOf) -> VariantManifest:
        return variant

    def temperature(self, outputs: np.ndarray) -> float:
        raise ValueError("there are no classes to be sure of")

    def misfits(
        self, spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray]
    ) -> Sequence[LabelMisfit]:
        return ()

    def describe(self, weights: str | None) -> None:
        pass


_EMBEDDINGS = EmbeddingRates(bound=0.1, rate_share=1.0, is_decayed=False)


@dataclass(frozen=True, slots=True)
class OddCourse(Generic[Visible]):
    """A `Course`."""

    problem: OddClasses
    visible: Visible
    learnt_from: Source = "labels"
    parts_per_epoch: int = 1
    embeddings: EmbeddingRates = _EMBEDDINGS
    decoder: None = None
    says_each_epoch: bool = True

    @property
    def items(self) -> int:
        return len(self.problem.splits.train)

    @property
    def examined(self) -> np.ndarray:
        return self.problem.splits.validation

    def parts(self, epoch: int) -> Iterator[Part[Visible]]:
        yield Part(self.problem.splits.train, self.visible)

    def batch(self, items: np.ndarray) -> Batch:
        return Batch(items, lambda outputs: self._loss(outputs, items))

    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        loss = self._loss(torch.from_numpy(outputs), self.examined)
        return float(np.mean((outputs[:, 0] > 0) == self.problem.is_odd[self.examined])), float(loss)

    def says(self, score: float) -> str:
        return f"{score:.0%} odd or not"

    def _loss(self, outputs: torch.Tensor, nodes: np.ndarray) -> torch.Tensor:
        wanted = torch.from_numpy(self.problem.is_odd[nodes].astype(np.float32))
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], wanted)


# --- what generation makes of it


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generation.TASKS, NodeClasses, TellOddClasses)
    monkeypatch.setenv(BUDGET_VARIABLE, "0.02")


def service(source: dict[str, Any], **variants: Any) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "odd"},
            "spec": {
                "graph": {"source": source},
                "model": {"hidden": 16, "fanouts": [5, 5], "training": {"epochs": 30, "batchSize": 64}},
                "variants": variants,
            },
        }
    )


def one_type(folder: Path) -> dict[str, Any]:
    return {"npz": {"uri": write_npz(folder / "graph.npz", npz_arrays(planted_graph((2, 5, 7), nodes=300))).as_uri()}}


def several_types(folder: Path) -> dict[str, Any]:
    return {"typed": write_folder(folder / "graph", divided_shop())}


def assert_told(folder: Path, published: RevisionManifest) -> None:
    """The revision answers with one output of each node, mostly right, and its report can be drawn."""
    assert published.links is None
    assert {one.network.classes for one in published.variants} == {1}
    assert all(one.validation_accuracy > 0.8 for one in published.profile.variants)
    loaded = load_revision(Repository(folder / "repository", "default", "odd"), published.revision)
    found = infer_batch(loaded, published.variants[0].name, loaded.splits.test, key=0).scores
    assert found.shape == (len(loaded.splits.test), 1)
    subject = load_subject(folder / "repository", "odd", None)
    assert "accuracy" in build_page(build_report(subject, "gnnserve test"))


@pytest.mark.parametrize("source", [one_type, several_types])
def test_a_task_of_one_file_is_generated_found_and_reported(source: Any, tmp_path: Path) -> None:
    asked, heard = service(source(tmp_path)), HeardSteps()
    repository = Repository(tmp_path / "repository", "default", "odd")
    published = generate(asked, repository, heard)
    assert_told(tmp_path, published)
    assert find(asked, repository) == published
    assert published.training is not None and published.training.majority is None


def test_a_search_goes_without_an_accuracy_that_is_worth_nothing(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "odd")
    published = generate(service(one_type(tmp_path), search="Auto", budget={"seconds": 1, "variants": 2}), repository)
    assert published.profile.search is not None
    assert_told(tmp_path, published)


def test_a_task_refuses_what_it_has_no_use_for(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "odd")
    with pytest.raises(InputError, match="cascades: needs classes"):
        generate(service(one_type(tmp_path), cascades=[{"first": "x2", "then": "x1"}]), repository)
