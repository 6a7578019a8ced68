"""`gnnserve graph inspect` of a typed graph: its types and relations, and the classes of the target type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError
from gnnserve_cli.commands.inspection_parts import class_bars, remarks, taken_columns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gnnserve_api.spec.task import Links
    from gnnserve_api.spec.typed import TypedSource
    from gnnserve_worker.graph.typed import TypedGraphData
    from gnnserve_worker.graph.typed_inspection import RelationFacts, TypedInspection, TypeFacts
    from gnnserve_worker.progress import ProgressListener


def inspect_typed_source(
    source: TypedSource, links: Links | None, *, is_task_known: bool, as_json: bool, try_out: bool
) -> None:
    """`links`: what a manifest scores; `is_task_known`: it is a manifest's source, and not a folder alone, of which
    classes are shown where it has some."""
    # Imported here: they bring numpy and numba.
    from gnnserve_cli.progress import showing_progress  # noqa: PLC0415
    from gnnserve_cli.render import output, print_json, put  # noqa: PLC0415
    from gnnserve_worker.graph.typed_inspection import inspect_typed  # noqa: PLC0415

    if try_out:
        raise InputError("--try", "trains candidates over graphs of one type alone", "leave it out")
    with showing_progress() as listener:
        data = _load(source, links, is_task_known, listener)
    found = inspect_typed(data)
    if as_json:
        print_json(found)
        return
    console = output()
    for part in _parts(found, links):
        put(console, part)


def _load(source: TypedSource, links: Links | None, is_task_known: bool, listener: ProgressListener) -> TypedGraphData:
    """The graph of the source, loaded as generation loads it. `links`, `is_task_known`: as of
    `inspect_typed_source`."""
    from gnnserve_worker.graph.sources.load import load_typed_source  # noqa: PLC0415
    from gnnserve_worker.graph.sources.typed_assembly import NoLabelsError  # noqa: PLC0415

    if links is not None:
        return load_typed_source(source, listener, needs_labels=False)
    try:
        return load_typed_source(source, listener)
    except NoLabelsError:
        if is_task_known:
            raise
        return load_typed_source(source, listener, needs_labels=False)


def _parts(found: TypedInspection, links: Links | None) -> list[RenderableType]:
    from gnnserve_cli.render import count, facts_table  # noqa: PLC0415

    several = ", several per node" * found.multi_label
    classless = f"{count(found.classless_nodes, 'node')} {'of none' if found.multi_label else 'without'}"
    nodes, edges = sum(kind.nodes for kind in found.types), sum(one.edges for one in found.relations)
    facts = [
        ("source", found.source),
        ("digest", found.digest),
        ("nodes", f"{nodes:,} of {count(len(found.types), 'type')}"),
        ("edges", f"{edges:,} of {count(len(found.relations), 'relation')}"),
        *((kind.name, _type_words(kind)) for kind in found.types),
    ]
    facts += (
        [
            ("classified", found.target),
            ("labels", f"{len(found.classes):,} classes{several}; {classless}"),
            (
                "split",
                f"{found.training_nodes:,} to train on, {found.validation_nodes:,} to validate, "
                f"{found.test_nodes:,} to test",
            ),
        ]
        if found.target
        else [_scored(links)]
    )
    return [
        facts_table(facts),
        "",
        _relations(found.relations),
        "",
        *(class_bars(found.classes) if found.target else ()),
        *remarks(found.findings, found.notes),
    ]


def _scored(links: Links | None) -> tuple[str, str]:
    """What there is in place of classes."""
    if links is None:
        return "labels", "no type has any: nothing can be classified, and links may be scored (spec.task.links)"
    return "scored", f"links of relation {links.relation}" if links.relation else "links"


def _type_words(kind: TypeFacts) -> str:
    from gnnserve_cli.render import count  # noqa: PLC0415

    called = f"{kind.nodes:,}, called {', '.join(kind.first_ids)}{', …' * (kind.nodes > len(kind.first_ids))}"
    if (features := kind.features) is None:
        taken = "no features: embeddings are learned"
    else:
        shape = "sparse" if features.is_sparse else "dense"
        taken = (
            f"{count(features.columns, 'column')}, {shape}, {features.nonzero_share:.1%} not zero, "
            f"from {features.lowest:.4g} to {features.highest:.4g}"
        )
    names = f" ({taken_columns(kind.feature_columns)})" * bool(kind.feature_columns)
    return f"{called}; {taken}{names}; {count(kind.isolated, 'node')} without neighbours"


def _relations(relations: tuple[RelationFacts, ...]) -> RenderableType:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    for header in ("Reads", "Relation", "Of type"):
        table.add_column(header, no_wrap=True)
    for header in ("Edges", "Median", "Most", "Without"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("An edge counts", no_wrap=True)
    for one in relations:
        table.add_row(
            Text(one.target), Text(one.name), Text(one.source), f"{one.edges:,}", f"{one.neighbours.median:,.0f}",
            f"{one.neighbours.highest:,}", f"{one.neighbours.isolated:,}", _rules(one),
        )  # fmt: skip
    return table


def _rules(relation: RelationFacts) -> str:
    """How edges of changes and overlays count, by the relation."""
    if relation.reverse_of is not None:
        return f"with {relation.reverse_of}"
    return f"{'both ways' if relation.both_ways else 'one way'}, {'once' if relation.merges else 'each time'}"
