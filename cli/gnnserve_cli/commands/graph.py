"""`gnnserve graph inspect`: what was understood of a graph, before anything is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot
from gnnserve_cli.sources import MANIFEST_SUFFIXES, parse_source

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gnnserve_api.spec.graph import GraphSource
    from gnnserve_api.spec.model import Model
    from gnnserve_api.spec.service import GNNServiceSpec
    from gnnserve_worker.generation.trial import Candidate
    from gnnserve_worker.graph.inspection import Inspection
    from gnnserve_worker.graph.store import GraphData
    from gnnserve_worker.progress import ProgressListener

_BAR_WIDTH = 30
_SHOWN_CLASSES = 12
_SHOWN_COLUMNS = 40
_SHORTENED_RUN = 4
"""Fewest columns of a numbered run, such as `interest0` to `interest3`, that is shown by its first and last column."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A manifest, an .npz file, or a name: Digits, ogbn-arxiv, Flickr …", show_default=False
    ),
]


Try = Annotated[
    bool,
    typer.Option(
        "--try",
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

    wanted = parse_source(source)
    with showing_progress() as listener:
        data = load_source(wanted, repository / DOWNLOADS, listener)
        tried = _try(data, _spec_of(source, wanted).model, listener) if try_out else None
    found = inspection.inspect(data)
    if left_out := written_factors(_spec_of(source, wanted), data.features).said():
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


def _spec_of(text: str, source: GraphSource) -> GNNServiceSpec:
    """The spec of a manifest, or the default spec for a graph."""
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_api.spec.graph import Graph  # noqa: PLC0415
    from gnnserve_api.spec.service import GNNServiceSpec  # noqa: PLC0415

    path = Path(text)
    return load_manifest(path).spec if path.suffix in MANIFEST_SUFFIXES else GNNServiceSpec(graph=Graph(source=source))


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
        *([("taken", taken_columns(found))] if found.feature_columns else []),
        ("labels", f"{classes}{several}; {classless}"),
        (
            "split",
            f"{found.training_nodes:,} to train on, {found.validation_nodes:,} to validate, "
            f"{found.test_nodes:,} to test",
        ),
    ]
    parts: list[RenderableType] = [facts_table(facts), "", *_pictures(found)]
    if found.findings:
        shown = [
            (f"{noted.count:,}", f"{noted.what}{f': {noted.example}' * bool(noted.example)}")
            for noted in found.findings
        ]
        parts += ["Done while reading", facts_table(shown), ""]
    if found.notes:
        parts += ["Worth a look", *(f"- {note}" for note in found.notes)]
    return parts


def taken_columns(found: Inspection) -> str:
    """Names of the columns that are features. Runs that are numbered without a gap are shortened."""
    runs: list[list[tuple[str, int]]] = []
    follower: tuple[str, int, int] | None = None
    """Stem, number and width of the column that would continue the last run."""
    for column in found.feature_columns:
        stem = column.name.rstrip("0123456789")
        number = column.name[len(stem) :]
        numbered = (stem, int(number), column.width) if number else None
        if numbered is not None and numbered == follower:
            runs[-1].append((column.name, column.width))
        else:
            runs.append([(column.name, column.width)])
        follower = None if numbered is None else (stem, numbered[1] + 1, column.width)
    shown = []
    for run in runs:
        lists = f" (lists of {run[0][1]:,})" * (run[0][1] > 1)
        if len(run) < _SHORTENED_RUN:
            shown += [f"{name}{lists}" for name, _ in run]
        else:
            shown.append(f"{run[0][0]} … {run[-1][0]} ({len(run):,} columns){lists}")
    if len(shown) > _SHOWN_COLUMNS:
        half = _SHOWN_COLUMNS // 2
        shown[half:-half] = [f"… {len(shown) - 2 * half:,} more …"]
    return ", ".join(shown)


def _pictures(found: Inspection) -> list[RenderableType]:
    from gnnserve_cli.render import format_name  # noqa: PLC0415

    histogram = found.neighbours.histogram
    ends = [start - 1 for start, _ in histogram[1:]] + [found.neighbours.highest]
    neighbours = [
        (f"{start:,}" if start >= end else f"{start:,} to {end:,}", nodes)
        for (start, nodes), end in zip(histogram, ends, strict=True)
    ]
    by_size = sorted(found.classes, key=lambda entry: -entry.nodes)
    classes = [(format_name(entry.label), entry.nodes) for entry in by_size[:_SHOWN_CLASSES]]
    parts: list[RenderableType] = []
    for title, rows in (("Neighbours", neighbours), ("Class", classes)):
        parts += [_bars(title, rows), ""]
    if len(by_size) > _SHOWN_CLASSES:
        parts[-1:] = [f"and {len(by_size) - _SHOWN_CLASSES:,} more classes", ""]
    return parts


def _bars(title: str, rows: list[tuple[str, int]]) -> RenderableType:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True, max_width=40)
    table.add_column("Nodes", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((nodes for _, nodes in rows), default=0)
    for name, nodes in rows:
        table.add_row(Text(name), f"{nodes:,}", "█" * round(_BAR_WIDTH * nodes / most) if most else "")
    return table
