"""Questions of `gnnserve graph inspect` about a graph, and how their answers are shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gnnserve_api.errors import InputError
from gnnserve_api.intervals import difference_interval
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.graph import Builtin, GraphSource, GraphSpec, NpzSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource, NpzFolder
from gnnserve_api.spec.paths import DataPath
from gnnserve_api.spec.published import OgbName, OgbSource, PygName, PygSource
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count, facts_table, format_name, output, print_json, put
from gnnserve_worker.generation.families.registry import written_factors
from gnnserve_worker.graph.inspection import (
    ClassCount,
    FeatureFacts,
    FindingNote,
    Inspection,
    InspectionByType,
    LabelFacts,
    RelationFacts,
    TakenColumn,
    TypeFacts,
    told_flat,
)
from gnnserve_worker.graph.sources.assembly import NoLabelsError
from gnnserve_worker.graph.sources.load import kind_of, load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.repository.paths import DOWNLOADS
from gnnserve_worker.tasks.generated import GenerationTask
from gnnserve_worker.tasks.generation import task_of

if TYPE_CHECKING:
    from gnnserve_worker.generation.trial import TrialCandidate

_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
_BAR_WIDTH = 30
_SHOWN_CLASSES = 12
_SHOWN_COLUMNS = 40
_SHORTENED_RUN = 4
"""Fewest columns of a numbered run, such as `interest0` to `interest3`, that is shown by its first and last column."""


def print_inspection(source: str, repository: Path, *, as_json: bool, try_out: bool) -> None:
    """Read the graph of SOURCE, and print what was understood. `try_out`: train short candidates on it, too."""
    spec = _parse_spec(source)
    kind, task, downloads = kind_of(spec.graph.source), task_of(spec), repository / DOWNLOADS
    if try_out:
        kind.check_tried()
    with showing_progress() as listener:
        data = _load(spec.graph.source, task, downloads, listener, is_task_known=_is_manifest(source))
        tried = _try(data, spec, listener) if try_out else None
    found = kind.inspect(data)
    shown = _VIEWS[type(found)]
    found = msgspec.structs.replace(found, notes=(*found.notes, *shown.notes(spec, data)))
    if as_json:
        told = told_flat(found)
        print_json(told if tried is None else {**told, "tried": msgspec.to_builtins(tried)})
        return
    console = output()
    for part in shown.parts(found, task):
        put(console, part)
    for part in [] if tried is None else _tried(tried, found.labels.validation_nodes):
        put(console, part)


def _is_manifest(text: str) -> bool:
    """Whether it names a manifest: a file of YAML, or `-` for standard input."""
    return text == "-" or Path(text).suffix in _MANIFEST_SUFFIXES


def _parse_spec(text: str) -> GNNServiceSpec:
    """The spec of a manifest, or the default spec for a graph."""
    if _is_manifest(text):
        return load_manifest(Path(text)).spec
    return GNNServiceSpec(graph=GraphSpec(source=_parse_source(text)))


def _parse_source(text: str) -> GraphSource:
    path = Path(text)
    if path.suffix == ".npz":
        return GraphSource(npz=NpzSource(uri=DataPath(path.absolute().as_uri())))
    if path.is_dir():
        return GraphSource(typed=HeterogeneousSource(npz=NpzFolder(uri=DataPath(path.absolute().as_uri()))))
    if text in list(Builtin):
        return GraphSource(builtin=Builtin(text))
    if text in list(OgbName):
        return GraphSource(ogb=OgbSource(name=OgbName(text)))
    if text in list(PygName):
        return GraphSource(pyg=PygSource(name=PygName(text)))
    by_lowercase = {name.lower(): str(name) for name in (*Builtin, *OgbName, *PygName)}
    near = difflib.get_close_matches(text.lower(), by_lowercase, n=1)
    meant = f"did you mean {by_lowercase[near[0]]}? " if near else ""
    raise InputError(
        "SOURCE",
        f"{text!r} is neither a manifest (.yaml), nor an .npz file, nor a folder of a typed graph, nor a known name",
        f"{meant}tables of your own are named in a manifest; known names are {', '.join(by_lowercase.values())}",
    )


@dataclass(frozen=True, slots=True)
class _InspectionView:
    """View of an inspection of some type: what is said and drawn."""

    notes: Callable[[GNNServiceSpec, GraphData], Sequence[str]]
    """Sentences on what generation by the spec would do with the graph."""
    parts: Callable[[Any, GenerationTask], Sequence[RenderableType]]


def _left_out(spec: GNNServiceSpec, data: GraphData) -> Sequence[str]:
    left_out = written_factors(spec, data.features).said()
    return [f"Generation would leave out {left_out}."] if left_out else []


def _load(
    source: GraphSource, task: GenerationTask, downloads: Path, listener: ProgressListener, *, is_task_known: bool
) -> GraphData:
    """The graph of the source, loaded as generation loads it. `is_task_known`: it is a manifest's source, and not a
    folder alone, of which classes are shown where it has some."""
    try:
        return task.load(downloads, listener)
    except NoLabelsError:
        if is_task_known:
            raise
        return load_source(source, downloads, listener, learns_labels=False)


def _try(data: GraphData, spec: GNNServiceSpec, listener: ProgressListener) -> tuple[TrialCandidate, ...]:
    # Imported here: torch takes seconds.
    from gnnserve_worker.generation.trial import try_candidates  # noqa: PLC0415

    return try_candidates(data, spec, listener)


def _tried(candidates: tuple[TrialCandidate, ...], nodes: int) -> list[RenderableType]:
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
    neighbours, features = found.neighbours, found.features
    ids = ", ".join(map(repr, found.first_ids))
    odd = [f"{found.self_loops:,} from a node to itself"] * bool(found.self_loops)
    odd += [f"{found.repeated_edges:,} listed again"] * bool(found.repeated_edges)
    called = f"called {ids}{', …' * (found.nodes > len(found.first_ids))} ({found.node_ids})"
    classes = "1 class" if len(found.labels.classes) == 1 else f"{len(found.labels.classes):,} classes"
    facts = [
        ("source", found.source),
        ("digest", found.digest),
        ("nodes", f"{found.nodes:,}, {called}"),
        ("edges", "; ".join([f"{found.edges:,}, directed", f"{found.reversed_share:.0%} go both ways", *odd])),
        ("direction", found.edge_rules.in_words),
        *_payload_facts("of an edge", found),
        (
            "neighbours",
            f"median {neighbours.median:,.0f}, mean {neighbours.mean:,.1f}, p99 {neighbours.p99:,.0f}, "
            f"most {neighbours.highest:,}; {count(neighbours.isolated, 'node')} without",
        ),
        ("features", _feature_words(features)),
        *([("taken", taken_columns(found.feature_columns))] if found.feature_columns else []),
        ("labels", f"{classes}{_labelled_words(found.labels)}"),
        ("split", _split_words(found.labels)),
    ]
    parts: list[RenderableType] = [facts_table(facts), "", *_pictures(found)]
    return [*parts, *_remarks(found.findings, found.notes)]


def _feature_words(features: FeatureFacts) -> str:
    shape = "sparse" if features.is_sparse else "dense"
    return (
        f"{count(features.columns, 'column')}, {shape}, {features.nonzero_share:.1%} not zero, "
        f"from {features.lowest:.4g} to {features.highest:.4g}"
    )


def _payload_facts(called: str, found: Inspection | RelationFacts) -> list[tuple[str, str]]:
    """Columns of an edge that are read beside its ends, where there are any."""
    said = [f"features {', '.join(found.edge_features)}"] * bool(found.edge_features)
    said += [f"time {found.edge_time}"] * bool(found.edge_time)
    return [(called, "; ".join(said))] if said else []


def _labelled_words(labels: LabelFacts) -> str:
    several = ", several per node" * labels.multi_label
    return f"{several}; {count(labels.classless_nodes, 'node')} {'of none' if labels.multi_label else 'without'}"


def _split_words(labels: LabelFacts) -> str:
    return (
        f"{labels.training_nodes:,} to train on, {labels.validation_nodes:,} to validate, {labels.test_nodes:,} to test"
    )


def _pictures(found: Inspection) -> list[RenderableType]:
    histogram = found.neighbours.histogram
    ends = [start - 1 for start, _ in histogram[1:]] + [found.neighbours.highest]
    neighbours = [
        (f"{start:,}" if start >= end else f"{start:,} to {end:,}", nodes)
        for (start, nodes), end in zip(histogram, ends, strict=True)
    ]
    return [_bars("Neighbours", neighbours), "", *_class_bars(found.labels.classes)]


# --- several types


def _parts_by_type(found: InspectionByType, task: GenerationTask) -> list[RenderableType]:
    nodes, edges = sum(kind.nodes for kind in found.types), sum(one.edges for one in found.relations)
    facts = [
        ("source", found.source),
        ("digest", found.digest),
        ("nodes", f"{nodes:,} of {count(len(found.types), 'type')}"),
        ("edges", f"{edges:,} of {count(len(found.relations), 'relation')}"),
        *((kind.name, _type_words(kind)) for kind in found.types),
    ]
    for one in found.relations:
        facts += _payload_facts(one.name, one) if one.reverse_of is None else []
    facts += (
        [
            ("classified", found.target),
            ("labels", f"{len(found.labels.classes):,} classes{_labelled_words(found.labels)}"),
            ("split", _split_words(found.labels)),
        ]
        if found.target
        else [task.says_unlabelled()]
    )
    return [
        facts_table(facts),
        "",
        _relation_table(found.relations),
        "",
        *(_class_bars(found.labels.classes) if found.target else ()),
        *_remarks(found.findings, found.notes),
    ]


def _type_words(kind: TypeFacts) -> str:
    called = f"{kind.nodes:,}, called {', '.join(kind.first_ids)}{', …' * (kind.nodes > len(kind.first_ids))}"
    taken = "no features: embeddings are learned" if kind.features is None else _feature_words(kind.features)
    names = f" ({taken_columns(kind.feature_columns)})" * bool(kind.feature_columns)
    return f"{called}; {taken}{names}; {count(kind.isolated, 'node')} without neighbours"


def _relation_table(relations: tuple[RelationFacts, ...]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for header in ("Reads", "Relation", "Of type"):
        table.add_column(header, no_wrap=True)
    for header in ("Edges", "Median", "Most", "Without"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("An edge counts", no_wrap=True)
    for one in relations:
        table.add_row(
            Text(one.target), Text(one.name), Text(one.source), f"{one.edges:,}", f"{one.neighbours.median:,.0f}",
            f"{one.neighbours.highest:,}", f"{one.neighbours.isolated:,}", _words_of_rules(one),
        )  # fmt: skip
    return table


def _words_of_rules(relation: RelationFacts) -> str:
    """How edges of changes and overlays count, by the relation."""
    if relation.reverse_of is not None:
        return f"with {relation.reverse_of}"
    return f"{'both ways' if relation.both_ways else 'one way'}, {'once' if relation.merges else 'each time'}"


# --- parts of both


def _remarks(findings: Sequence[FindingNote], notes: Sequence[str]) -> list[RenderableType]:
    """Parts that tell what importing did, and what may be a mistake."""
    parts: list[RenderableType] = []
    if findings:
        shown = [
            (f"{noted.count:,}", f"{noted.what}{f': {noted.example}' * bool(noted.example)}") for noted in findings
        ]
        parts += ["Done while reading", facts_table(shown), ""]
    if notes:
        parts += ["Worth a look", *(f"- {note}" for note in notes)]
    return parts


def taken_columns(columns: Sequence[TakenColumn]) -> str:
    """Names of the columns that are features. Runs that are numbered without a gap are shortened."""
    runs: list[list[tuple[str, int]]] = []
    follower: tuple[str, int, int] | None = None
    """Stem, number and width of the column that would continue the last run."""
    for column in columns:
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


def _class_bars(classes: Sequence[ClassCount]) -> list[RenderableType]:
    """The largest classes."""
    by_size = sorted(classes, key=lambda entry: -entry.nodes)
    parts = [_bars("Class", [(format_name(entry.label), entry.nodes) for entry in by_size[:_SHOWN_CLASSES]]), ""]
    if len(by_size) > _SHOWN_CLASSES:
        parts[-1:] = [f"and {len(by_size) - _SHOWN_CLASSES:,} more classes", ""]
    return parts


def _bars(title: str, rows: list[tuple[str, int]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True, max_width=40)
    table.add_column("Nodes", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((nodes for _, nodes in rows), default=0)
    for name, nodes in rows:
        table.add_row(Text(name), f"{nodes:,}", "█" * round(_BAR_WIDTH * nodes / most) if most else "")
    return table


_VIEWS: Mapping[type, _InspectionView] = {
    Inspection: _InspectionView(_left_out, lambda found, _: _tables(found)),
    InspectionByType: _InspectionView(lambda _spec, _data: (), _parts_by_type),
}
