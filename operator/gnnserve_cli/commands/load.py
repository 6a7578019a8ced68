"""`gnnserve load`: asks a server as hard as told, and says what came back."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from gnnserve_api.errors import InputError
from gnnserve_cli.client import fetch_variants, parse_url, stated_objective
from gnnserve_cli.commands.options import Json, LatencyMs, TolerancePermille, Url, between
from gnnserve_cli.exits import ExitCode, exit_code_of_status
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadReport, Percentiles, Plan, summarize
from gnnserve_cli.render import facts_table, format_ms, output, print_json, put, round_floats

CLOSED_CONNECTIONS = 8
OPEN_CONNECTIONS = 128
"""Enough that a request which is due finds a free one, as long as the server keeps up."""
MOST_REQUESTS = 10_000_000
"""Of one open-loop run: each is remembered until the report."""


def load(
    url: Url,
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(
            callback=between(1, 4096),
            help=f"Connections. Unset: {CLOSED_CONNECTIONS}, or {OPEN_CONNECTIONS} with --rate.",
        ),
    ] = None,
    duration: Annotated[float, typer.Option(callback=between(0.01, 86_400), help="Seconds of load.")] = 10.0,
    seeds_per_request: Annotated[
        int, typer.Option(callback=between(1, 1_000_000), help="Node ids in each request.")
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option(callback=between(0.001, 1_000_000), help="Requests per second. Unset: a closed loop."),
    ] = None,
    arrivals: Annotated[
        Arrivals, typer.Option(metavar="GAPS", help="Requests of --rate come as poisson or fixed.")
    ] = Arrivals.POISSON,
    latency_ms: LatencyMs = None,
    tolerance_permille: TolerancePermille = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Send and receive arrays instead of JSON: ids in, scores out.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of node ids and arrivals.")] = 0,
    timeout: Annotated[
        float, typer.Option(callback=between(0.01, 3600), help="Seconds to wait for one answer.")
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Put load on a running server and measure its answers.

    Without --rate, a closed loop: each connection asks again once answered.
    This finds what the server can do.

    With --rate, an open loop: requests are due on a schedule, whether or not
    the server keeps up, and latency counts from when each was due.
    This finds what clients would see.
    """
    # Imported here: asyncio and the HTTP parser, which the other commands start without.
    from gnnserve_cli.loadgen.generator import generate_load  # noqa: PLC0415
    from gnnserve_cli.loadgen.requests import build_predictions  # noqa: PLC0415

    if rate is not None and rate * duration > MOST_REQUESTS:
        raise InputError("--rate", f"{rate:,.10g}/s for {duration:,.10g} s are more than {MOST_REQUESTS:,} requests",
                         "lower --rate or --duration")  # fmt: skip
    if rate is not None and next(build_schedule(arrivals, rate, duration, seed), None) is None:
        raise InputError("--rate", f"no request is due at {rate:,.10g}/s within {duration:,.10g} s",
                         "raise --rate or --duration, or give --arrivals fixed")  # fmt: skip
    endpoint = parse_url(url)
    objective = stated_objective(latency_ms, tolerance_permille)
    nodes = fetch_variants(endpoint).nodes
    requests = build_predictions(endpoint, nodes, seeds_per_request, objective, seed, binary=binary)
    connections = concurrency or (CLOSED_CONNECTIONS if rate is None else OPEN_CONNECTIONS)
    schedule = None if rate is None else build_schedule(arrivals, rate, duration, seed)
    plan = Plan(connections, duration, seeds_per_request, rate)
    report = summarize(plan, generate_load(endpoint, requests, plan, schedule, timeout))
    if as_json:
        print_json(round_floats(msgspec.to_builtins(report)))
    else:
        put(output(), facts_table(_facts(report)), *(f"warning: {warning}" for warning in report.warnings))
    if report.requests and not report.answers:
        raise typer.Exit(_exit_code_without_answers(report))


def _exit_code_without_answers(report: LoadReport) -> ExitCode:
    """A run in which nobody was served has failed, for the reason met most often."""
    if not report.statuses:
        return ExitCode.RESOURCE
    return exit_code_of_status(int(max(report.statuses, key=report.statuses.__getitem__)))


def _facts(report: LoadReport) -> list[tuple[str, str]]:
    size = f"connections: {report.connections:,}, seeds per request: {report.seeds_per_request:,}"
    loop = "closed" if report.offered_per_second is None else f"open, {report.offered_per_second:,.10g} requests/s"
    latency_from = "sent to answered" if report.mode == "closed" else "due to answered"
    facts = [
        ("loop", f"{loop}; {size}"),
        ("requests", f"{report.requests:,} in {report.duration_s:,.2f} s"),
        ("answers", f"{report.answers:,}: {report.answers_per_second:,.1f}/s, {report.seeds_per_second:,.1f} seeds/s"),
        ("latency ms", f"{_format(report.latency_ms)}  ({latency_from})"),
    ]
    if report.mode == "open":
        facts.append(("own lag ms", f"{_format(report.lag_ms)}  (due to sent)"))
    if report.variants:
        facts.append(("variants", ", ".join(f"{name} {share:.1%}" for name, share in report.variants.items())))
    if report.objective_met_share is not None:
        facts.append(("objective met", f"{report.objective_met_share:.1%}"))
    facts.append(("statuses", _counts(report.statuses)))
    if report.errors:
        facts.append(("errors", _counts(report.errors)))
    return facts


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items()) or "none"


def _format(times: Percentiles | None) -> str:
    if times is None:
        return "none"
    named = {"p50": times.p50, "p90": times.p90, "p99": times.p99, "max": times.max}
    return "  ".join(f"{name} {format_ms(value)}" for name, value in named.items())
