"""From a profile to a report: everything that is worked out, and every sentence with its numbers. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnserve_api.errors import InputError
from gnnserve_api.intervals import difference_interval, share_interval
from gnnserve_api.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.tolerance import Point, Within, fastest_within, frontier, most_accurate, tiers
from gnnserve_cli.report.data import (
    Accuracy,
    Chosen,
    Drift,
    DriftRow,
    Report,
    Says,
    SizeRow,
    Stability,
    Summary,
    Tier,
    ToleranceRow,
    Tolerances,
    VariantRow,
    Verdict,
    at_size,
)
from gnnserve_cli.report.performance import answer_latencies, fit_models
from gnnserve_cli.report.subject import Subject
from gnnserve_cli.report.words import gets_right, ms, names, nodes, number, percent, points, ratio, signed_points

DEFAULT_TOLERANCES_PERMILLE = (0.0, 10.0, 20.0, 50.0, 100.0)
"""The paper's 0, 1, 2, 5 and 10 points (its figure 3)."""
_FEW_NODES = 1000
_FEW_RUNS = 100
"""Below it a p99 is about the slowest run."""
_SMALL_POINTS = 0.5
_ROWS_DIFFER = 0.1
"""Share of table rows by which test nodes may differ from validation nodes before it is worth a word."""


def build_report(
    subject: Subject,
    written_by: str,
    seeds: int | None = None,
    latencies_ms: Sequence[float] = (),
    tolerances_permille: Sequence[float] = (),
) -> Report:
    """`seeds`: the batch size of latencies, one that was measured; the largest without it."""
    profile = subject.profile
    size = _size_index(profile, seeds)
    chosen_seeds = profile.variants[0].latency[size].seeds
    of_points = [Point(v.name, v.validation_accuracy, v.latency[size].p50_ms) for v in profile.variants]
    rows = _variant_rows(profile, of_points)
    models, fitted = fit_models(subject, size)
    return Report(
        service=subject.service,
        revision=subject.revision,
        recipe=subject.recipe,
        metric=profile.metric,
        machine=profile.machine,
        threads=profile.threads,
        validation_nodes=profile.validation_nodes,
        test_nodes=profile.test_nodes,
        nodes=subject.nodes,
        features=subject.features,
        classes=subject.classes,
        multi_label=subject.multi_label,
        seeds=chosen_seeds,
        cautions=_cautions(profile, chosen_seeds, size),
        summary=_summarize(profile, of_points, chosen_seeds),
        variants=rows,
        tolerances=_tolerances(of_points, tolerances_permille or DEFAULT_TOLERANCES_PERMILLE, rows),
        drift=_drift(profile),
        stability=_stability(subject),
        models=models,
        latencies=answer_latencies(subject, size, sorted(set(latencies_ms)), fitted),
        says=Says(
            frontier=_says_frontier(profile, rows),
            stages=_says_stages(rows),
            window=_says_window(rows, chosen_seeds),
            costs=_says_costs(rows, chosen_seeds),
            models=_says_models(subject, size),
        ),
        provenance=subject.provenance,
        written_by=written_by,
    )


def _size_index(profile: Profile, seeds: int | None) -> int:
    measured = [point.seeds for point in profile.variants[0].latency]
    if seeds is None:
        return len(measured) - 1
    if seeds not in measured:
        raise InputError(
            "--seeds", f"{seeds:,} is no batch size that was measured", f"use {names([str(m) for m in measured])}"
        )
    return measured.index(seeds)


# --- variants


