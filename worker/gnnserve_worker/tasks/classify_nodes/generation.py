"""Classification of nodes, as generation sees it: labels of the source, and what is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener

if TYPE_CHECKING:
    from gnnserve_worker.tasks.generated import Imported


@dataclass(frozen=True, slots=True)
class ClassifyNodes:
    """The `GenerationTask` of a spec that asks for classes."""

    spec: GNNServiceSpec
    needs_master: bool = False

    @property
    def compared_with(self) -> ComparedWith:
        raise ValueError("embeddings are made for links")

    def graph_digest(self, source: str) -> str:
        return source

    def earlier_digest(self, source: str) -> str | None:
        return None

    def settled(self, spec: GNNServiceSpec) -> GNNServiceSpec:
        return spec

    def check_given(self, columns: int, graph: GraphData) -> None:
        if columns != len(graph.classes):
            raise InputError(
                "spec.model.program.scores.columns", f"is {columns}, and nodes have {len(graph.classes)} classes",
                "label nodes as the model was trained, or export it with an output for each class",
            )  # fmt: skip

    def given_decoder(self, weights: Path | None) -> None:
        """None: outputs are scores of classes. The spec permits weights for links alone; those of a folder are left
        unread."""

    def check_plan(self) -> None:
        """Do nothing: classes are what is planned."""

    def load(self, downloads: Path, progress: ProgressListener) -> GraphData:
        return load_source(self.spec.graph.source, downloads, progress)

    def says_unlabelled(self) -> tuple[str, str]:
        return "labels", "no type has any: nothing can be classified, and links may be scored (spec.task.links)"

    def import_graph(self, downloads: Path, progress: ProgressListener) -> Imported:
        return self.pose(self.load(downloads, progress))

    def pose(self, graph: GraphData) -> Imported:
        # Imported here: a start that finds its revision learns and judges nothing.
        from gnnserve_worker.tasks.classify_nodes.labels import pose_labels  # noqa: PLC0415

        return pose_labels(graph, self.spec.variants)

    def pose_version(self, version: GraphData, downloads: Path, progress: ProgressListener) -> Imported:
        return self.pose(version)
