"""`gnnserve variants`: what a server or a repository has, with its profile.

A repository is read through its `revision.json` files alone, each checked as when it is served: no array is opened, so
this works on a folder that another process is serving from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import UnsetType
from rich.console import Console
from rich.text import Text

from gnnserve_api.errors import InputError, OutdatedError, RepositoryError, remedy_of
from gnnserve_api.protocol import VariantsAnswer
from gnnserve_api.repository import NodeIdKind, RevisionManifest
from gnnserve_cli.client import fetch_variants, open_url, read_access
from gnnserve_cli.commands.options import CaFile, Json, TokenFile
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.printable import printable_line
from gnnserve_cli.render import count, format_name, output, print_json, profile_tables, put

SHOWN_CLASSES = 12


class ServiceRevisions(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    service: str
    revisions: list[RevisionManifest]
    """Newest first."""


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
        put(console, f"{count(served.nodes, 'node')} with {count(served.features, 'feature')}")
        put(console, *(Text(line) for line in _describe_names(served)))
        device = [] if isinstance(served.device, UnsetType) else [f"computed on {printable_line(served.device)}"]
        put(console, *map(Text, device), "")
        put(console, *profile_tables(served.profile, console))
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
    names = ", ".join(map(format_name, served.classes[:SHOWN_CLASSES]))
    more = f", … {len(served.classes):,} altogether" if len(served.classes) > SHOWN_CLASSES else ""
    return f"node ids: {called[served.node_ids]}", f"{'labels' if served.multi_label else 'label'}: {names}{more}"


def _print_services(services: list[ServiceRevisions], console: Console) -> None:
    for service in services:
        for revision in service.revisions:
            put(console, f"{service.namespace}/{service.service}  revision {revision.revision}")
            put(console, f"recipe {revision.recipe}  graph {revision.graph}  {revision.created_at[:19]}Z", "")
            put(console, *profile_tables(revision.profile, console), "")


def load_services(root: Path) -> tuple[list[ServiceRevisions], list[RepositoryError]]:
    """What can be read, and what cannot: one bad file must not hide the good ones."""
    # Imported here: it brings numpy, which a server's variants are shown without.
    from gnnserve_worker.repository.checks import read_revision_manifest  # noqa: PLC0415

    problems: list[RepositoryError] = []
    found: dict[tuple[str, str], list[RevisionManifest]] = {}
    for service in (service for namespace in _list_root(root) for service in _list(namespace, problems)):
        for folder in _list(service / "revisions", problems):
            # Without its last file a revision is unfinished, or no revision at all.
            if not (folder / "revision.json").is_file():
                continue
            try:
                revision = read_revision_manifest(folder)
            except RepositoryError as problem:
                problems.append(problem)
                continue
            found.setdefault((service.parent.name, service.name), []).append(revision)
    if not found and not problems:
        raise RepositoryError(
            root, "holds no published revision", f"make one with `gnnserve generate MANIFEST --repository {root}`"
        )
    services = [
        ServiceRevisions(namespace, service, sorted(revisions, key=lambda r: r.created_at, reverse=True))
        for (namespace, service), revisions in found.items()
    ]
    return services, problems


def _list_root(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "URL|DIR", f"{str(root)!r} is no folder", "give a repository folder, or http://host:port"
        ) from None
    except OSError as error:
        raise _unreadable(root, error) from error


def _list(folder: Path, problems: list[RepositoryError]) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        problems.append(_unreadable(folder, error))
        return []


def _unreadable(path: Path, error: OSError) -> RepositoryError:
    return RepositoryError(
        path, f"cannot be read: {(error.strerror or str(error)).lower()}", remedy_of(error, "check it")
    )
