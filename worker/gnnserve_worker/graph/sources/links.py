"""A source's graph without the links that are held out, whatever kind of source it is."""

from __future__ import annotations

from pathlib import Path

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import PartedLinks, part_links
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.progress import ProgressListener, silent


def load_links(
    source: GraphSource,
    links: Links,
    downloads: Path,
    progress: ProgressListener = silent,
    *,
    reads_features: bool = True,
) -> PartedLinks:
    """Read and check the graph, and part its links. `downloads`: the folder of fetched files; `reads_features`: whether
    the network reads any. Raises InputError and ResourceError as `load_source` does."""
    imported = load_source(source, downloads, progress, learns_labels=False)
    return part_links(imported, links, reads_features=reads_features)
