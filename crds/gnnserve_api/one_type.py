"""Refusing, for what is made of graphs of one type alone, revisions over several types."""

from __future__ import annotations

from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest


def is_over_types(manifest: RevisionManifest) -> bool:
    """Whether its graph has several types of nodes."""
    return any(table.by_relation for table in manifest.tables.values())


def require_one_type(manifest: RevisionManifest, what: str) -> None:
    """InputError: the revision is over several types. `what`: what there is for graphs of one type alone."""
    if is_over_types(manifest):
        problem = f"revision {manifest.revision} is over a graph of several types, and {what} graphs of one type alone"
        raise InputError("REVISION", problem, "name a revision over such a graph")