def _variant_rows(profile: Profile, of_points: Sequence[Point]) -> tuple[VariantRow, ...]:
    best = most_accurate(of_points)
    on_frontier = {point.name for point in frontier(of_points)}
    return tuple(
        VariantRow(
            name=variant.name,
            factor=variant.factor,
            columns=variant.columns,
            storage=variant.storage,
            projected=variant.projected,
            compute=variant.compute,
            on_frontier=variant.name in on_frontier,
            validation=_accuracy(variant.validation_accuracy, profile.validation_nodes),
            test=None if variant.test_accuracy is None else _accuracy(variant.test_accuracy, profile.test_nodes),
            loss_points=100 * (best.accuracy - variant.validation_accuracy),
            loss_may_be_chance=difference_interval(
                best.accuracy, profile.validation_nodes, variant.validation_accuracy, profile.validation_nodes
            ).contains(0),
            sizes=tuple(_size_row(point) for point in variant.latency),
            size_bytes=variant.size_bytes,
            memory_bytes=variant.memory_bytes,
        )
        for variant in profile.variants
    )


def _accuracy(share: float, count: int) -> Accuracy:
    interval = share_interval(share, count)
    return Accuracy(share, interval.low, interval.high)


def _size_row(point: LatencyProfile) -> SizeRow:
    return SizeRow(
        seeds=point.seeds,
        runs=point.runs,
        p50_ms=point.p50_ms,
        p99_ms=point.p99_ms,
        mean_ms=point.mean_ms,
        std_ms=point.std_ms,
        sample_ms=point.sample_ms,
        gather_ms=point.gather_ms,
        compute_ms=point.compute_ms,
        gathered_bytes=point.gathered_bytes,
        window_ms=point.window_p50_ms,
        window_std_ms=point.window_std_ms,
        gather_to_compute=point.gather_ms / point.compute_ms if point.compute_ms > 0 else None,
    )


def _cautions(profile: Profile, seeds: int, size: int) -> tuple[str, ...]:
    found = [
        f"Latencies were measured on {profile.machine} with {_threads(profile.threads)}, sampling included, queueing "
        "and HTTP not. On another machine only their order is likely to hold."
    ]
    if profile.validation_nodes < _FEW_NODES:
        widest = max(
            share_interval(v.validation_accuracy, profile.validation_nodes).high
            - share_interval(v.validation_accuracy, profile.validation_nodes).low
            for v in profile.variants
        )
        found.append(
            f"Accuracies come from {profile.validation_nodes:,} validation nodes: they can be off by up to about "
            f"{points(50 * widest)} either way."
        )
    if profile.validation_nodes < seeds:
        found.append(
            f"There are fewer validation nodes ({profile.validation_nodes:,}) than a batch of {seeds:,} has, so its "
            "nodes repeat; a batch of distinct nodes may read more rows and take longer."
        )
    fewest = min(variant.latency[size].runs for variant in profile.variants)
    if fewest < _FEW_RUNS:
        found.append(
            f"The p99 of {nodes(seeds)} comes from {fewest} runs, so it is little more than the slowest of them."
        )
    if profile.metric == "f1Micro":
        found.append(
            "Nodes have several labels each, and F1 is no share of nodes: its intervals are approximate, as if every "
            "node were right or wrong as a whole."
        )
    if profile.test_nodes == 0:
        found.append(
            "The graph has no test nodes. Every accuracy is of validation nodes, by which the best epoch was picked, "
            "so it is a little too high; drift cannot be told."
        )
    if len(profile.variants) == 1:
        found.append("There is one variant only, so there is nothing to choose between.")
    return tuple(found)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


# --- summary, tolerances, tiers


def _chosen(within: Within) -> Chosen:
    return Chosen(
        variant=within.point.name,
        accuracy=within.point.accuracy,
        loss_points=100 * within.loss,
        latency_ms=within.point.latency_ms,
        relative_latency=within.relative_latency,
    )


def _summarize(profile: Profile, of_points: Sequence[Point], seeds: int) -> Summary:
    best = _chosen(fastest_within(of_points, 0))
    one_point, fastest = _chosen(fastest_within(of_points, 0.01)), _chosen(_fastest(of_points))
    count = len(of_points)
    text = f"{'One variant is' if count == 1 else f'{count} variants are'} served. {best.variant}"
    if count > 1:
        text += ", the most accurate,"
    text += f" {gets_right(best.accuracy, profile.metric, profile.validation_nodes, 'validation')} and takes "
    text += f"{ms(best.latency_ms)} for {nodes(seeds)}."
    if one_point.variant != best.variant:
        text += f" {_cheaper(one_point)}, the fastest within one point."
    elif count > 1:
        text += " No other variant within one point of it is faster."
    if fastest.variant not in {best.variant, one_point.variant}:
        text += f" {_cheaper(fastest)}, the fastest of all."
    return Summary(says=text, best=best, within_one_point=one_point, fastest=fastest)


