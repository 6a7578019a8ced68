"""`gnnserve graph inspect`: what was understood of a graph, before anything is trained on it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.graph import Builtin, GraphSource, GraphSpec, NpzSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource, NpzFolder
from gnnserve_api.spec.paths import DataPath
from gnnserve_api.spec.published import OgbName, OgbSource, PygName, PygSource
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_cli.commands.inspection_parts import bars, class_bars, remarks, taken_columns
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count, facts_table, output, print_json, put

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gnnserve_worker.generation.trial import TrialCandidate
    from gnnserve_worker.graph.inspection import (
        FeatureFacts,
        Inspection,
        InspectionByType,
        LabelFacts,
        RelationFacts,
        TypeFacts,
    )
    from gnnserve_worker.graph.store import GraphData
    from gnnserve_worker.progress import ProgressListener
    from gnnserve_worker.tasks.generated import GenerationTask

_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")

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
    from gnnserve_worker.graph.inspection import told_flat  # noqa: PLC0415
    from gnnserve_worker.graph.sources.load import kind_of  # noqa: PLC0415
    from gnnserve_worker.repository.paths import DOWNLOADS  # noqa: PLC0415
    from gnnserve_worker.tasks.generation import task_of  # noqa: PLC0415

    spec = _parse_spec(source)
    kind, task, downloads = kind_of(spec.graph.source), task_of(spec), repository / DOWNLOADS
    if try_out:
        kind.check_tried()
    with showing_progress() as listener:
        data = _load(spec.graph.source, task, downloads, listener, is_task_known=_is_manifest(source))
        tried = _try(data, spec, listener) if try_out else None
    found = kind.inspect(data)
    shown = _shown_as(type(found))
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


@dataclass(frozen=True, slots=True)
class _InspectionView:
    """View of an inspection of some type: what is said and drawn."""

    notes: Callable[[GNNServiceSpec, GraphData], Sequence[str]]
    """What generation by the spec would do with the graph."""
    parts: Callable[[Any, GenerationTask], Sequence[RenderableType]]


def _shown_as(inspection: type) -> _InspectionView:
    from gnnserve_worker.graph.inspection import Inspection, InspectionByType  # noqa: PLC0415

    shown: Mapping[type, _InspectionView] = {
        Inspection: _InspectionView(_left_out, lambda found, _: _tables(found)),
        InspectionByType: _InspectionView(lambda _spec, _data: (), _parts_by_type),
    }
    return shown[inspection]


def _left_out(spec: GNNServiceSpec, data: GraphData) -> Sequence[str]:
    from gnnserve_worker.generation.families.registry import written_factors  # noqa: PLC0415

    left_out = written_factors(spec, data.features).said()
    return [f"Generation would leave out {left_out}."] if left_out else []


def _load(
    source: GraphSource, task: GenerationTask, downloads: Path, listener: ProgressListener, *, is_task_known: bool
) -> GraphData:
    """The graph of the source, loaded as generation loads it. `is_task_known`: it is a manifest's source, and not a
    folder alone, of which classes are shown where it has some."""
    from gnnserve_worker.graph.sources.assembly import NoLabelsError  # noqa: PLC0415
    from gnnserve_worker.graph.sources.load import load_source  # noqa: PLC0415

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
    from gnnserve_api.intervals import difference_interval  # noqa: PLC0415

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
    return [*parts, *remarks(found.findings, found.notes)]


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
    return [bars("Neighbours", neighbours), "", *class_bars(found.labels.classes)]


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
        *(class_bars(found.labels.classes) if found.target else ()),
        *remarks(found.findings, found.notes),
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
