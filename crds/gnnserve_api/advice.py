"""Words about a revision for those who had it generated: how far to trust its training, and what its profile says.

They are said once: later nothing can be done about it but to generate again.
"""

from __future__ import annotations

from collections.abc import Iterator

from gnnserve_api.domination import says_dominated
from gnnserve_api.files.given_weights import says_misfits
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import says_rising, says_unlearnt


def advice_on_training(manifest: RevisionManifest) -> Iterator[str]:
    """Lines of a log, each with its weight before it, such as `warning: `."""
    said = says_misfits(manifest.label_misfits), says_unlearnt(manifest.training), says_rising(manifest.training)
    return (f"warning: {words}" for words in said if words is not None)


def advice_on_profile(manifest: RevisionManifest) -> Iterator[str]:
    """Lines of a log, as of `advice_on_training`."""
    ranking = manifest.ranking
    if (words := says_dominated(manifest.profile, len(ranking.columns), is_chosen=ranking.is_chosen)) is not None:
        yield f"note: {words}"
