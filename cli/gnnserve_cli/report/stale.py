"""Stored layers that may be stale, in words: what reading them so costs, and whether a budget pays."""

from __future__ import annotations

from gnnserve_api.families import point_of
from gnnserve_api.files.profile import Profile, StaleChanges, StaleLayerProfile, StalePoint, VariantProfile
from gnnserve_api.intervals import difference_interval
from gnnserve_cli.report.data import StaleLayer
from gnnserve_cli.report.words import ms, percent

_TAKEN_AWAY = 0.5
"""Share of the differing answers that a part of the rows has to take away, or the part is not worth choosing."""
_ONE_PERCENT = 0.0095
_KINDS = {"edges": "{share} of the edges", "newNodes": "new nodes", "overlays": "new nodes of requests"}


def name_changes(changes: StaleChanges) -> str:
    """`5 % of the edges`, `new nodes`."""
    return _KINDS[changes.kind].format(share=percent(changes.share, 0 if changes.share >= _ONE_PERCENT else 2))


def tell_stale_layers(profile: Profile) -> tuple[StaleLayer, ...]:
    """Empty: no stored layer may be stale, or an earlier gnnserve made the profile."""
    measured = profile.stale or ()
    return tuple(StaleLayer(_says(one, profile), _why_not(one, profile) is None, one) for one in measured)


def _says(one: StaleLayerProfile, profile: Profile) -> str:
    worst = max(one.changes, key=lambda changes: changes.differing)
    text = (
        f"Rows of layer {one.layer}, which {one.variant} reads, may be stale with `spec.updates.refresh`. A request "
        f"for one takes {ms(one.exact_p50_ms)} where none is"
    )
    if one.whole is not None:
        text += f", and {ms(one.whole.p50_ms)} over whole neighbourhoods by {one.whole.variant}"
    text += (
        f". After {name_changes(worst)} came, {percent(worst.differing)} of {worst.answers:,} answers differ from "
        "exact ones"
    )
    if (part := _part(worst)) is not None:
        all_made = worst.points[-1]
        text += (
            f"; {percent(part.differing)} with {percent(part.recomputed, 0)} of the stale rows that are read made "
            f"anew, {part.rows:.1f} a request, in {ms(part.p50_ms)}; {percent(all_made.differing)} with all of them, "
            f"in {ms(all_made.p50_ms)}"
        )
    reason = _why_not(one, profile)
    return f"{text}. {'A budget pays here.' if reason is None else f'A budget does not pay here: {reason}.'}"


def _part(changes: StaleChanges) -> StalePoint | None:
    """The largest part of the rows, but for all."""
    return next((point for point in reversed(changes.points) if 0 < point.recomputed < 1), None)


def _why_not(one: StaleLayerProfile, profile: Profile) -> str | None:
    """Why no budget for a part of the rows is worth it; None: one is."""
    differing = [changes for changes in one.changes if changes.differing > 0]
    if not differing:
        return "no answer differed, so that the background can make rows anew alone (`rows: 0`)"
    parts = [(changes, part) for changes in differing if (part := _part(changes)) is not None]
    helping = [part for changes, part in parts if part.differing <= _TAKEN_AWAY * changes.differing]
    if not helping:
        return "the rows with the largest estimates take away less than half of what differs, whatever came"
    fastest = _fastest_exact(one, profile)
    if fastest is not None and fastest[1] <= min(part.p50_ms for part in helping):
        return (
            f"{fastest[0]} is as accurate as far as can be told, never stale, and answers one node in {ms(fastest[1])}"
        )
    return None


def _fastest_exact(one: StaleLayerProfile, profile: Profile) -> tuple[str, float] | None:
    """The fastest variant that follows changes exactly and is as accurate as the one that reads the layer, but for what
    may be chance, with the median of a request for one node; None: there is none."""
    asked = next((each for each in profile.variants if each.name == one.variant), None)
    stale = {name for each in profile.stale or () for name in each.variants}
    able = [
        each
        for each in profile.variants
        if asked is not None
        and each.name not in stale
        and point_of(each).capabilities.changes
        and _is_as_accurate(each, asked, profile)
    ]
    found = min(able, key=lambda variant: variant.latency[0].p50_ms, default=None)
    return None if found is None else (found.name, found.latency[0].p50_ms)


def _is_as_accurate(one: VariantProfile, other: VariantProfile, profile: Profile) -> bool:
    shares, items = (other.validation_accuracy, one.validation_accuracy), profile.validation_items
    return shares[1] >= shares[0] or difference_interval(shares[0], items, shares[1], items).contains(0)
