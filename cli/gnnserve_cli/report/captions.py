"""Captions of the figures of variants in a report, with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.families import point_of
from gnnserve_api.files.profile import Profile
from gnnserve_cli.report.data import VariantRow, at_size
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.words import NO_LOSS_POINTS, items_of, ms, names, nodes, number, percent, ratio


def frontier(profile: Profile, rows: Sequence[VariantRow], most_accurate_name: str) -> str:
    best = next(row for row in rows if row.name == most_accurate_name)
    text = (
        "Each point is a variant; the line joins those than which no other is both as accurate and faster. Bars are "
        f"95 % intervals: {profile.validation_items:,} {items_of('validation', profile)} cannot tell the accuracy of "
        f"{best.name} more exactly than {percent(best.validation.low)} to {percent(best.validation.high)}."
    )
    equal = [row.name for row in rows if row.loss_points <= NO_LOSS_POINTS and row is not best]
    if equal:
        text += f" {names(equal)} {'is' if len(equal) == 1 else 'are'} exactly as accurate."
    noisy = [row.name for row in rows if row.loss_may_be_chance and row.loss_points > NO_LOSS_POINTS]
    if not noisy:
        return text if len(rows) == 1 + len(equal) else f"{text} All others lose more than chance explains."
    return (
        f"{text} The distance to {names(noisy)} may be chance. All variants were judged by the same "
        f"{profile.judged.item}s, which the "
        "bars leave out of account, so a smaller difference can be real."
    )


def stages(rows: Sequence[VariantRow]) -> str:
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
    text = f"Where the time of a batch goes. Of {widest.name}: {'; '.join(parts)}."
    alike = [row for row in rows if row.storage is widest.storage and point_of(row).spans_widths]
    narrowest = min(alike, key=lambda row: row.columns, default=widest)
    if narrowest.columns >= widest.columns:
        return text
    first, last = widest.sizes[-1], narrowest.sizes[-1]
    return (
        f"{text} From {widest.columns:,} columns to {narrowest.columns:,}, with {nodes(first.seeds)}, gathering goes "
        f"from {ms(first.gather_ms)} to {ms(last.gather_ms)} and computing from {ms(first.compute_ms)} to "
        f"{ms(last.compute_ms)}; sampling does not depend on them."
    )


def window(rows: Sequence[VariantRow], seeds: int) -> str:
    first = at_size(rows[0], seeds)
    text = (
        "The paper times a batch from the transfer of features to the end of computing, which leaves sampling out. "
        f"Here gathering is the transfer: {rows[0].name} takes {ms(first.window_ms)} in that window and "
        f"{ms(first.p50_ms)} as a request sees it."
    )
    if len(rows) == 1 or first.window_ms <= 0:
        return text
    narrowest = min(rows, key=lambda row: at_size(row, seeds).window_ms)
    last = at_size(narrowest, seeds)
    if narrowest is rows[0]:
        quickest = min(rows, key=lambda row: at_size(row, seeds).p50_ms)
        if quickest is rows[0]:
            return f"{text} It is the fastest by either."
        return (
            f"{text} It is the fastest by the window; by the whole request {quickest.name} is, with "
            f"{ms(at_size(quickest, seeds).p50_ms)}."
        )
    return (
        f"{text} By the window {narrowest.name} is {number(first.window_ms / last.window_ms)} times as fast as "
        f"{rows[0].name}, by the whole request {number(first.p50_ms / last.p50_ms)} times."
    )


def costs(rows: Sequence[VariantRow], seeds: int) -> str:
    text = (
        f"Bytes are read from the table for a batch of {nodes(seeds)}, weights are the file of a variant's network, "
        "memory is weights and the columns of the table that it reads."
    )
    if any(point_of(row).stores_product for row in rows):
        text += (
            " Variants that store a layer's product add tables of their own on disk, which are no part of the weights."
        )
    for row in rows:
        if row.cascade is not None:
            text += (
                f" {row.name} has the memory of {row.cascade.first} and of {row.cascade.then}, which answered about "
                f"{percent(row.cascade.passed_on)} of the validation {row.judged.item}s."
            )
    least = min(rows, key=lambda row: at_size(row, seeds).gathered_bytes)
    most = max(rows, key=lambda row: at_size(row, seeds).gathered_bytes)
    if least is most:
        return text
    share = at_size(least, seeds).gathered_bytes / at_size(most, seeds).gathered_bytes
    return (
        f"{text} {least.name} reads {ratio(share)} of the bytes of {most.name}. Variants may share a table, and "
        "then their memory does not add up."
    )


def models(subject: ReportSubject, size: int, *, are_fitted: bool) -> str:
    if not are_fitted:
        return "There are not two widths of one storage, from which a model could have its rates."
    point = subject.profile.variants[0].latency[size]
    return (
        "What a batch should take by counting bytes and operations: all targets and the nodes' own rows, a "
        "multiply-add as two operations, all matrices of the architecture, and a fixed cost for each stage. Rates come "
        "from two variants of a storage at "
        f"{nodes(point.seeds)}; how far the others are missed says how far a width that was never measured can be "
        "predicted."
    )
