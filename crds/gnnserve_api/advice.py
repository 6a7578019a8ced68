"""Words about a revision for those who had it generated: how far to trust its training, and what its profile says.

They are said once: later nothing can be done about it but to generate again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gnnserve_api.domination import says_dominated
from gnnserve_api.families import CHANGED_GRAPH, point_of
from gnnserve_api.files.given_weights import says_misfits
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import says_rising, says_unlearnt
from gnnserve_api.spec.service import GNNServiceSpec


def advice_on_training(manifest: RevisionManifest) -> Iterator[str]:
    """Lines of a log, each with its weight before it, such as `warning: `."""
    said = says_misfits(manifest.label_misfits), says_unlearnt(manifest.training), says_rising(manifest.training)
    return (f"warning: {words}" for words in said if words is not None)


def advice_on_profile(manifest: RevisionManifest) -> Iterator[str]:
    """Lines of a log, as of `advice_on_training`."""
    ranking = manifest.ranking
    if (words := says_dominated(manifest.profile, len(ranking.columns), is_chosen=ranking.is_chosen)) is not None:
        yield f"note: {words}"


def advice_on_changes(manifest: RevisionManifest, spec: GNNServiceSpec) -> Iterator[str]:
    """Lines of a log, as of `advice_on_training`, wherever the revision is served: a spec that only gives or leaves out
    `updates` has it generated no more."""
    if spec.updates is None:
        return
    of_all = manifest.profile.variants
    standing = [one.name for one in of_all if not point_of(one).capabilities.cover(CHANGED_GRAPH)]
    if (words := says_standing(standing, is_searched=spec.variants.is_searched)) is not None:
        yield f"note: {words}"


def says_standing(names: Sequence[str], *, is_searched: bool) -> str | None:
    """Sentence on variants that are made and never chosen, where a spec gives `updates`; None: there are none."""
    if not names:
        return None
    why = (
        f"no request is answered by {', '.join(names)} while spec.updates is given: rows that hold the graph as it was "
        "generated do not follow its changes."
    )
    if is_searched:
        return (
            f"{why} A search keeps the most accurate variant that follows beside them, with spec.updates or without; "
            "stored layers and one-row variants that it makes follow with variants.storedFollowChanges"
        )
    return (
        f"{why} With variants.storedFollowChanges stored layers and one-row variants over hops follow; leave out the "
        "others"
    )
