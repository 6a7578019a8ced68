"""`gnnserve cache simulate`: how often each cache policy would hit on a graph, before anybody buys a GPU for it."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnserve_api.errors import InputError
from gnnserve_cli.commands.graph import parse_source
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot, between
from gnnserve_cli.commands.report import check_page, write_page

if TYPE_CHECKING:
    import numpy as np

    from gnnserve_cli.cache_simulation import TraceFound
    from gnnserve_worker.caching.simulate import NodeWeights
    from gnnserve_worker.caching.traces import Trace, TraceSettings
    from gnnserve_worker.graph.store import Graph

_MANIFESTS = (".yaml", ".yml", ".json")
_FANOUTS = (25, 10)
_TRACES = ("uniform", "zipf", "moving")
_CAPACITIES = (5.0, 10.0, 20.0)
_TRAINING_SHARE = 0.1
"""Of a synthetic shape's nodes, which has no split of its own."""
_WINDOWS = 100
"""Of a plot, at most."""
_RECOVERY_WINDOWS = 40
"""Of the time between two moves."""
_TRACE_PANEL, _CACHE_PANEL = "Traces", "Caches"


@dataclass(frozen=True, slots=True)
class Subject:
    source: str
    graph: Graph
    training_nodes: np.ndarray
    fanouts: tuple[int, ...]


def _each_percent(values: list[float] | None) -> list[float]:
    check = between(0.001, 100)
    return [check(value) for value in values or []]


