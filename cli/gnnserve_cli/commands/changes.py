"""`gnnserve changes`: write a file of changes into the graph of a running server, and watch its log."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import MOST_CLIENT_CHARACTERS, MOST_WAIT_S, ChangeRecord
from gnnserve_api.http.protocol import MAX_OFFSET
from gnnserve_cli.client import fetch_changes, open_url, read_access
from gnnserve_cli.commands.options import (
    DEFAULT_REPOSITORY,
    CaFile,
    DeviceName,
    EmbeddingsUris,
    Json,
    Manifest,
    PostgresUri,
    RepositoryRoot,
    TokenFile,
    Url,
    between,
)
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.printable import printable_line
from gnnserve_cli.render import count, facts_table, output, print_json, put
from gnnserve_client.address import Endpoint

if TYPE_CHECKING:
    from gnnserve_client.sending import Applied

LAST_SHOWN = 10
"""Records that `tail` begins with."""
_PAGE = 100
_LONGEST_NAME = MOST_CLIENT_CHARACTERS // 2
_NAME = re.compile(rf"[!-~]{{1,{_LONGEST_NAME}}}")


def apply(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Changes, one in each row: .csv or .parquet.", show_default=False)
    ],
    url: Url,
    *,
    batch: Annotated[
        int, typer.Option("--batch", callback=between(1, 100_000), help="Most changes of one batch.")
    ] = 1000,
    client: Annotated[
        str | None,
        typer.Option(
            "--client",
            metavar="NAME",
            help="Name in the log. The same file is applied again under another one. Unset: `file`.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Apply a file of changes to the graph of a running server; a second run goes on where the first one ended."""
    if client is not None and not _NAME.fullmatch(client):
        raise InputError(
            "--client", f"{client!r} is no name", f"give 1 to {_LONGEST_NAME} printable characters without blanks"
        )
    from gnnserve_cli.changes.sending import send_file  # noqa: PLC0415 - it brings what connects

    name, sent = send_file(file, open_url(url, read_access(token_file, ca_file)), batch, client or "file")
    if as_json:
        print_json({"client": name, **_fields(sent)})
    else:
        put(output(), facts_table(_facts(sent, name)))


def tail(
    url: Url,
    *,
    after: Annotated[
        int | None,
        typer.Option(
            callback=between(0, MAX_OFFSET),
            help=f"Begin behind this offset. Unset: with the last {LAST_SHOWN} batches.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="End where the log ends, instead of waiting.")
    ] = False,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Print the batches of a running server's log of changes, and new ones as they come; Ctrl-C ends it."""
    endpoint = open_url(url, read_access(token_file, ca_file))
    shown = _begin(endpoint) if after is None else after
    while True:
        page = fetch_changes(endpoint, shown, limit=_PAGE, with_content=as_json, wait_s=0 if once else MOST_WAIT_S)
        for record in page.records:
            _print_record(record, as_json=as_json)
            shown = record.offset
        sys.stdout.flush()
        if once and shown >= page.last:
            return


def compact(
    manifest: Manifest,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    *,
    retrain: Annotated[
        bool, typer.Option("--retrain", metavar="", help="Train the networks anew on the changed graph.")
    ] = False,
    postgres_uri_file: PostgresUri = None,
    embeddings_uri_file: EmbeddingsUris = None,
    device: DeviceName = None,
    as_json: Json = False,
) -> None:
    """Make the log of changes part of the graph: the next start begins there, and the log becomes shorter."""
    from gnnserve_cli.changes.stored_log import compact_log  # noqa: PLC0415 - it brings numpy and numba

    compacted = compact_log(manifest, repository, postgres_uri_file, embeddings_uri_file or [], device, retrain=retrain)
    published, offset = compacted.published, compacted.offset
    if as_json:
        print_json({"revision": published.revision, "graph": published.graph, "offset": offset})
    else:
        facts = [("revision", published.revision), ("graph", published.graph), ("offset", f"{offset:,}")]
        put(output(), facts_table(facts))
    if not compacted.is_written:
        raise typer.Exit(ExitCode.RESOURCE)


def purge(
    manifest: Manifest,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    *,
    uid: Annotated[
        str | None,
        typer.Option(
            metavar="UID",
            help="uid of the service that the log belongs to. Unset: the log of servers without a cluster.",
            show_default=False,
        ),
    ] = None,
    postgres_uri_file: PostgresUri = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a log of changes for good, and graphs that it is part of: the graph is that of its source again."""
    from gnnserve_cli.changes.stored_log import purge_log  # noqa: PLC0415 - it brings numpy

    def confirm(said: str) -> bool:
        return yes or _confirmed(f"Remove {said}, for good?")

    purged = purge_log(manifest, repository, uid, postgres_uri_file, confirm)
    if purged is None:
        typer.echo("nothing was removed", err=True)
    elif as_json:
        print_json({"uid": purged.uid, "batches": purged.batches, "changes": purged.changes, "graphs": purged.graphs})
    else:
        typer.echo(f"removed {purged}; {count(purged.graphs, 'graph')} that it was part of")


def _confirmed(question: str) -> bool:
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        typer.echo(err=True)
        raise InputError("--yes", "is not given, and standard input has no answer", "give it, or answer y") from None


def _begin(endpoint: Endpoint) -> int:
    page = fetch_changes(endpoint, None, limit=1)
    return max(page.first - 1, page.last - LAST_SHOWN)


def _print_record(record: ChangeRecord, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(record).decode())
        return
    time = datetime.fromtimestamp(record.time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    refused = "" if isinstance(record.refused, msgspec.UnsetType) else f"  refused: {record.refused}"
    line = (
        f"{record.offset:>8}  {time}  {count(record.changes, 'change'):>13}  {record.client} {record.sequence}{refused}"
    )
    typer.echo(printable_line(line))


def _fields(sent: Applied) -> dict[str, int]:
    return {
        "batches": sent.batches,
        "changes": sent.changes,
        "unchanged": sent.unchanged,
        "repeated": sent.repeated,
        "bothWays": sent.both_ways,
        "lastOffset": sent.last_offset,
    }


def _facts(sent: Applied, name: str) -> list[tuple[str, str]]:
    batches = f"{sent.batches:,} {'batch' if sent.batches == 1 else 'batches'}"
    repeated = f"; {sent.repeated:,} of them from an earlier run" if sent.repeated else ""
    unchanged = f"; {count(sent.unchanged, 'edge')} changed nothing" if sent.unchanged else ""
    both_ways = f"; {count(sent.both_ways, 'edge')} named both ways, and counted twice" if sent.both_ways else ""
    # A file without changes tells no offset.
    offset = [("offset", f"{sent.last_offset:,}")] if sent.batches else []
    return [
        ("applied", f"{count(sent.changes, 'change')} in {batches}{repeated}{unchanged}{both_ways}"),
        *offset,
        ("client", name),
    ]
