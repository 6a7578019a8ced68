"""Telling what importing changed or left out."""

from __future__ import annotations

from collections.abc import Iterable

from gnnserve_worker.graph.store import Finding
from gnnserve_worker.progress import Progress, ProgressListener


def report_findings(findings: Iterable[Finding], progress: ProgressListener) -> None:
    """A line each."""
    for finding in findings:
        progress(Progress(f"imported: {finding.what}", 1, 1, f"{finding.count:,}  {finding.example}".rstrip()))
