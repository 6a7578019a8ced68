"""Telling what the files of given weights do not tell, and what is taken for it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from gnnserve_api.given_weights import says_assumed
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.graph.store import Finding
from gnnserve_worker.models.architecture import ArchitectureSpec
from gnnserve_worker.progress import ProgressListener


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
