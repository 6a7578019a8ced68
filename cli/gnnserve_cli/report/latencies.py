"""Finds which variants, and which widths that were never trained, meet a latency."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnserve_api.files.profile import Profile
from gnnserve_api.tiers import Point, most_accurate
from gnnserve_api.variants import Storage
from gnnserve_cli.report.data import Curve, Latencies, LatencyAnswer, WidthAnswer
from gnnserve_cli.report.performance import FittedModel, widths_by_storage
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.tolerance import Width, WidthCurve, factor_for
from gnnserve_cli.report.words import ms, names, nodes, number

_ROUND = (1.0, 2.0, 5.0)


def answer_latencies(
    subject: ReportSubject, size: int, wanted_ms: Sequence[float], fitted: dict[Storage, FittedModel]
) -> Latencies:
    curves = {
        storage: WidthCurve([Width(v.columns, v.latency[size].p50_ms) for v in pruned])
        for storage, pruned in widths_by_storage(subject.profile).items()
        if len({variant.columns for variant in pruned}) > 1
    }
    seeds = subject.profile.variants[0].latency[size].seeds
    answers = tuple(
        _answer(subject, size, latency_ms, curves, fitted)
        for latency_ms in wanted_ms or _round_latencies(subject, size)
    )
    told = tuple(_curve(storage, curve) for storage, curve in curves.items())
    tail = subject.profile.tail_ratio(size)
    return Latencies(says=_says_curves(told, seeds, tail), tail_ratio=tail, curves=told, answers=answers)


def _answer(
    subject: ReportSubject,
    size: int,
    latency_ms: float,
    curves: dict[Storage, WidthCurve],
    fitted: dict[Storage, FittedModel],
) -> LatencyAnswer:
    profile = subject.profile
    tail = profile.tail_ratio(size)
    by_median = _most_accurate_within(profile, size, latency_ms)
    by_p99 = _most_accurate_within(profile, size, latency_ms / tail)
    widths = []
    for storage, curve in curves.items():
        found = curve.columns_within(latency_ms)
        capped = found is not None and found.capped and found.columns < subject.features
        model = fitted.get(storage)
        model_columns, model_capped = model.columns_within(latency_ms) if model else (None, False)
        widths.append(
            WidthAnswer(
                storage=storage,
                columns=found.columns if found else None,
                factor=factor_for(subject.features, found.columns) if found and not capped else None,
                extrapolated=found.extrapolated if found else False,
                model_columns=model_columns,
                capped=capped,
                model_capped=model_capped,
            )
        )
    seeds = profile.variants[0].latency[size].seeds
    return LatencyAnswer(
        latency_ms=latency_ms,
        says=_says_answer(latency_ms, seeds, by_median, by_p99, widths),
        by_median=by_median,
        by_p99=by_p99,
        widths=tuple(widths),
    )


def _most_accurate_within(profile: Profile, size: int, latency_ms: float) -> str | None:
    fitting = [
        Point(v.name, v.validation_accuracy, v.latency[size].p50_ms)
        for v in profile.variants
        if v.latency[size].p50_ms <= latency_ms
    ]
    return most_accurate(fitting).name if fitting else None


def _says_answer(
    latency_ms: float, seeds: int, by_median: str | None, by_p99: str | None, widths: Sequence[WidthAnswer]
) -> str:
    if by_median is None:
        text = "no variant answers in time, even by its median"
    elif by_p99 is None:
        text = f"{by_median} is the most accurate by its median; by p99 no variant is in time"
    elif by_p99 == by_median:
        text = f"{by_median} is the most accurate, by its median and by p99"
    else:
        text = f"{by_median} is the most accurate by its median, {by_p99} by p99"
    by_width = [_says_width(answer, with_storage=len(widths) > 1) for answer in widths]
    told = "; ".join([text, *by_width])
    return f"Within {ms(latency_ms)} for {nodes(seeds)}: {told}."


def _says_width(answer: WidthAnswer, *, with_storage: bool) -> str:
    where = f"in {answer.storage} " if with_storage else ""
    if answer.columns is None:
        return f"{where}not even one column would do"
    guess = ", beyond what was measured" if answer.extrapolated else ""
    columns = "1 column" if answer.columns == 1 else f"{answer.columns:,} columns"
    if answer.capped or answer.factor is None:
        return f"{where}{columns} fit, as wide as was measured; more may fit"
    return f"{where}up to {columns} fit (k = {answer.factor:,}{guess})"


def _curve(storage: Storage, curve: WidthCurve) -> Curve:
    errors = [abs(error) for _, error in curve.left_out_errors()]
    return Curve(
        storage=storage,
        fixed_ms=curve.affine.fixed_ms,
        per_column_us=1e3 * curve.affine.per_column_ms,
        worst_left_out_percent=100 * max(errors) if errors else None,
    )


def _says_curves(curves: Sequence[Curve], seeds: int, tail: float) -> str:
    by_p99 = (
        f"By p99 a variant is taken to need its median times the typical p99/median, {number(tail)}, as routing takes "
        "it; its own p99 may differ."
    )
    if not curves:
        return f"There are not two widths of one storage, so no width can be told from a latency. {by_p99}"
    parts = [
        f"about {ms(max(0.0, curve.fixed_ms))} and {ms(curve.per_column_us / 1000)} for each column from tables of "
        f"{curve.storage}"
        for curve in curves
    ]
    text = f"A batch of {nodes(seeds)} takes {names(parts)}."
    errors = [curve.worst_left_out_percent for curve in curves if curve.worst_left_out_percent is not None]
    if errors:
        text += f" A measured variant that is predicted from the others is missed by {max(errors):.0f} % at most."
    return f"{text} So a width can be found for a latency before it is trained; its accuracy cannot. {by_p99}"


def _round_latencies(subject: ReportSubject, size: int) -> tuple[float, ...]:
    """Latencies for a report that was asked for none: 1, 2 and 5 times powers of ten between the fastest and the
    slowest, three at most."""
    times = [variant.latency[size].p50_ms for variant in subject.profile.variants]
    fastest, slowest = min(times), max(times)
    between = [
        factor * 10.0**power
        for power in range(-4, 7)
        for factor in _ROUND
        if fastest <= factor * 10.0**power <= slowest
    ]
    if not between:
        return (_rounded_up((fastest + slowest) / 2),)
    return tuple(between[-3:])


def _rounded_up(latency_ms: float) -> float:
    """The latency rounded up to two digits: what takes 3.63 ms is in time for 3.7 and not for 3.6."""
    step = 10.0 ** (math.floor(math.log10(latency_ms)) - 1)
    up = float(f"{math.ceil(latency_ms / step - 1e-9) * step:.2g}")
    return up if up >= latency_ms else latency_ms
