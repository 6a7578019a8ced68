"""Telling what importing changed or left out, and what is taken for that which files of given weights do not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET, UnsetType

from gnnserve_api.given_weights import says_assumed
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.graph.store import Finding
from gnnserve_worker.models.architecture import ArchitectureSpec
from gnnserve_worker.progress import Progress, ProgressListener


def report_findings(findings: Iterable[Finding], progress: ProgressListener) -> None:
    """A line each."""
    for finding in findings:
        progress(Progress(f"imported: {finding.what}", 1, 1, f"{finding.count:,}  {finding.example}".rstrip()))


def assumptions_of(spec: GNNServiceSpec, architecture: ArchitectureSpec) -> Mapping[str, str] | UnsetType:
    """What is assumed of the given weights of a spec; UNSET: all weights are trained."""
    is_given = spec.model.checkpoint is not None or bool(spec.variants.given)
    return architecture.assumptions if is_given else UNSET


def report_assumptions(spec: GNNServiceSpec, architecture: ArchitectureSpec, progress: ProgressListener) -> None:
    """A line in the log, where weights are given."""
    assumed = assumptions_of(spec, architecture)
    if assumed is not UNSET:
        what = "assumed of the given weights, whose files do not tell it"
        report_findings([Finding(what, len(assumed), says_assumed(assumed))], progress)
