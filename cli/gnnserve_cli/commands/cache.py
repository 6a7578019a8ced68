"""`gnnserve cache simulate`: the hit rate of each cache policy on a graph, without a GPU."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot, between
from gnnserve_cli.commands.report import check_page, write_page

if TYPE_CHECKING:
    from gnnserve_cli.cache_simulation import SimulationFound, TraceFound
    from gnnserve_worker.caching.simulation.simulate import NodeWeights
    from gnnserve_worker.caching.simulation.traces import Trace, TraceSettings
    from gnnserve_worker.graph.store import Graph
    from gnnserve_worker.progress import ProgressListener

_WINDOWS = 100
"""Most points drawn per curve."""
_RECOVERY_WINDOWS = 40
"""Windows between two moves, over which the recovery of the hit rate is measured."""
_TRACE_PANEL, _CACHE_PANEL = "Traces", "Caches"


def _each_percent(values: list[float] | None) -> list[float]:
    check = between(0.001, 100)
    return [check(value) for value in values or []]


def simulate(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A manifest, a repository folder, an .npz file, a published graph's name, or a synthetic shape: "
            "flickr, arxiv, reddit, yelp, products.",
            show_default=False,
        ),
    ],
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            rich_help_panel=_TRACE_PANEL,
            help="uniform, zipf, moving, recurring, drifting, or a file of seeds per request: .npy, or JSON lines; "
            "./zipf is a file. May be repeated. Unset: uniform, zipf and moving.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option(callback=between(1, 10_000_000), rich_help_panel=_TRACE_PANEL, help="Requests in each trace.")
    ] = 5_000,
    seeds_per_request: Annotated[
        int, typer.Option(callback=between(1, 100_000), rich_help_panel=_TRACE_PANEL, help="Node ids in each request.")
    ] = 16,
    seed: Annotated[
        int,
        typer.Option(
            callback=between(0, 2**31 - 1), rich_help_panel=_TRACE_PANEL, help="Seed of traces, sampling and shapes."
        ),
    ] = 1,
    exponent: Annotated[
        float, typer.Option(callback=between(0, 5), rich_help_panel=_TRACE_PANEL, help="Exponent of zipf and drifting.")
    ] = 1.0,
    hot_nodes: Annotated[
        int,
        typer.Option(
            callback=between(1, 2**31),
            rich_help_panel=_TRACE_PANEL,
            help="Nodes in the hot subgraph of moving and recurring."
        ),
    ] = 1_000,
    hot_share: Annotated[
        float,
        typer.Option(
            callback=between(0, 1),
            rich_help_panel=_TRACE_PANEL,
            help="Share of the seeds that come from the hot subgraph.",
        ),
    ] = 0.9,
    moves: Annotated[
        int,
        typer.Option(
            callback=between(0, 1_000_000),
            rich_help_panel=_TRACE_PANEL,
            help="Number of moves of the hot subgraph; for drifting, of each rank to another node.",
        ),
    ] = 5,
    within: Annotated[
        float,
        typer.Option(
            callback=between(0, 1),
            rich_help_panel=_TRACE_PANEL,
            help="Share of a synthetic shape's links that stay in a community of about 1,000 nodes.",
        ),
    ] = 0.0,
    fanouts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            rich_help_panel=_TRACE_PANEL,
            help="Fan-outs as in spec.model.fanouts: 25,10. Unset: the source's own, or 25,10.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        list[float] | None,
        typer.Option(
            metavar="PERCENT",
            callback=_each_percent,
            rich_help_panel=_CACHE_PANEL,
            help="Share of the nodes that the cache has room for; may be repeated. Unset: 5, 10 and 20.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_CACHE_PANEL,
            help="Frequency, Degree, Presampled, FIFO, LFU, None, or Belady, the upper bound; may be repeated. "
            "Unset: all.",
            show_default=False,
        ),
    ] = None,
    round_requests: Annotated[
        int,
        typer.Option(
            callback=between(1, 1_000_000),
            rich_help_panel=_CACHE_PANEL,
            help="Requests between two decisions of Frequency."
        ),
    ] = 16,
    warm_up: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", callback=between(0, 90), rich_help_panel=_CACHE_PANEL,
            help="Share of the first requests, which are not counted.",
        ),
    ] = 20.0,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    service: Annotated[
        str | None,
        typer.Option("--service", metavar="NAME", help="Service in a folder with several: namespace/name or name."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page with plots to this .html file."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Replay request traces through the cache policies, and show how often each hits.

    A request is its seeds, expanded by the sampler to the rows that it gathers; each of them hits or misses.
    """
    # Imported here: they bring numpy and numba.
    from gnnserve_cli import cache_options  # noqa: PLC0415
    from gnnserve_cli.cache_simulation import SimulationFound  # noqa: PLC0415
    from gnnserve_cli.cache_subject import load_subject  # noqa: PLC0415
    from gnnserve_cli.progress import showing_progress  # noqa: PLC0415
    from gnnserve_worker.caching.simulation.shapes import SHAPES  # noqa: PLC0415
    from gnnserve_worker.caching.simulation.simulate import weigh_nodes  # noqa: PLC0415
    from gnnserve_worker.caching.simulation.traces import TraceSettings  # noqa: PLC0415

    if out is not None:
        check_page(out)
    policies = cache_options.parse_policies(policy)
    names = cache_options.parse_traces(trace)
    own_fanouts = None if fanouts is None else cache_options.parse_fanouts(fanouts)
    if service is not None and not Path(source).is_dir():
        raise InputError("--service", f"selects within a folder, and {source!r} is none", "leave it out")
    if within and source not in SHAPES:
        raise InputError("--within", f"applies to synthetic shapes, and {source!r} is none", "leave it out")
    given = _given(ctx)
    asked = TraceSettings(requests, seeds_per_request, seed, exponent, hot_nodes, hot_share, moves)
    asked = cache_options.fit_moves(asked, names, given)
    cache_options.say_what_changes_nothing(names, policies, given)
    try:
        with showing_progress() as listener:
            subject = load_subject(source, repository, service, seed, within, listener)
            settings = cache_options.fit_hot_nodes(asked, names, subject.graph.nodes, given)
            rooms = cache_options.rooms_of(capacity, subject.graph.nodes)
            sampled = own_fanouts or subject.fanouts
            traces = [_open_trace(name, subject.graph, settings) for name in names]
            weights = weigh_nodes(subject.graph, subject.training_nodes, sampled, seed)
            plan = _Plan(subject.graph, weights, sampled, seed, rooms, policies, round_requests, warm_up / 100)
            simulated = [_simulate(plan, one, listener) for one in traces]
    except MemoryError as error:
        raise ResourceError(
            f"not enough memory: {error}; ask for fewer --requests, --seeds-per-request or --moves, or simulate a "
            "smaller graph"
        ) from error
    found = SimulationFound(
        source=subject.source,
        nodes=subject.graph.nodes,
        edges=subject.graph.edges,
        fanouts=list(sampled),
        seed=seed,
        round_requests=round_requests,
        written_by=f"gnnserve {importlib.metadata.version('gnnserve')}",
        traces=simulated,
    )
    written: Path | None = None
    try:
        if out is not None:
            from gnnserve_cli.cache_page import build_page  # noqa: PLC0415

            write_page(out, build_page(found))
            written = out
    finally:
        # The results took long to compute, so they are shown even if the page cannot be written.
        _show(found, written, as_json)


