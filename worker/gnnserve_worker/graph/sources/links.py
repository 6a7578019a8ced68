"""A source's graph without the links that are held out, whatever kind of source it is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.heterogeneous import TypedSource
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import LinkSet, part_links, part_typed_links, with_own_reverse
from gnnserve_worker.graph.sources.load import load_source, load_typed_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener, silent


class LoadedLinks(NamedTuple):
    graph: GraphData
    """Without held-out links. A graph of several types is as one of one type here, without features."""
    links: LinkSet
    imported: GraphData
    """The graph as it was imported, held-out links in it."""


def load_links(
    source: GraphSource,
    links: Links,
    downloads: Path,
    progress: ProgressListener = silent,
    *,
    reads_features: bool = True,
) -> LoadedLinks:
    """Read and check the graph, and part its links. `downloads`: the folder of fetched files; `reads_features`: whether
    the network reads any. Raises InputError and ResourceError as `load_source` does."""
    given = source.given()
    if isinstance(given, TypedSource):
        imported = with_own_reverse(load_typed_source(given, progress, needs_labels=False), links)
        return LoadedLinks(*part_typed_links(imported, links, reads_features=reads_features), imported)
    imported = load_source(source, downloads, progress, learns_labels=False)
    return LoadedLinks(*part_links(imported, links), imported)
