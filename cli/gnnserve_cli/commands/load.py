"""`gnnserve load`: puts load on a server and reports its answers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from gnnserve_api.errors import InputError
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import VariantsAnswer
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Route
from gnnserve_cli.client import fetch_nodes, fetch_route, fetch_variants, open_url, read_access, stated_objective
from gnnserve_cli.commands.options import (
    CaFile,
    Json,
    ObjectiveMs,
    Priority,
    TokenFile,
    TolerancePermille,
    Url,
    between,
)
from gnnserve_cli.exits import ExitCode, exit_code_of_status
from gnnserve_cli.loadgen.record import LoadRecord
from gnnserve_cli.loadgen.report import facts_of, slices_table
from gnnserve_cli.loadgen.requests import Sizes, build_predictions
from gnnserve_cli.loadgen.scenario import Scenario, build_arrivals, build_curve
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import Accuracies, LoadPlan, LoadReport, StatedObjective, summarize
from gnnserve_cli.loadgen.sweep import parse_sweep, sweep_table
from gnnserve_cli.loadgen.unseen import Unseen, build_unseen
from gnnserve_cli.render import facts_table, output, print_json, put, round_floats
from gnnserve_cli.told_tasks import told_task
from gnnserve_client.address import Endpoint

CLOSED_CONNECTIONS = 8
OPEN_CONNECTIONS = 128
MOST_CONNECTIONS = 4096
MOST_REQUESTS = 10_000_000
"""Most requests of an open-loop run: each is kept until the report."""
PAGE_NODES = 1000
NEW_EDGES = 10
"""Edges of each new node where nothing is said."""
MOST_PAGES = 100
"""Most pages of node ids that are fetched before a run, where the graph has ids of its own."""
_LOAD = "Load over time"


def load(
    url: Url,
    *,
    scenario: Annotated[
        Scenario | None,
        typer.Option(
            rich_help_panel=_LOAD,
            help="Let the rate change; --rate is its peak R. step: R/4, R, R/4, a third of the time each. "
            "flash: R/12, and after a third of the time a crowd: R within 1/150 of the duration, decaying with a time "
            "constant of 1/20 of it. diurnal: one slow wave from R/17.5 to R and back, arrivals bursty (CV² 2). "
            "bursts: R for about 1 s, R/10 for about 2 s.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            callback=between(0.001, 1_000_000),
            rich_help_panel=_LOAD,
            help="Requests per second; with --scenario, the peak. Unset: a closed loop.",
        ),
    ] = None,
    arrivals: Annotated[
        Arrivals | None,
        typer.Option(
            metavar="GAPS",
            rich_help_panel=_LOAD,
            help="How requests of a constant --rate arrive: poisson or fixed. Unset: poisson.",
        ),
    ] = None,
    duration: Annotated[
        float, typer.Option(callback=between(0.01, 86_400), rich_help_panel=_LOAD, help="Seconds of load.")
    ] = 10.0,
    seeds_per_request: Annotated[
        int,
        typer.Option(callback=between(1, 1_000_000), rich_help_panel=_LOAD, help="Node ids in each request."),
    ] = 1,
    sizes: Annotated[
        Sizes,
        typer.Option(
            metavar="SIZES",
            rich_help_panel=_LOAD,
            help="fixed: every request has --seeds-per-request ids. lognormal: that many on average (σ 0.8, cut at 1 "
            "and at 10.7 times the mean).",
        ),
    ] = Sizes.FIXED,
    new_nodes: Annotated[
        int,
        typer.Option(
            callback=between(0, 65_536),
            rich_help_panel=_LOAD,
            help="Ask for nodes that the graph does not have: each request brings that many, with random features.",
        ),
    ] = 0,
    new_edges: Annotated[
        int | None,
        typer.Option(
            callback=between(0, 65_536),
            rich_help_panel=_LOAD,
            help=f"Edges of each new node, from random nodes of the graph. Unset: {NEW_EDGES}.",
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            callback=between(0, 100),
            rich_help_panel=_LOAD,
            help="Most times that a refused request is sent again, after its Retry-After.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(rich_help_panel=_LOAD, help="Seed of node ids, sizes and arrivals.")] = 0,
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Have this variant answer, whatever routing calls for.", show_default=False),
    ] = None,
    priority: Priority = None,
    latency_ms: ObjectiveMs = None,
    tolerance_permille: TolerancePermille = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            callback=between(1, MOST_CONNECTIONS),
            help=f"Connections. Unset: {CLOSED_CONNECTIONS}; with --rate {OPEN_CONNECTIONS}, or as many as twice the "
            "requests that come within the objective.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Closed loops one after the other, of --duration each, with that many connections: 1,2,4,...,64.",
            show_default=False,
        ),
    ] = None,
    binary: Annotated[
        bool, typer.Option("--binary", metavar="", help="Send and receive arrays instead of JSON: ids in, scores out.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(callback=between(0.01, 3600), help="Seconds to wait for one answer.")
    ] = 10.0,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Put load on a running server and measure its answers.

    Without --rate, a closed loop: each connection asks again once answered.
    This finds what the server can do.

    With --rate, an open loop: requests are due on a schedule, whether or not
    the server keeps up, and latency counts from when each was due.
    This finds what clients would see.

    With --scenario, the rate changes during the run. This finds what clients
    would see while it rises and falls.

    With --sweep, closed loops with ever more connections. This finds where the
    plateau is, and where the time goes.
    """
    # Imported here: asyncio and the HTTP parser, which the other commands start without.
    from gnnserve_cli.loadgen.generator import generate_load  # noqa: PLC0415

    concurrencies = _concurrencies(sweep, rate, concurrency)
    if rate is None:
        _refuse_without_rate(scenario, arrivals, retries)
    if scenario is not None and arrivals is not None:
        raise InputError("--arrivals", "a scenario has arrivals of its own", "leave out --arrivals or --scenario")
    _check_new(new_nodes, new_edges, seeds_per_request, sizes)
    schedule = None if rate is None else _build_schedule(scenario, arrivals, rate, duration, seed)
    endpoint = open_url(url, read_access(token_file, ca_file))
    served = fetch_variants(endpoint)
    told_task(served).check_load(served.service)
    known = [profiled.name for profiled in served.profile.variants]
    if variant is not None and variant not in known:
        raise InputError("--variant", f"there is no {variant!r}", f"choose from {', '.join(known)}")
    asked = stated_objective(latency_ms, tolerance_permille)
    nodes = nodes_to_ask_for(endpoint, served, binary=binary)
    route = fetch_route(endpoint)
    _note_canary(route)
    objective = _objective_in_effect(route, asked)
    unseen = Unseen(new_nodes, NEW_EDGES if new_edges is None else new_edges, served.features) if new_nodes else None
    requests = (
        build_predictions(
            endpoint,
            nodes,
            seeds_per_request,
            asked,
            seed,
            binary=binary,
            sizes=sizes,
            variant=variant,
            priority=priority,
        )
        if unseen is None
        else build_unseen(endpoint, nodes, unseen, asked, seed, binary=binary, variant=variant, priority=priority)
    )
    plan = LoadPlan(
        connections=concurrency or _connections(rate, objective),
        duration_s=duration,
        seeds_per_request=new_nodes or seeds_per_request,
        rate_per_s=rate,
        scenario=scenario,
        sizes=sizes,
        binary=binary,
        retries=retries,
        objective=objective,
        new_nodes=new_nodes,
        new_edges=0 if unseen is None else unseen.edges,
    )
    accuracies = accuracies_of(served.profile)
    if concurrencies:
        reports = []
        for point in (dataclasses.replace(plan, connections=number) for number in concurrencies):
            record = generate_load(endpoint, requests, point, None, timeout)
            reports.append(summarize(point, record, accuracies))
            if record.interrupted_s is not None:
                break
        _show_sweep(reports, as_json=as_json)
        _exit_if_interrupted(record)
        for report in reports:
            _exit_without_answers(report)
        return
    record = generate_load(endpoint, requests, plan, schedule, timeout)
    report = summarize(plan, record, accuracies)
    if as_json:
        print_json(round_floats(msgspec.to_builtins(report)))
    else:
        put(output(), facts_table(facts_of(report)))
        if report.slices:
            put(output(), "", slices_table(report))
        put(output(), *(f"warning: {warning}" for warning in report.warnings))
    _exit_if_interrupted(record)
    _exit_without_answers(report)


