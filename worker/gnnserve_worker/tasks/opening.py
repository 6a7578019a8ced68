"""Context that a task is opened with, beside a revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_worker.asking.asked_nodes import AskedNodes
from gnnserve_worker.asking.overlay import Overlays
from gnnserve_worker.asking.served_graph import ServedGraph
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.tasks.published import PublishedTask
from gnnserve_worker.tasks.served import ServedTask


@dataclass(frozen=True, slots=True)
class TaskParts:
    """All that a task may need of an opened revision."""

    manifest: RevisionManifest
    graph: ServedGraph
    provenance: Provenance
    classes: Classes
    """The graph's own label of each score column; empty where none is learnt."""
    multi_label: bool
    splits: Splits
    overlays: Overlays
    """What requests may bring along."""
    folder: Path | None
    """The revision's folder, where the files are that the task opens itself; None: there is none."""


@dataclass(frozen=True, slots=True)
class TaskOpener:
    """A task, before a revision of it is opened."""

    is_of: Callable[[RevisionManifest], bool]
    """Whether the manifest is of this task."""
    asked: Callable[[RevisionManifest], AskedNodes]
    """Nodes that it asks about."""
    open: Callable[[TaskParts], ServedTask]
    published: Callable[[RevisionManifest], PublishedTask]
    """What the manifest says of it."""
