"""A revision in memory: everything that answering a request needs, opened once and never written to.

Arrays are memory-mapped, so two processes on one machine share them, and a graph larger than memory still serves.
Whether the files are what was published is `checks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import GraphManifest, NetworkManifest, RevisionManifest
from gnnserve_worker.graph.store import Graph, Splits
from gnnserve_worker.graph.table import FeatureTable
from gnnserve_worker.models.network import Network
from gnnserve_worker.repository import checks, paths

NetworkBuilder = Callable[[NetworkManifest, Mapping[str, np.ndarray], int], Network]
"""`models/build.py`, or a test's stand-in."""


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    name: str
    columns: int
    """Leading columns of the table that this variant reads."""
    network: Network


@dataclass(frozen=True, slots=True)
class LoadedRevision:
    graph: Graph
    table: FeatureTable
    variants: Mapping[str, LoadedVariant]
    """By name, in the order of the profile."""
    network: NetworkManifest
    classes: tuple[int, ...]
    """The graph's own label of each score column."""
    multi_label: bool
    labels: np.ndarray
    """int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] when multi-label. Mapped."""
    splits: Splits
    manifest: RevisionManifest | None
    """None while the revision is staged: it has no profile yet, because this is what gets profiled."""


@dataclass(frozen=True, slots=True)
class RevisionFiles:
    """What to open, whether published or staged."""

    graph_folder: Path
    graph: GraphManifest
    folder: Path
    table: str
    network: NetworkManifest
    columns_by_variant: Mapping[str, int]
    manifest: RevisionManifest | None

    @property
    def remedy(self) -> str:
        return checks.remedy(self.folder)

    @property
    def graph_remedy(self) -> str:
        """Both, because generation starts only when the revision is gone, and keeps a graph that is there."""
        return checks.remedy(self.graph_folder, self.folder)


def open_revision(revision: RevisionFiles, build: NetworkBuilder) -> LoadedRevision:
    graph = revision.graph

    def mapped(name: str, dtype: type[np.generic], *shape: int) -> np.ndarray:
        return checks.open_array(revision.graph_folder / name, dtype, shape, revision.graph_remedy)

    return LoadedRevision(
        graph=Graph(mapped(paths.INDPTR, np.int64, graph.nodes + 1), mapped(paths.INDICES, np.int32, graph.edges)),
        table=_open_table(revision),
        variants={
            name: LoadedVariant(name, columns, _open_network(revision, name, columns, build))
            for name, columns in revision.columns_by_variant.items()
        },
        network=revision.network,
        classes=graph.classes,
        multi_label=graph.multi_label,
        labels=(
            mapped(paths.LABELS, np.uint8, graph.nodes, len(graph.classes))
            if graph.multi_label
            else mapped(paths.LABELS, np.int64, graph.nodes)
        ),
        splits=Splits(
            train=mapped(paths.TRAIN, np.int64, graph.train_nodes),
            validation=mapped(paths.VALIDATION, np.int64, graph.validation_nodes),
            test=mapped(paths.TEST, np.int64, graph.test_nodes),
        ),
        manifest=revision.manifest,
    )


def _open_table(revision: RevisionFiles) -> FeatureTable:
    path = revision.folder / revision.table
    try:
        table = FeatureTable.open(path)
    except (OSError, ValueError, EOFError) as error:
        raise DamagedError(path, f"cannot be opened as a feature table: {error}", revision.remedy) from error
    rows, width = table.values.shape
    needed = max(revision.columns_by_variant.values())
    if rows != revision.graph.nodes or width < needed:
        raise DamagedError(
            path,
            f"holds {rows} rows of {width} columns, expected {revision.graph.nodes} of at least {needed}",
            revision.remedy,
        )
    return table


def _open_network(revision: RevisionFiles, name: str, columns: int, build: NetworkBuilder) -> Network:
    path = revision.folder / paths.weights_of(name)
    try:
        return build(revision.network, safetensors.numpy.load_file(path), columns)
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedError(path, f"does not hold the weights of {name}: {error}", revision.remedy) from error