def simulate(
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
            "may be repeated. Unset: uniform, zipf and moving.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option(callback=between(1, 10_000_000), rich_help_panel=_TRACE_PANEL, help="Of each trace.")
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
        float, typer.Option(callback=between(0, 5), rich_help_panel=_TRACE_PANEL, help="Of zipf and drifting.")
    ] = 1.0,
    hot_nodes: Annotated[
        int,
        typer.Option(
            callback=between(1, 2**31), rich_help_panel=_TRACE_PANEL, help="Of moving and recurring: in a hot subgraph."
        ),
    ] = 1_000,
    hot_share: Annotated[
        float,
        typer.Option(
            callback=between(0, 1), rich_help_panel=_TRACE_PANEL, help="Of the seeds: from the hot subgraph."
        ),
    ] = 0.9,
    moves: Annotated[
        int,
        typer.Option(
            callback=between(0, 1_000_000),
            rich_help_panel=_TRACE_PANEL,
            help="How often the hot subgraph moves; of drifting, how often each rank is passed on.",
        ),
    ] = 5,
    within: Annotated[
        float,
        typer.Option(
            callback=between(0, 1),
            rich_help_panel=_TRACE_PANEL,
            help="Of a synthetic shape: share of the links that stay in a community of about 1,000 nodes.",
        ),
    ] = 0.0,
    fanouts: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            rich_help_panel=_TRACE_PANEL,
            help="As in spec.model.fanouts: 25,10. Unset: the source's own, or 25,10.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        list[float] | None,
        typer.Option(
            metavar="PERCENT",
            callback=_each_percent,
            rich_help_panel=_CACHE_PANEL,
            help="Of the nodes that have room; may be repeated. Unset: 5, 10 and 20.",
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
            callback=between(1, 1_000_000), rich_help_panel=_CACHE_PANEL, help="After so many, Frequency decides anew."
        ),
    ] = 16,
    warm_up: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", callback=between(0, 90), rich_help_panel=_CACHE_PANEL,
            help="Of the requests that are not counted.",
        ),
    ] = 20.0,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    service: Annotated[
        str | None,
        typer.Option("--service", metavar="NAME", help="Of a folder with several: namespace/name, or the name alone."),
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
    from rich.text import Text  # noqa: PLC0415

    from gnnserve_cli.cache_simulation import (  # noqa: PLC0415
        SimulationFound,
        build_page,
        facts_of,
        table_of,
    )
    from gnnserve_cli.render import facts_table, output, print_json, put  # noqa: PLC0415
    from gnnserve_worker.caching.simulate import weigh_nodes  # noqa: PLC0415
    from gnnserve_worker.caching.traces import TraceSettings  # noqa: PLC0415

    if out is not None:
        check_page(out)
    policies = _parse_policies(policy)
    names = _parse_traces(trace)
    own_fanouts = None if fanouts is None else _parse_fanouts(fanouts)
    if service is not None and not Path(source).is_dir():
        raise InputError("--service", f"chooses in a folder, and {source!r} is none", "leave it out")
    if within and source not in _shapes():
        raise InputError("--within", f"is of synthetic shapes, and {source!r} is none", "leave it out")
    subject = _load(source, repository, service, seed, within)
    sampled = own_fanouts or subject.fanouts
    settings = TraceSettings(requests, seeds_per_request, seed, exponent, hot_nodes, hot_share, moves)
    traces = [_open_trace(name, subject.graph, settings) for name in names]
    weights = weigh_nodes(subject.graph, subject.training_nodes, sampled, seed)
    percents = list(dict.fromkeys(capacity or _CAPACITIES))
    plan = _Plan(subject.graph, weights, sampled, seed, percents, policies, round_requests, warm_up / 100)
    found = SimulationFound(
        source=subject.source,
        nodes=subject.graph.nodes,
        edges=subject.graph.edges,
        fanouts=list(sampled),
        seed=seed,
        round_requests=round_requests,
        written_by=f"gnnserve {importlib.metadata.version('gnnserve')}",
        traces=[_simulate(plan, one) for one in traces],
    )
    if out is not None:
        write_page(out, build_page(found))
    if as_json:
        print_json(found)
        return
    console = output()
    put(console, facts_table(facts_of(found)), "", "Hit rates, %", table_of(found))
    if out is not None:
        put(console, "", Text(f"{out}: the same, with plots over time"))


@dataclass(frozen=True, slots=True)
class _Plan:
    graph: Graph
    weights: NodeWeights
    fanouts: tuple[int, ...]
    seed: int
    percents: list[float]
    policies: list[str]
    round_requests: int
    warm_up_share: float


def _simulate(plan: _Plan, trace: Trace) -> TraceFound:
    from gnnserve_cli.cache_simulation import BELADY, CapacityFound, PolicyFound, TraceFound  # noqa: PLC0415
    from gnnserve_worker.caching.simulate import recovery_of, replay_all  # noqa: PLC0415
    from gnnserve_worker.caching.traces import expand_trace  # noqa: PLC0415

    reads = expand_trace(trace, plan.graph, plan.fanouts, plan.seed)
    rooms = {percent: round(plan.graph.nodes * percent / 100) for percent in plan.percents}
    replays = replay_all(reads, plan.weights, list(dict.fromkeys(rooms.values())), plan.policies, plan.round_requests)
    first = int(plan.warm_up_share * trace.requests)
    window = max(1, trace.requests // _WINDOWS)
    recovery_window = max(1, trace.requests // (len(trace.moves) + 1) // _RECOVERY_WINDOWS)
    capacities = []
    for percent, room in rooms.items():
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


def _parse_policies(wanted: list[str] | None) -> list[str]:
    from gnnserve_worker.caching.simulate import POLICIES  # noqa: PLC0415

    for name in wanted or ():
        if name not in POLICIES:
            raise InputError("--policy", f"{name!r} is none", f"name one of {', '.join(POLICIES)}")
    return [name for name in POLICIES if wanted is None or name in wanted]


def _parse_traces(wanted: list[str] | None) -> list[str]:
    from gnnserve_worker.caching.traces import TraceKind  # noqa: PLC0415

    names = list(dict.fromkeys(wanted or _TRACES))
    for name in names:
        if name not in list(TraceKind) and not Path(name).exists():
            known = ", ".join(TraceKind)
            raise InputError("--trace", f"{name!r} is neither a trace nor a file", f"name one of {known}, or a file")
    return names


def _parse_fanouts(text: str) -> tuple[int, ...]:
    from pydantic import ValidationError  # noqa: PLC0415

    from gnnserve_api.gnnservice import Model  # noqa: PLC0415

    try:
        return Model.model_validate({"fanouts": [int(part) for part in text.split(",")]}).fanouts
    except (ValueError, ValidationError) as error:
        raise InputError(
            "--fanouts", f"{text!r} is not one to four numbers, all above 0 or all -1", "write them as 25,10"
        ) from error


def _open_trace(name: str, graph: Graph, settings: TraceSettings) -> Trace:
    from gnnserve_worker.caching.traces import TraceKind, build_trace, read_trace  # noqa: PLC0415

    if name in list(TraceKind):
        return build_trace(TraceKind(name), graph, settings)
    return read_trace(Path(name), graph.nodes)


def _shapes() -> list[str]:
    from gnnserve_worker.caching.shapes import SHAPES  # noqa: PLC0415

    return list(SHAPES)


def _load(source: str, repository: Path, service: str | None, seed: int, within: float) -> Subject:
    path = Path(source)
    if source in _shapes():
        return _make_shape(source, seed, within)
    if path.is_dir():
        return _open_folder(path, service)
    if path.suffix in _MANIFESTS and (published := _open_published(path, repository)) is not None:
        return published
    return _import(source, repository)


def _make_shape(name: str, seed: int, within: float) -> Subject:
    import numpy as np  # noqa: PLC0415

    from gnnserve_worker.caching.shapes import SHAPES, build_graph  # noqa: PLC0415

    graph = build_graph(SHAPES[name], seed, within)
    training = np.random.default_rng(seed).permutation(graph.nodes)[: int(_TRAINING_SHARE * graph.nodes)]
    told = f", {within:.0%} of the links within communities" if within else ""
    return Subject(f"synthetic, of the shape of {name}{told}", graph, training, _FANOUTS)


def _open_folder(root: Path, service: str | None) -> Subject:
    from gnnserve_cli.report.subject import load_subject  # noqa: PLC0415

    found = load_subject(root, service, None)
    namespace, _, name = found.service.partition("/")
    return _open_revision(root, namespace, name, found.revision)


def _open_published(manifest: Path, root: Path) -> Subject | None:
    """None: the graph has to be imported."""
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    service = load_manifest(manifest)
    published = Repository(root, service.metadata.namespace, service.metadata.name).find(service.spec.recipe())
    if published is None:
        return None
    return _open_revision(root, service.metadata.namespace, service.metadata.name, published.revision)


def _open_revision(root: Path, namespace: str, name: str, revision: str) -> Subject:
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    loaded = Repository(root, namespace, name).load(revision)
    source = f"{namespace}/{name}, revision {revision}"
    return Subject(source, loaded.graph, loaded.splits.train, tuple(loaded.network.fanouts))


def _import(source: str, repository: Path) -> Subject:
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.progress import showing_progress  # noqa: PLC0415
    from gnnserve_worker.graph.sources.load import load_source  # noqa: PLC0415
    from gnnserve_worker.repository.paths import DOWNLOADS  # noqa: PLC0415

    wanted = parse_source(source)
    fanouts = load_manifest(Path(source)).spec.model.fanouts if Path(source).suffix in _MANIFESTS else _FANOUTS
    with showing_progress() as listener:
        data = load_source(wanted, repository / DOWNLOADS, listener)
    return Subject(data.source, data.graph, data.splits.train, fanouts)
