"""Turns a profile into a report: its numbers, and the sentences with them. No I/O.

What is said beside each figure of the variants is in `captions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gnnserve_api.domination import says_dominated
from gnnserve_api.errors import InputError
from gnnserve_api.families import CHANGED_GRAPH, STORED_GRAPH, point_of
from gnnserve_api.files.given_weights import says_misfits, says_unchecked
from gnnserve_api.files.profile import LatencyProfile, Profile
from gnnserve_api.files.provenance import Provenance
from gnnserve_api.files.training import says_rising, says_unlearnt
from gnnserve_api.http.live_accuracy import ObservedShare
from gnnserve_api.intervals import difference_interval, share_interval
from gnnserve_api.tiers import Point, Within, frontier, most_accurate, points_of, stated_tiers, tiers
from gnnserve_cli.render import format_bytes, metric_name
from gnnserve_cli.report import captions
from gnnserve_cli.report.data import (
    Accuracy,
    ChosenVariant,
    NewNodesRow,
    Report,
    Says,
    SizeRow,
    Summary,
    Tier,
    ToleranceRow,
    Tolerances,
    VariantRow,
)
from gnnserve_cli.report.drift import compare_splits
from gnnserve_cli.report.facts import learns_nothing
from gnnserve_cli.report.latencies import answer_latencies
from gnnserve_cli.report.performance import fit_models
from gnnserve_cli.report.stability import compare_rankings
from gnnserve_cli.report.stale import tell_stale_layers
from gnnserve_cli.report.subject import ReportSubject, printable_subject
from gnnserve_cli.report.tolerance import fastest_within
from gnnserve_cli.report.words import (
    NO_LOSS_POINTS,
    gets_right,
    items_of,
    ms,
    names,
    nodes,
    nodes_of,
    number,
    percent,
    points,
)

DEFAULT_TOLERANCES_PERMILLE = (0.0, 10.0, 20.0, 50.0, 100.0)
"""The paper's 0, 1, 2, 5 and 10 points (its figure 3)."""
_FEW_ITEMS = 1000
_WIDE_TABLE_BYTES = 2**30
"""Size of the table of x1 from which on the report explains its absence."""
_FEW_RUNS = 100
"""Below it a p99 is about the slowest run."""


def build_report(
    subject: ReportSubject,
    written_by: str,
    seeds: int | None = None,
    latencies_ms: Sequence[float] = (),
    tolerances_permille: Sequence[float] = (),
) -> Report:
    """`seeds`: the batch size of latencies, one that was measured; the largest without it."""
    subject, standing = _answering(printable_subject(subject))
    profile = subject.profile
    size = _size_index(profile, seeds)
    chosen_seeds = profile.variants[0].latency[size].seeds
    of_points = points_of(profile, size)
    rows = _variant_rows(profile, of_points, subject.in_service)
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
        validation_items=profile.validation_items,
        test_items=profile.test_items,
        nodes=subject.nodes,
        features=subject.features,
        classes=subject.classes,
        multi_label=subject.multi_label,
        seeds=chosen_seeds,
        cautions=(*_says_standing(standing), *_cautions(subject, rows, chosen_seeds, size)),
        summary=_summarize(profile, of_points, chosen_seeds),
        variants=rows,
        tolerances=_tolerances(of_points, tolerances_permille or DEFAULT_TOLERANCES_PERMILLE, rows),
        drift=compare_splits(subject),
        stability=compare_rankings(subject),
        models=models,
        latencies=answer_latencies(subject, size, sorted(set(latencies_ms)), fitted),
        says=Says(
            frontier=captions.frontier(profile, rows, most_accurate(of_points).name),
            stages=captions.stages(rows),
            window=captions.window(rows, chosen_seeds),
            costs=captions.costs(rows, chosen_seeds),
            models=captions.models(subject, size, are_fitted=bool(models)),
        ),
        provenance=subject.provenance,
        device=subject.device,
        written_by=written_by,
        search=() if profile.search is None else profile.search.lines(),
        stale_layers=tell_stale_layers(profile),
    )


def _answering(subject: ReportSubject) -> tuple[ReportSubject, Sequence[str]]:
    """The subject with the variants that answer, and the names of the others. InputError: none does."""
    profile = subject.profile.answering(CHANGED_GRAPH if subject.graph_changes else STORED_GRAPH)
    if not profile.variants:
        raise InputError(
            "--with-updates", f"no variant of revision {subject.revision} follows changes of the graph", "leave it out"
        )
    answering = {variant.name for variant in profile.variants}
    standing = [variant.name for variant in subject.profile.variants if variant.name not in answering]
    return replace(subject, profile=profile), standing