def _show(found: SimulationFound, page: Path | None, as_json: bool) -> None:
    from rich.text import Text  # noqa: PLC0415

    from gnnserve_cli.cache_simulation import facts_of, table_of  # noqa: PLC0415
    from gnnserve_cli.render import facts_table, output, print_json, put  # noqa: PLC0415

    if as_json:
        print_json(found)
        return
    console = output()
    put(console, facts_table(facts_of(found)), "", "Hit rates, %", table_of(found))
    if page is not None:
        put(console, "", Text(f"{page}: the same, with plots over time"))


@dataclass(frozen=True, slots=True)
class _Plan:
    graph: Graph
    weights: NodeWeights
    fanouts: tuple[int, ...]
    seed: int
    rooms: dict[float, int]
    """Nodes that the cache holds, by capacity in percent."""
    policies: list[str]
    round_requests: int
    warm_up_share: float


def _simulate(plan: _Plan, trace: Trace, listener: ProgressListener) -> TraceFound:
    from gnnserve_cli.cache_simulation import BELADY, CapacityFound, PolicyFound, TraceFound  # noqa: PLC0415
    from gnnserve_worker.caching.simulation.simulate import recovery_of, replay_all  # noqa: PLC0415
    from gnnserve_worker.caching.simulation.traces import expand_trace  # noqa: PLC0415

    reads = expand_trace(trace, plan.graph, plan.fanouts, plan.seed, listener)
    replays = replay_all(
        reads, plan.weights, list(dict.fromkeys(plan.rooms.values())), plan.policies, plan.round_requests, listener,
        f"replay {trace.name}",
    )  # fmt: skip
    first = int(plan.warm_up_share * trace.requests)
    window = -(-trace.requests // _WINDOWS)
    recovery_window = max(1, trace.requests // (len(trace.moves) + 1) // _RECOVERY_WINDOWS)
    capacities = []
    for percent, room in plan.rooms.items():
        of_policies = []
        for policy in plan.policies:
            found = replays[room, policy]
            recovery = recovery_of(found, trace.moves, recovery_window)
            of_policies.append(
                PolicyFound(
                    policy=policy,
                    hit_rate_percent=round(100 * found.hit_rate(first), 3),
                    admissions_per_read=(
                        None if policy == BELADY else round(found.admissions / max(1, len(reads.nodes)), 6)
                    ),
                    recovery_requests=None if recovery is None else recovery.requests,
                    timeline_percent=[round(100 * float(rate), 2) for rate in found.timeline(window)],
                )
            )
        capacities.append(CapacityFound(percent, room, of_policies))
    return TraceFound(
        trace=trace.name,
        moving=trace.moving,
        moves=list(trace.moves),
        requests=trace.requests,
        seeds=len(trace.seeds),
        reads=len(reads.nodes),
        warm_up_requests=first,
        window_requests=window,
        capacities=capacities,
    )


def _given(ctx: typer.Context) -> set[str]:
    """Names of the parameters that are on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _open_trace(name: str, graph: Graph, settings: TraceSettings) -> Trace:
    from gnnserve_worker.caching.simulation.traces import TraceKind, build_trace, read_trace  # noqa: PLC0415

    if name in list(TraceKind):
        return build_trace(TraceKind(name), graph, settings)
    return read_trace(Path(name), graph.nodes)
