"""The graph that `gnnserve cache simulate` is asked about: published, imported, or made in the shape of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_api.manifest import load_manifest
from gnnserve_cli.report.subject import load_subject as find_revision
from gnnserve_cli.sources import MANIFEST_SUFFIXES, parse_source
from gnnserve_worker.caching.simulation.shapes import SHAPES, build_graph
from gnnserve_worker.graph.sources.load import load_of_one_type
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.paths import DOWNLOADS
from gnnserve_worker.repository.repository import Repository

_FANOUTS = (25, 10)
_TRAINING_SHARE = 0.1
"""Share of training nodes in a synthetic shape, which has no split of its own."""


@dataclass(frozen=True, slots=True)
class CacheSubject:
    source: str
    graph: Graph
    training_nodes: np.ndarray
    fanouts: tuple[int, ...]


def load_subject(
    source: str, repository: Path, service: str | None, seed: int, within: float, listener: ProgressListener
) -> CacheSubject:
    path = Path(source)
    if source in SHAPES:
        return _make_shape(source, seed, within, listener)
    if path.is_dir():
        return _open_folder(path, service)
    if path.suffix in MANIFEST_SUFFIXES and (published := _open_published(path, repository)) is not None:
        return published
    return _import(source, repository, listener)


def _make_shape(name: str, seed: int, within: float, listener: ProgressListener) -> CacheSubject:
    listener(Progress(f"make {name}", 0, 1))
    graph = build_graph(SHAPES[name], seed, within)
    listener(Progress(f"make {name}", 1, 1))
    training = np.random.default_rng(seed).permutation(graph.nodes)[: int(_TRAINING_SHARE * graph.nodes)]
    told = f", {within:.0%} of the links within communities" if within else ""
    return CacheSubject(f"synthetic, of the shape of {name}{told}", graph, training, _FANOUTS)


def _open_folder(root: Path, service: str | None) -> CacheSubject:
    found = find_revision(root, service, None)
    namespace, _, name = found.service.partition("/")
    return _open_revision(root, namespace, name, found.revision)


def _open_published(manifest: Path, root: Path) -> CacheSubject | None:
    """The published graph; None: it has to be imported."""
    service = load_manifest(manifest)
    stored = Repository(root, service.metadata.namespace, service.metadata.name)
    named = service.spec.revision
    published = stored.find(service.spec.recipe()) if named is None else stored.find_named(named)
    if published is None:
        return None
    return _open_revision(root, service.metadata.namespace, service.metadata.name, published.revision)


def _open_revision(root: Path, namespace: str, name: str, revision: str) -> CacheSubject:
    loaded = load_revision(Repository(root, namespace, name), revision)
    if loaded.manifest is not None:
        loaded.manifest.require_node_rows("caches are simulated for")
    source = f"{namespace}/{name}, revision {revision}"
    first = next(iter(loaded.variants.values()))
    return CacheSubject(source, loaded.graph, loaded.labels.splits.train, first.fanouts)


def _import(source: str, repository: Path, listener: ProgressListener) -> CacheSubject:
    wanted = parse_source(source)
    fanouts = load_manifest(Path(source)).spec.model.fanouts if Path(source).suffix in MANIFEST_SUFFIXES else _FANOUTS
    data = load_of_one_type(wanted, repository / DOWNLOADS, listener)
    return CacheSubject(data.source, data.graph, data.splits.train, fanouts)
