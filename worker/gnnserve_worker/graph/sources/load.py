"""From a manifest's `graph.source` to a checked graph. One file per kind of source beside this one."""

from __future__ import annotations

import hashlib

from gnnserve_api.gnnservice import GraphSource
from gnnserve_worker.graph.sources import digits, npz
from gnnserve_worker.graph.store import GraphData

IMPORTER_VERSION = 1
"""Raised when the same source would be read into another graph than before."""


def source_digest(source: GraphSource) -> str:
    """Identity of the content without importing it: cheap enough for every start.

    Raises InputError when a file is missing or is not the one that the manifest pins.
    """
    identity = npz.file_digest(source.npz) if source.npz is not None else digits.IDENTITY
    return hashlib.sha256(f"importer {IMPORTER_VERSION}\n{identity}".encode()).hexdigest()[:16]


def load_source(source: GraphSource) -> GraphData:
    """Read and check the graph. Raises InputError that names the file, the array and the value."""
    digest = source_digest(source)
    if source.npz is not None:
        return npz.load(source.npz, digest)
    return digits.load(digest)