def _cheaper(chosen: Chosen) -> str:
    speed = 1 / chosen.relative_latency if chosen.relative_latency > 0 else math.inf
    return (
        f"{chosen.variant} loses {points(chosen.loss_points)} and is {number(speed)} times as fast "
        f"({ms(chosen.latency_ms)})"
    )


def _fastest(of_points: Sequence[Point]) -> Within:
    """The fastest of all."""
    return tiers(of_points)[-1]


def _tolerances(
    of_points: Sequence[Point], permille: Sequence[float], rows_of_variants: Sequence[VariantRow]
) -> Tolerances:
    rows = tuple(
        ToleranceRow(tolerance_points=value / 10, answer=_chosen(fastest_within(of_points, value / 1000)))
        for value in sorted(set(permille))
    )
    found = tuple(
        Tier(tolerance_permille=math.ceil(1000 * within.loss - 1e-6), answer=_chosen(within))
        for within in tiers(of_points)
    )
    return Tolerances(
        says=_says_tolerances(rows), says_tiers=_says_tiers(found, rows_of_variants), rows=rows, tiers=found
    )


def _says_tolerances(rows: Sequence[ToleranceRow]) -> str:
    text = (
        "For each tolerance the fastest variant that loses no more accuracy than that, and its latency beside that of "
        "the "
    )
    text += "most accurate one."
    paying = [row for row in rows if row.answer.relative_latency < 1]
    if not paying:
        return f"{text} No such tolerance makes anything faster."
    first = paying[0]
    return (
        f"{text} Who gives up {points(first.tolerance_points)} gets an answer in "
        f"{percent(first.answer.relative_latency, 0)} of the time, from {first.answer.variant}."
    )


def _says_tiers(found: Sequence[Tier], rows: Sequence[VariantRow]) -> str:
    if len(found) == 1:
        only = found[0].answer.variant
        return f"{only} is both the most accurate and the fastest, so no tolerance buys anything."
    beaten = len(rows) - len(found)
    text = (
        f"The answer changes at {len(found)} tolerances; between them a larger one changes nothing. These are the "
        "choices worth offering."
    )
    if beaten:
        are = "One variant is" if beaten == 1 else f"{beaten} variants are"
        text += f" {are} never the answer: another is as accurate and faster."
    chosen = [tier.answer.variant for tier in found[1:]]
    unsure = [row.name for row in rows if row.name in chosen and row.loss_may_be_chance]
    if unsure:
        text += f" What {names(unsure)} would lose may be chance: more validation nodes would tell."
    return text


# --- figures of the variants


def _says_frontier(profile: Profile, rows: Sequence[VariantRow]) -> str:
    best = min(rows, key=lambda row: row.loss_points)
    text = (
        "Each point is a variant; the line joins those than which no other is both as accurate and faster. Bars are "
        f"95 % intervals: {profile.validation_nodes:,} validation nodes cannot tell the accuracy of {best.name} more "
        f"exactly than {percent(best.validation.low)} to {percent(best.validation.high)}."
    )
    noisy = [row.name for row in rows if row.loss_may_be_chance and row is not best]
    if not noisy:
        return text if len(rows) == 1 else f"{text} All others lose more than chance explains."
    return (
        f"{text} The distance to {names(noisy)} may be chance. All variants were asked about the same nodes, which the "
        "bars leave out of account, so a smaller difference can be real."
    )


