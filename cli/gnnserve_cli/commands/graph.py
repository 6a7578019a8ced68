"""`gnnserve graph inspect`: what was understood of a graph, before anything is trained on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gnnserve_cli.commands.inspection_parts import bars, class_bars, remarks, taken_columns
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot
from gnnserve_cli.sources import is_manifest, parse_spec

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gnnserve_api.spec.model import Model
    from gnnserve_worker.generation.trial import Candidate
    from gnnserve_worker.graph.inspection import Inspection
    from gnnserve_worker.graph.store import GraphData
    from gnnserve_worker.progress import ProgressListener


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A manifest (- for standard input), an .npz file, a folder of a typed graph, or a name: Digits …",
        show_default=False,
    ),
]


Try = Annotated[
    bool,
    typer.Option(
        "--try",
        metavar="",
        help="Also train short candidates, one for each scope and normalization, and print the validation they reach.",
    ),
]


def inspect(
    source: Source,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    as_json: Json = False,
    try_out: Try = False,
) -> None:
    """Read a graph as generation would, check it, and print what was understood."""
    # Imported here: they bring numpy and numba.
    import msgspec  # noqa: PLC0415

    from gnnserve_cli.progress import showing_progress  # noqa: PLC0415
    from gnnserve_cli.render import output, print_json, put  # noqa: PLC0415
    from gnnserve_worker.generation.wide import written_factors  # noqa: PLC0415
    from gnnserve_worker.graph import inspection  # noqa: PLC0415
    from gnnserve_worker.graph.sources.load import load_source  # noqa: PLC0415
    from gnnserve_worker.repository.paths import DOWNLOADS  # noqa: PLC0415

    spec = parse_spec(source)
    wanted = spec.graph.source
    if wanted.typed is not None:
        from gnnserve_cli.commands.typed_graph import inspect_typed_source  # noqa: PLC0415

        inspect_typed_source(
            wanted.typed,
            spec.task.links,
            is_task_known=is_manifest(source),
            as_json=as_json,
            try_out=try_out,
        )
        return
    with showing_progress() as listener:
        data = load_source(wanted, repository / DOWNLOADS, listener, learns_labels=spec.task.links is None)
        tried = _try(data, spec.model, listener) if try_out else None
    found = inspection.inspect(data)
    if left_out := written_factors(spec, data.features).said():
        found = msgspec.structs.replace(found, notes=(*found.notes, f"Generation would leave out {left_out}."))
    if as_json:
        print_json(found if tried is None else {**msgspec.to_builtins(found), "tried": msgspec.to_builtins(tried)})
    else:
        console = output()
        for part in _tables(found):
            put(console, part)
        for part in [] if tried is None else _tried(tried, found.validation_nodes):
            put(console, part)


def _try(data: GraphData, model: Model, listener: ProgressListener) -> tuple[Candidate, ...]:
    # Imported here: torch takes seconds.
    from gnnserve_worker.generation.trial import try_candidates  # noqa: PLC0415

    return try_candidates(data, model, listener)


def _tried(candidates: tuple[Candidate, ...], nodes: int) -> list[RenderableType]:
    from gnnserve_api.intervals import difference_interval  # noqa: PLC0415
    from gnnserve_cli.render import facts_table  # noqa: PLC0415

    best = candidates[0]
    alike = [
        one for one in candidates[1:] if difference_interval(best.validation, nodes, one.validation, nodes).contains(0)
    ]
    rows = [
        (f"{one.validation:.4f}", f"{one.scope}, {one.normalization}{' (may be chance)' * (one in alike)}")
        for one in candidates
    ]
    return [
        "",
        f"Tried: validation after a short training on {nodes:,} validation nodes",
        facts_table(rows),
        f"- Best: spec.model.training.scope: {best.scope} with spec.graph.normalization: {best.normalization}. "
        "Transductive suits graphs whose nodes are all known when it is trained.",
    ]


def _tables(found: Inspection) -> list[RenderableType]:
    from gnnserve_cli.render import count, facts_table  # noqa: PLC0415

    neighbours, features = found.neighbours, found.features
    ids = ", ".join(map(repr, found.first_ids))
    odd = [f"{found.self_loops:,} from a node to itself"] * bool(found.self_loops)
    odd += [f"{found.repeated_edges:,} listed again"] * bool(found.repeated_edges)
    kind = "sparse" if features.is_sparse else "dense"
    called = f"called {ids}{', …' * (found.nodes > len(found.first_ids))} ({found.node_ids})"
    several = ", several per node" * found.multi_label
    classless = f"{count(found.classless_nodes, 'node')} {'of none' if found.multi_label else 'without'}"
    classes = "1 class" if len(found.classes) == 1 else f"{len(found.classes):,} classes"
    facts = [
        ("source", found.source),
        ("digest", found.digest),
        ("nodes", f"{found.nodes:,}, {called}"),
        ("edges", "; ".join([f"{found.edges:,}, directed", f"{found.reversed_share:.0%} go both ways", *odd])),
        ("direction", found.edge_rules.in_words),
        (
            "neighbours",
            f"median {neighbours.median:,.0f}, mean {neighbours.mean:,.1f}, p99 {neighbours.p99:,.0f}, "
            f"most {neighbours.highest:,}; {count(neighbours.isolated, 'node')} without",
        ),
        (
            "features",
            f"{count(features.columns, 'column')}, {kind}, {features.nonzero_share:.1%} not zero, "
            f"from {features.lowest:.4g} to {features.highest:.4g}",
        ),
        *([("taken", taken_columns(found.feature_columns))] if found.feature_columns else []),
        ("labels", f"{classes}{several}; {classless}"),
        (
            "split",
            f"{found.training_nodes:,} to train on, {found.validation_nodes:,} to validate, "
            f"{found.test_nodes:,} to test",
        ),
    ]
    parts: list[RenderableType] = [facts_table(facts), "", *_pictures(found)]
    return [*parts, *remarks(found.findings, found.notes)]


def _pictures(found: Inspection) -> list[RenderableType]:
    histogram = found.neighbours.histogram
    ends = [start - 1 for start, _ in histogram[1:]] + [found.neighbours.highest]
    neighbours = [
        (f"{start:,}" if start >= end else f"{start:,} to {end:,}", nodes)
        for (start, nodes), end in zip(histogram, ends, strict=True)
    ]
    return [bars("Neighbours", neighbours), "", *class_bars(found.classes)]
