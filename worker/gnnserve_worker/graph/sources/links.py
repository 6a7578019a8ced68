"""A source's graph without the links that are held out, whatever kind of source it is."""

from __future__ import annotations

from pathlib import Path

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.task import Links
from gnnserve_api.spec.typed import TypedSource
from gnnserve_worker.graph.links import LinkSet, part_links, part_typed_links
from gnnserve_worker.graph.sources.load import load_source, load_typed_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener, silent


def load_links(
    source: GraphSource, links: Links, downloads: Path, progress: ProgressListener = silent
) -> tuple[GraphData, LinkSet]:
    """Read and check the graph, and part its links. `downloads`: the folder of fetched files. Raises InputError and
    ResourceError as `load_source` does. A graph of several types has no features here."""
    given = source.given()
    if isinstance(given, TypedSource):
        return part_typed_links(load_typed_source(given, progress, needs_labels=False), links)
    return part_links(load_source(source, downloads, progress), links)