def _says_stages(rows: Sequence[VariantRow]) -> str:
    widest = rows[0]
    parts = []
    for size in (widest.sizes[0], widest.sizes[-1]):
        total = size.sample_ms + size.gather_ms + size.compute_ms
        if total <= 0:
            continue
        stages = (("sampling", size.sample_ms), ("gathering", size.gather_ms), ("computing", size.compute_ms))
        shares = [f"{name} {100 * part / total:.0f} %" for name, part in stages]
        parts.append(f"with {nodes(size.seeds)}, {', '.join(shares)}")
    if len(widest.sizes) == 1:
        parts = parts[:1]
    return (
        f"Where the time of a batch goes. Of {widest.name}: {'; '.join(parts)}. Fewer columns shorten gathering and "
        "computing; sampling stays."
    )


def _says_window(rows: Sequence[VariantRow], seeds: int) -> str:
    first = at_size(rows[0], seeds)
    text = (
        "Paper A times a batch from the transfer of features to the end of computing, which leaves sampling out. Here "
        f"gathering is the transfer: {rows[0].name} takes {ms(first.window_ms)} in that window and {ms(first.p50_ms)} "
        "as a request sees it."
    )
    if len(rows) == 1 or first.window_ms <= 0:
        return text
    narrowest = min(rows, key=lambda row: at_size(row, seeds).window_ms)
    last = at_size(narrowest, seeds)
    if narrowest is rows[0]:
        return f"{text} It is the fastest by either."
    return (
        f"{text} By the window {narrowest.name} is {number(first.window_ms / last.window_ms)} times as fast as "
        f"{rows[0].name}, by the whole request {number(first.p50_ms / last.p50_ms)} times."
    )


def _says_costs(rows: Sequence[VariantRow], seeds: int) -> str:
    text = (
        f"Bytes are read from the table for a batch of {nodes(seeds)}, weights are what a variant adds on disk, memory "
        "is weights and the columns of the table that it reads."
    )
    least = min(rows, key=lambda row: at_size(row, seeds).gathered_bytes)
    most = max(rows, key=lambda row: at_size(row, seeds).gathered_bytes)
    if least is most:
        return text
    share = at_size(least, seeds).gathered_bytes / at_size(most, seeds).gathered_bytes
    return (
        f"{text} {least.name} reads {ratio(share)} of the bytes of {most.name}. Variants of one storage share one "
        "table, so their memory does not add up."
    )


def _says_models(subject: Subject, size: int) -> str:
    point = subject.profile.variants[0].latency[size]
    return (
        "What a batch should take by counting bytes and operations: by paper A's formulas as printed, and corrected "
        "(all targets and the nodes' own rows counted, a multiply-add as two operations, all matrices of the "
        f"architecture, and a fixed cost for each stage). Rates are fitted to two variants at {nodes(point.seeds)}; "
        "how far the others are missed says how far a width that was never measured can be predicted."
    )


# --- drift


