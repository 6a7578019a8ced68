"""A source's graph and its links, parted as a service that scores them parts them."""

from __future__ import annotations

from pathlib import Path

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.links import PartedLinks
from gnnserve_worker.graph.sources.load import kind_of, load_source


def load_links(source: GraphSource, links: Links, downloads: Path) -> PartedLinks:
    return kind_of(source).part_links(load_source(source, downloads, learns_labels=False), links)