def _concurrencies(sweep: str | None, rate: float | None, concurrency: int | None) -> tuple[int, ...]:
    if sweep is None:
        return ()
    if rate is not None or concurrency is not None:
        option = "--concurrency" if rate is None else "--rate"
        raise InputError(option, "a sweep is of closed loops with the connections that it lists", "leave it out")
    return parse_sweep(sweep, MOST_CONNECTIONS)


def _show_sweep(reports: list[LoadReport], *, as_json: bool) -> None:
    if as_json:
        print_json(round_floats({"points": msgspec.to_builtins(reports)}))
    else:
        put(output(), sweep_table(reports), *(f"warning: {text}" for report in reports for text in report.warnings))


def _exit_if_interrupted(record: LoadRecord) -> None:
    """What was measured has been printed; scripts learn that it is not all."""
    if record.interrupted_s is not None:
        raise typer.Exit(ExitCode.INTERRUPTED)


def nodes_to_ask_for(endpoint: Endpoint, served: VariantsAnswer, *, binary: bool) -> int | list[int | str]:
    """Node ids for `build_predictions`: the number of nodes where ids are positions, otherwise a list.

    For a large graph the list has evenly spread pages of ids instead of all of them.
    """
    if served.node_ids is NodeIdKind.POSITIONS:
        return served.nodes
    if binary and served.node_ids is NodeIdKind.STRINGS:
        raise InputError("--binary", "the node ids of this graph are texts, which are no array", "leave it out")
    pages = min(MOST_PAGES, math.ceil(served.nodes / PAGE_NODES))
    step = max(PAGE_NODES, served.nodes // pages)
    return [id_ for page in range(pages) for id_ in fetch_nodes(endpoint, page * step, PAGE_NODES).nodes]


def _check_new(new_nodes: int, new_edges: int | None, seeds_per_request: int, sizes: Sizes) -> None:
    if new_edges is not None and not new_nodes:
        raise InputError("--new-edges", "there are no new nodes to have edges", "give --new-nodes too")
    if new_nodes and (seeds_per_request > 1 or sizes is not Sizes.FIXED):
        option = "--seeds-per-request" if seeds_per_request > 1 else "--sizes"
        raise InputError(option, "requests with new nodes ask for these", "leave it out, or --new-nodes")


def _refuse_without_rate(scenario: Scenario | None, arrivals: Arrivals | None, retries: int) -> None:
    for option, given in (("--scenario", scenario), ("--arrivals", arrivals), ("--retries", retries)):
        if given:
            problem = "applies to an open loop, and without --rate the loop is closed"
            raise InputError(option, problem, "give --rate too")


def _build_schedule(
    scenario: Scenario | None, arrivals: Arrivals | None, rate: float, duration: float, seed: int
) -> Iterator[float]:
    """The schedule, checked before any request is sent: it must have requests, and not too many."""
    if rate * duration > MOST_REQUESTS:
        raise InputError("--rate", f"{rate:,.10g}/s for {duration:,.10g} s are more than {MOST_REQUESTS:,} requests",
                         "lower --rate or --duration")  # fmt: skip
    if scenario is None:
        schedule = build_schedule(arrivals or Arrivals.POISSON, rate, duration, seed)
    else:
        schedule = build_arrivals(build_curve(scenario, rate, duration, seed), seed)
    first = next(schedule, None)
    if first is None:
        # Fixed arrivals begin at once, and a scenario has arrivals of its own.
        or_fixed = ", or give --arrivals fixed" if scenario is None else ""
        raise InputError("--rate", f"no request is due at {rate:,.10g}/s within {duration:,.10g} s",
                         f"raise --rate or --duration{or_fixed}")  # fmt: skip
    return itertools.chain([first], schedule)


def _connections(rate: float | None, objective: StatedObjective | None) -> int:
    if rate is None:
        return CLOSED_CONNECTIONS
    within_objective = 0.0 if objective is None or objective.latency_ms is None else rate * objective.latency_ms / 1000
    return min(MOST_CONNECTIONS, max(OPEN_CONNECTIONS, math.ceil(2 * within_objective)))


def _note_canary(route: Route) -> None:
    """Answers of two revisions are counted by the names of their variants, which may be the same."""
    second = route.canary
    if isinstance(second, msgspec.UnsetType) or not (second.answers and second.percent):
        return
    typer.echo(
        f"note: revision {second.revision} answers {second.percent} % of the requests (spec.routing.canary): its "
        f"answers are counted under its variants' names, and accuracies are those of revision {route.revision}",
        err=True,
    )


def _objective_in_effect(route: Route, asked: Objective | None) -> StatedObjective | None:
    objective = asked or route.objective
    if objective.is_empty():
        return None
    return StatedObjective(
        objective.latency_ms, objective.accuracy_tolerance_permille, "service" if asked is None else "requests"
    )


def accuracies_of(profile: Profile) -> Accuracies:
    """Accuracies on the test split, unless a variant has none."""
    tested = {variant.name: variant.test_accuracy for variant in profile.variants if variant.test_accuracy is not None}
    if len(tested) == len(profile.variants):
        return Accuracies("test", {name: 100 * accuracy for name, accuracy in tested.items()})
    return Accuracies("validation", {variant.name: 100 * variant.validation_accuracy for variant in profile.variants})


def _exit_without_answers(report: LoadReport) -> None:
    """End with the exit code of a run without answers, by the most frequent reason."""
    if report.answers or not report.requests:
        return
    if not report.statuses:
        raise typer.Exit(ExitCode.RESOURCE)
    raise typer.Exit(exit_code_of_status(int(max(report.statuses, key=report.statuses.__getitem__))))
