"""Drift: whether what was profiled on validation nodes holds on test nodes.

The comparison is that of Dynamic GNN inference as-a-service, section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.intervals import difference_interval
from gnnserve_cli.report.data import Drift, DriftRow, DriftVerdict
from gnnserve_cli.report.facts import learns_nothing
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.words import items_of, names, nodes_of, number, signed_points

_SMALL_POINTS = 0.5
_DIFFERS = 0.1
"""Share by which times of test nodes may differ from those of validation nodes before it is worth a word."""


def compare_splits(subject: ReportSubject) -> Drift | None:
    profile = subject.profile
    tested = [variant for variant in profile.variants if variant.test_accuracy is not None]
    if not tested or profile.test_nodes == 0:
        return None
    rows = tuple(_drift_row(profile, variant, variant.test_accuracy or 0.0, len(tested)) for variant in tested)
    verdict = DriftVerdict.WITHIN_CHANCE
    if outside := _outside(rows):
        verdict = outside[0].verdict
    seeds = profile.variants[0].latency[-1].seeds
    says = f"{_says_drift(subject, rows)} {_says_rows_and_times(profile, rows, seeds)}".rstrip()
    return Drift(says=says, verdict=verdict, latency_seeds=seeds, rows=rows)


def _outside(rows: Sequence[DriftRow]) -> list[DriftRow]:
    """Variants that differ by more than chance, the most different first."""
    outside = [row for row in rows if row.verdict is not DriftVerdict.WITHIN_CHANCE]
    return sorted(outside, key=lambda row: -abs(row.difference_points))


def _drift_row(profile: Profile, variant: VariantProfile, test: float, comparisons: int) -> DriftRow:
    # Wide enough to hold for all variants at once: of twenty that are each compared at 95 %, one is outside without a
    # reason. They are asked about the same nodes, so most of them say nothing more than one does.
    interval = difference_interval(
        test, profile.test_items, variant.validation_accuracy, profile.validation_items, comparisons
    )
    difference = 100 * (test - variant.validation_accuracy)
    verdict = DriftVerdict.WITHIN_CHANCE
    if not interval.contains(0):
        verdict = DriftVerdict.SMALL if abs(difference) < _SMALL_POINTS else DriftVerdict.DRIFT
    on_test = variant.test_latency
    same_size = None if on_test is None else next((p for p in variant.latency if p.seeds == on_test.seeds), None)
    rows_ratio = None
    if on_test is not None and same_size is not None and same_size.gathered_bytes > 0:
        rows_ratio = on_test.gathered_bytes / same_size.gathered_bytes
    return DriftRow(
        variant=variant.name,
        validation=variant.validation_accuracy,
        test=test,
        difference_points=difference,
        low_points=100 * interval.low,
        high_points=100 * interval.high,
        verdict=verdict,
        validation_ms=same_size.p50_ms if same_size else None,
        test_ms=on_test.p50_ms if on_test else None,
        rows_ratio=rows_ratio,
    )


def _says_drift(subject: ReportSubject, rows: Sequence[DriftRow]) -> str:
    outside = _outside(rows)
    if not outside:
        best = max(rows, key=lambda row: (row.validation, -(row.validation_ms or 0)))
        none = "That is no" if len(rows) == 1 else "No variant differs by"
        return (
            f"{_says_difference(subject.profile, best, len(rows))} {none} more than chance: what was profiled on "
            f"{items_of('validation', subject.profile)} held on {_says_test_nodes(subject)}."
        )
    text = _says_difference(subject.profile, outside[0], len(rows))
    which = [row.variant for row in outside]
    others = len(rows) - len(which)
    held = "the other one holds" if others == 1 else f"the other {others} hold"
    if len(which) == len(rows):
        text += " That is" if len(rows) == 1 else f" All {len(rows)} variants differ by"
        text += " more than chance"
    elif len(which) == 1:
        text += f" That is more than chance; {held}"
    else:
        text += f" {names(which)} differ by more than chance, {held}"
    if outside[0].verdict is DriftVerdict.SMALL:
        return f"{text}. So little is no reason to choose differently."
    return (
        f"{text}. {items_of('validation', subject.profile).capitalize()} are not like "
        f"{items_of('test', subject.profile)}, so go by the test figures, and watch accuracy on your own "
        "traffic."
    )


def _says_difference(profile: Profile, row: DriftRow, comparisons: int) -> str:
    joint = "" if comparisons == 1 else f"; {comparisons} are compared, and it allows for that"
    return (
        f"{row.variant} differs by {signed_points(row.difference_points)} points between {profile.validation_items:,} "
        f"validation and {profile.test_items:,} {items_of('test', profile)} (95 % interval "
        f"{signed_points(row.low_points)} to {signed_points(row.high_points)}{joint})."
    )


def _says_test_nodes(subject: ReportSubject) -> str:
    made = subject.provenance
    if learns_nothing(made):
        return "test nodes, whose links embeddings were computed without"
    if unseen := subject.profile.judged.unseen:
        return unseen
    if made.has_given_weights:
        return "test nodes; whether these had a part in training the given weights is not known"
    if made.scope == "Transductive":
        return "nodes whose labels training did not use; their features and edges it saw"
    return "nodes that had no part in training"


def _says_rows_and_times(profile: Profile, rows: Sequence[DriftRow], seeds: int) -> str:
    """What was timed decides: rows only explain it."""
    times = [row.test_ms / row.validation_ms for row in rows if row.test_ms and row.validation_ms]
    if not times:
        return ""
    times_ratio = median(times)
    of_validation, of_test = nodes_of("validation", profile), nodes_of("test", profile)
    text = f"A batch of {seeds:,} {of_test} took {number(times_ratio)} times as long as one of {of_validation}"
    splits = ((of_validation, profile.validation_nodes), (of_test, profile.test_nodes))
    few = [(name, count) for name, count in splits if count < seeds]
    ratios = [row.rows_ratio for row in rows if row.rows_ratio is not None]
    if few:
        told = names([f"{count:,} {name}" for name, count in few])
        return (
            f"{text}. That says nothing of other batches: there are {told}, so a batch of {seeds:,} repeats some, "
            "which changes the rows that it reads."
        )
    if ratios:
        text += f" and read {number(median(ratios))} times the rows"
    if abs(times_ratio - 1) <= _DIFFERS:
        return f"{text}: the profile's latencies hold for {of_test} too."
    return f"{text}: expect {'higher' if times_ratio > 1 else 'lower'} latencies than the profile's."