def _says_standing(names_of_others: Sequence[str]) -> Iterator[str]:
    if names_of_others:
        hold, answer = ("holds", "answers") if len(names_of_others) == 1 else ("hold", "answer")
        yield (
            f"{names(names_of_others)} {hold} the graph as it was generated, and {answer} nothing while it changes: "
            "what is said here is of the other variants."
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


def _variant_rows(
    profile: Profile, of_points: Sequence[Point], in_service: Mapping[str, ObservedShare]
) -> tuple[VariantRow, ...]:
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
            validation=_accuracy(variant.validation_accuracy, profile.validation_items),
            test=None if variant.test_accuracy is None else _accuracy(variant.test_accuracy, profile.test_items),
            in_service=in_service.get(variant.name),
            loss_points=100 * (best.accuracy - variant.validation_accuracy),
            loss_may_be_chance=difference_interval(
                best.accuracy, profile.validation_items, variant.validation_accuracy, profile.validation_items
            ).contains(0),
            sizes=tuple(_size_row(point) for point in variant.latency),
            new_nodes=tuple(NewNodesRow(point.seeds, point.p50_ms) for point in variant.new_nodes),
            size_bytes=variant.size_bytes,
            memory_bytes=variant.memory_bytes,
            family=variant.family,
            cascade=variant.cascade,
            task_figures=variant.test_figures or variant.validation_figures,
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


def _cautions(subject: ReportSubject, rows: Sequence[VariantRow], seeds: int, size: int) -> tuple[str, ...]:
    profile = subject.profile
    found = [
        f"Latencies were measured on {profile.machine} with {_threads(profile.threads)}, sampling included, queueing "
        "and HTTP not. On another machine only their order is likely to hold."
    ]
    is_chosen = subject.provenance.chosen_factors is not None
    if (advice := says_dominated(profile, subject.features, is_chosen=is_chosen)) is not None:
        found.append(f"{advice[0].upper()}{advice[1:]}")
    if (advice := says_unlearnt(subject.provenance.training)) is not None:
        found.append(f"Little was learnt: {advice}.")
    if (advice := says_rising(subject.provenance.training)) is not None:
        found.append(f"More training would give better variants: {advice}.")
    if (finding := says_unchecked(subject.provenance.assumptions, subject.provenance.compared)) is not None:
        found.append(f"{finding[0].upper()}{finding[1:]}.")
    if (finding := says_misfits(subject.provenance.label_misfits)) is not None:
        found.insert(0, f"{finding[0].upper()}{finding[1:]}.")
    if profile.validation_items < _FEW_ITEMS:
        found.append(_says_few_nodes(profile, rows))
    if any(row.loss_may_be_chance and row.loss_points > NO_LOSS_POINTS for row in rows):
        found.append(
            f"The most accurate of {len(rows)} variants was found by the very {profile.judged.item}s that it is judged "
            "by, so part of its lead may be luck: its accuracy, and what others lose, are likely a little too high."
        )
    if profile.validation_nodes < seeds:
        found.append(
            f"There are fewer {nodes_of('validation', profile)} ({profile.validation_nodes:,}) than a batch of "
            f"{seeds:,} has, so its nodes repeat; a batch of distinct nodes may read more rows and take longer."
        )
    fewest = min(variant.latency[size].runs for variant in profile.variants)
    if fewest < _FEW_RUNS:
        found.append(
            f"The p99 of {nodes(seeds)} comes from {fewest} runs, so it is little more than the slowest of them."
        )
    if profile.metric != "accuracy":
        found.append(_says_approximate(profile))
    if subject.provenance.thresholds:
        found.append(
            "Labels go by thresholds that were chosen on the validation nodes, for each class of each variant. So "
            "accuracies of validation nodes are a little too high, unless the metric is one of rankings; those of test "
            "nodes are not."
        )
    if profile.test_nodes == 0:
        found.append(
            f"The graph has no {items_of('test', profile)}. Every accuracy is of {items_of('validation', profile)}, "
            f"{_part_in_training(subject.provenance)}; drift cannot be told."
        )
    if (missing := _says_wide_tables(subject)) is not None:
        found.append(missing)
    if len(profile.variants) == 1:
        found.append("There is one variant only, so there is nothing to choose between.")
    return tuple(found)


def _says_wide_tables(subject: ReportSubject) -> str | None:
    """A note that the widest variants of sparse features were not written; None: they were."""
    variants = subject.profile.variants
    table_bytes = 4 * subject.nodes * subject.features
    stands_in = any(point_of(variant).stands_for_all_columns for variant in variants) and not any(
        point_of(variant).spans_widths and variant.columns == subject.features for variant in variants
    )
    if not stands_in or table_bytes <= _WIDE_TABLE_BYTES:
        return None
    return (
        f"There is no x1, whose table would take {format_bytes(table_bytes)}: projected computes what it would. "
        "With factor 1 among spec.variants.pruning.factors, spec.variants.pruning.wideTables: Keep writes it."
    )


def _says_few_nodes(profile: Profile, rows: Sequence[VariantRow]) -> str:
    best = min(rows, key=lambda row: (row.loss_points, not row.on_frontier))
    least_sure = max(rows, key=_half_width)
    text = (
        f"Accuracies come from {profile.validation_items:,} {items_of('validation', profile)}: at 95 % confidence that "
        f"of {best.name} is within about {points(_half_width(best))} of the true one"
    )
    if _half_width(least_sure) - _half_width(best) < NO_LOSS_POINTS:
        return f"{text}."
    return f"{text}, that of {least_sure.name} within {points(_half_width(least_sure))}."


def _half_width(row: VariantRow) -> float:
    return 50 * (row.validation.high - row.validation.low)


def _part_in_training(made: Provenance) -> str:
    """Sentence about the part that validation nodes had in training."""
    if learns_nothing(made):
        return "whose links embeddings were computed without"
    if made.has_given_weights:
        return "and whether these had a part in training the given weights is not known"
    seen = " and whose features and edges it saw" if made.scope == "Transductive" else ""
    return f"by which training picked its best epoch{seen}, so it is a little too high"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


# --- summary, tolerances, tiers


def _says_approximate(profile: Profile) -> str:
    name, item = metric_name(profile.metric), profile.judged.item
    is_no_share = (
        "Nodes have several labels each, and F1 is no share of nodes"
        if profile.metric == "f1Micro"
        else f"{name[0].upper()}{name[1:]} is no share of {item}s"
    )
    return f"{is_no_share}: its intervals are approximate, as if every {item} were right or wrong as a whole."


def _chosen(within: Within) -> ChosenVariant:
    return ChosenVariant(
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
    text += f" {gets_right(best.accuracy, profile)} and takes "
    text += f"{ms(best.latency_ms)} for {nodes(seeds)}."
    if one_point.variant != best.variant:
        text += f" {_cheaper(one_point)}, the fastest within one point."
    elif count > 1:
        text += " No other variant within one point of it is faster."
    if fastest.variant not in {best.variant, one_point.variant}:
        text += f" {_cheaper(fastest)}, the fastest of all."
    headline = _headline(best, one_point, fastest, profile, seeds)
    return Summary(headline=headline, says=text, best=best, within_one_point=one_point, fastest=fastest)


def _headline(
    best: ChosenVariant, one_point: ChosenVariant, fastest: ChosenVariant, profile: Profile, seeds: int
) -> str:
    text = f"{best.variant} {gets_right(best.accuracy, profile)} and answers {nodes(seeds)} in {ms(best.latency_ms)}"
    cheap, place = (one_point, " within one point") if one_point.variant != best.variant else (fastest, "")
    if cheap.variant == best.variant:
        return f"{text}."
    lost = points(cheap.loss_points)
    return f"{text}; {cheap.variant}, the fastest{place}, takes {ms(cheap.latency_ms)} and loses {lost}."


def _cheaper(chosen: ChosenVariant) -> str:
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
    stated = tuple(Tier(permille, _chosen(within)) for permille, within in stated_tiers(of_points).items())
    told = {tier.answer.variant for tier in stated}
    merged = [within.point.name for within in tiers(of_points) if within.point.name not in told]
    return Tolerances(
        says=_says_tolerances(rows),
        says_tiers=_says_tiers(stated, merged, rows_of_variants),
        rows=rows,
        tiers=stated,
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
        f"{text} Who allows {points(first.tolerance_points)} gets an answer in "
        f"{percent(first.answer.relative_latency, 0)} of the time, from {first.answer.variant}."
    )


def _says_tiers(found: Sequence[Tier], merged: Sequence[str], rows: Sequence[VariantRow]) -> str:
    if len(found) == 1 and not merged:
        only = found[0].answer.variant
        return f"{only} is both the most accurate and the fastest, so no tolerance buys anything."
    beaten = len(rows) - len(found) - len(merged)
    text = (
        f"The answer changes at {len(found)} tolerances; between them a larger one changes nothing. These are the "
        "choices worth offering."
    )
    if merged:
        less = "loses" if len(merged) == 1 else "lose"
        text += f" {names(merged)} {less} less than a permille less than a faster one, which answers instead."
    if beaten:
        are = "One variant is" if beaten == 1 else f"{beaten} variants are"
        text += f" {are} never the answer: another is as accurate and faster."
    chosen = [tier.answer.variant for tier in found[1:]]
    unsure = [row.name for row in rows if row.name in chosen and row.loss_may_be_chance]
    if unsure:
        text += f" What {names(unsure)} would lose may be chance: more validation {rows[0].judged.item}s would tell."
    return text
