"""`gnnserve variants`: what a server or a repository has, with its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec import UnsetType
from rich.console import Console
from rich.text import Text

from gnnserve_api.errors import OutdatedError
from gnnserve_api.files.given_weights import says_assumed, says_misfits
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import RelationAnswer, VariantsAnswer
from gnnserve_cli.client import fetch_variants, open_url, read_access
from gnnserve_cli.commands.options import CaFile, Json, TokenFile
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.printable import printable_line
from gnnserve_cli.render import count, output, print_json, profile_tables, put, search_lines
from gnnserve_cli.revisions import ServiceRevisions, load_services
from gnnserve_cli.told_tasks import told_task


def variants(
    place: Annotated[
        str, typer.Argument(metavar="URL|DIR", help="A server or a repository folder.", show_default=False)
    ],
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Show the variants of a running server, or of every revision in a repository."""
    console = output()
    if "://" in place:
        served = fetch_variants(open_url(place, read_access(token_file, ca_file)))
        if as_json:
            print_json(served)
            return
        put(console, f"{served.service}  revision {served.revision}  recipe {served.recipe}")
        features = f"with {count(served.features, 'feature')}" if served.features else "without features"
        put(console, f"{count(served.nodes, 'node')} {features}")
        put(
            console,
            *(Text(line) for line in (*_describe_names(served), *_describe_edges(served), *_describe_weights(served))),
        )
        device = [] if isinstance(served.device, UnsetType) else [f"computed on {printable_line(served.device)}"]
        put(console, *map(Text, device), "")
        put(console, *profile_tables(served.profile, console), *search_lines(served.profile))
        return

    services, problems = load_services(Path(place))
    if as_json:
        print_json(services)
    else:
        _print_services(services, console)
    for problem in problems:
        typer.echo(f"{'note' if isinstance(problem, OutdatedError) else 'error'}: {problem}", err=True)
    if any(not isinstance(problem, OutdatedError) for problem in problems):
        raise typer.Exit(ExitCode.REPOSITORY)


def _describe_names(served: VariantsAnswer) -> tuple[str, str]:
    """What requests and answers call nodes and classes."""
    called = {
        NodeIdKind.POSITIONS: f"0 to {served.nodes - 1}",
        NodeIdKind.INTEGERS: "integers of its source; GET /v1/nodes lists them",
        NodeIdKind.STRINGS: "texts of its source; GET /v1/nodes lists them",
    }
    return f"node ids: {called[served.node_ids]}", told_task(served).describe_answers()


def _describe_weights(served: VariantsAnswer) -> list[str]:
    """What was assumed of weights that were trained elsewhere, and how that was checked."""
    made = served.provenance
    assumed = [f"assumed of the weights: {printable_line(says_assumed(made.assumptions))}"] if made.assumptions else []
    misfit = says_misfits(made.label_misfits)
    return [
        *assumed,
        *(f"compared: {printable_line(one.in_words)}" for one in made.compared),
        *([] if misfit is None else [f"warning: {printable_line(misfit)}"]),
    ]


def _describe_edges(served: VariantsAnswer) -> list[str]:
    """How edges of changes and overlays count."""
    if (rules := served.provenance.edge_rules) is not None:
        return [f"edges: {rules.in_words}{_payload_words(served)}"]
    told = () if isinstance(served.relations, UnsetType) else served.relations
    reverses = {(one.target, one.reverse_of, one.source): one.name for one in told}
    return [
        f"edges of {printable_line(' '.join(key))}: {_relation_words(one, reverses.get(key))}"
        for one in told
        # A server of an earlier version says nothing of it.
        if one.reverse_of is None and not isinstance(one.merges, UnsetType)
        for key in ((one.source, one.name, one.target),)
    ]


def _relation_words(relation: RelationAnswer, reverse: str | None) -> str:
    way = "both ways" if relation.both_ways else "as listed"
    goes_along = f", {printable_line(reverse)} goes with it" if reverse is not None else ""
    return f"{way}{goes_along}; repeated ones count {'once' if relation.merges else 'each'}{_payload_words(relation)}"


def _payload_words(edges: VariantsAnswer | RelationAnswer) -> str:
    """What each edge has, as a clause of a sentence about edges."""
    features = () if isinstance(edges.edge_features, UnsetType) else edges.edge_features
    said = [f"features {', '.join(features)}"] * bool(features)
    said += [] if isinstance(edges.edge_time, UnsetType) else [f"time {edges.edge_time}"]
    return printable_line("".join(f"; {words}" for words in said))


def _print_services(services: list[ServiceRevisions], console: Console) -> None:
    for service in services:
        for revision in service.revisions:
            put(console, f"{service.namespace}/{service.service}  revision {revision.revision}")
            put(console, f"recipe {revision.recipe}  graph {revision.graph}  {revision.created_at[:19]}Z")
            put(console, *([] if revision.edge_rules is None else [f"edges: {revision.edge_rules.in_words}"]), "")
            put(console, *profile_tables(revision.profile, console), *search_lines(revision.profile), "")
