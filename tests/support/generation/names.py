"""Names of variants, as a manifest tells them before anything is made."""

from __future__ import annotations

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec


def assert_named(spec: GNNServiceSpec, revision: RevisionManifest) -> None:
    """Hold a revision against what `gnnserve validate` lists of its manifest."""
    made = {one.name for one in (*revision.variants, *revision.cascades)}
    certain, possible = {*spec.certain_variants()}, {*spec.possible_variants()}
    assert certain <= made, f"not made: {sorted(certain - made)}"
    assert made <= possible, f"not told: {sorted(made - possible)}"