def _drift(profile: Profile) -> Drift | None:
    tested = [variant for variant in profile.variants if variant.test_accuracy is not None]
    if not tested or profile.test_nodes == 0:
        return None
    rows = tuple(_drift_row(profile, variant, variant.test_accuracy or 0.0) for variant in tested)
    outside = [row for row in rows if row.verdict is not Verdict.WITHIN_CHANCE]
    verdict = Verdict.WITHIN_CHANCE
    # Of twenty that are compared at 95 %, one is outside without a reason.
    if 2 * len(outside) > len(rows):
        middle = sorted(rows, key=lambda row: row.difference_points)[len(rows) // 2]
        verdict = Verdict.SMALL if abs(middle.difference_points) < _SMALL_POINTS else Verdict.DRIFT
    seeds = profile.variants[0].latency[-1].seeds
    return Drift(says=_says_drift(profile, rows, verdict, seeds), verdict=verdict, latency_seeds=seeds, rows=rows)


def _drift_row(profile: Profile, variant: VariantProfile, test: float) -> DriftRow:
    interval = difference_interval(test, profile.test_nodes, variant.validation_accuracy, profile.validation_nodes)
    difference = 100 * (test - variant.validation_accuracy)
    verdict = Verdict.WITHIN_CHANCE
    if not interval.contains(0):
        verdict = Verdict.SMALL if abs(difference) < _SMALL_POINTS else Verdict.DRIFT
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


def _says_drift(profile: Profile, rows: Sequence[DriftRow], verdict: Verdict, seeds: int) -> str:
    row = max(rows, key=lambda r: r.validation)
    text = (
        f"{row.variant} differs by {signed_points(row.difference_points)} points between {profile.validation_nodes:,} "
        f"validation and {profile.test_nodes:,} test nodes (95 % interval {signed_points(row.low_points)} to "
        f"{signed_points(row.high_points)})."
    )
    outside = [r.variant for r in rows if r.verdict is not Verdict.WITHIN_CHANCE]
    match verdict:
        case Verdict.WITHIN_CHANCE if not outside:
            text += (
                " No variant differs by more than chance: what was profiled on validation nodes held on nodes that "
                "had no part in training."
            )
        case Verdict.WITHIN_CHANCE:
            text += (
                f" Most variants differ by no more than chance; {names(outside)} by more, which among {len(rows)} can "
                "be chance too."
            )
        case Verdict.SMALL:
            text += " That is more than chance, and too little to choose differently."
        case Verdict.DRIFT:
            text += (
                f" That is more than chance for {names(outside)}: validation nodes are not like test nodes, so go by "
                "the test figures, and watch accuracy on your own traffic."
            )
    ratios = [r.rows_ratio for r in rows if r.rows_ratio is not None]
    if ratios:
        middle = sorted(ratios)[len(ratios) // 2]
        if abs(middle - 1) > _ROWS_DIFFER:
            more = "more" if middle > 1 else "fewer"
            text += (
                f" Test nodes have {more} neighbours: a batch of {seeds:,} reads {number(middle)} times the rows, so "
                f"expect {'higher' if middle > 1 else 'lower'} latencies than the profile's."
            )
        else:
            text += (
                f" Test nodes read {number(middle)} times the rows of validation nodes, so latencies hold for them too."
            )
    return text


# --- stability


def _stability(subject: Subject) -> Stability:
    made = subject.provenance
    measured = made.stability
    if measured is not None:
        return Stability(says=_says_stability(subject), measured=measured)
    if made.ranking_method == "Random":
        says = (
            "Columns were ranked by chance, so another seed would choose others; what they have in common is what "
            "chance gives."
        )
    elif made.checkpoint is not None:
        says = "Columns were ranked by given weights, of which there is one set, so there is no seed to compare."
    else:
        says = (
            f"Columns were ranked once, by {made.ranking_method}. To see how far the order depends on the seed of the "
            "network, set `spec.variants.pruning.stabilitySeeds` to 2 or more and generate again: so many more "
            "networks are trained."
        )
    return Stability(says=says, measured=None)


def _says_stability(subject: Subject) -> str:
    measured = subject.provenance.stability
    assert measured is not None  # noqa: S101 - the caller looked
    count = len(measured.seeds) + 1
    text = (
        f"{count} networks that differ in their seed alone were ranked by {subject.provenance.ranking_method}. Their "
        f"orders have a rank correlation of {measured.rank_correlation:.2f} (1: the same order, 0: none in common)."
    )
    if not measured.top:
        return f"{text} No variant reads fewer columns, so nothing depends on it."
    narrowest = measured.top[0]
    text += (
        f" Of the {_columns(narrowest.columns)} of the narrowest variant two seeds agree on "
        f"{percent(narrowest.in_common, 0)}; chance would give {percent(narrowest.by_chance, 0)}."
    )
    above = (narrowest.in_common - narrowest.by_chance) / (1 - narrowest.by_chance)
    if above > 2 / 3:
        return f"{text} The choice is the features' rather than the seed's."
    if above > 1 / 3:
        return f"{text} Part of the choice is the seed's: several columns say much the same, or little."
    return f"{text} The choice is mostly the seed's, so another seed may do better or worse: compare several."


def _columns(count: int) -> str:
    return "one column" if count == 1 else f"{count:,} columns"
