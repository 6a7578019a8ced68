"""`gnnserve changes`: write a file of changes into the graph of a running server, and watch its log."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gnnserve_api.errors import GnnserveError, InputError
from gnnserve_api.http.changes import MOST_CLIENT_CHARACTERS, MOST_WAIT_S, ChangeRecord
from gnnserve_api.http.protocol import MAX_OFFSET
from gnnserve_cli.client import fetch_changes, open_url, opened, read_access
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
_DIGEST_DIGITS = 16


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
    from gnnserve_cli.changes.batches import batches_of  # noqa: PLC0415
    from gnnserve_cli.changes.files import digest_of, read_changes  # noqa: PLC0415
    from gnnserve_cli.changes.sending import Sender, TellingConnection  # noqa: PLC0415
    from gnnserve_cli.progress import showing_progress  # noqa: PLC0415
    from gnnserve_client.sending import Applied  # noqa: PLC0415
    from gnnserve_worker.progress import Progress  # noqa: PLC0415

    if client is not None and not _NAME.fullmatch(client):
        raise InputError(
            "--client", f"{client!r} is no name", f"give 1 to {_LONGEST_NAME} printable characters without blanks"
        )
    endpoint = open_url(url, read_access(token_file, ca_file))
    digest, lines = digest_of(file)
    changes, known = read_changes(file)
    total = max(1, lines - 1) if known is None else known
    # Batches depend on their size as well, so that another size is another client.
    name = f"{client or 'file'}-{digest[:_DIGEST_DIGITS]}-{batch}"
    stage = f"apply {file.name}"
    sent = Applied()
    with showing_progress() as listener, closing(TellingConnection(endpoint, _note)) as connection:

        def tell(now: Applied) -> None:
            nonlocal sent
            sent = now
            listener(Progress(stage, min(now.changes, total - 1), total, f"offset {now.last_offset:,}"))

        listener(Progress(stage, 0, total))
        try:
            Sender(opened(endpoint, is_retrying=True), connection, name).send_all(batches_of(changes, batch), tell)
        except (GnnserveError, KeyboardInterrupt):
            if sent.batches:
                _note(f"{count(sent.changes, 'change')} are applied; the same command goes on behind them")
            raise
        listener(Progress(stage, total, total, f"offset {sent.last_offset:,}" if sent.batches else "no changes"))
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
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.embedding import check_sinks, publish_visibly  # noqa: PLC0415
    from gnnserve_cli.generating import advise, generating_visibly, keep_models  # noqa: PLC0415
    from gnnserve_cli.local_log import check_address, updates_of  # noqa: PLC0415
    from gnnserve_worker.compaction.compact import compact as fold  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    service = load_manifest(manifest)
    check_address(service, postgres_uri_file)
    uri_files = embeddings_uri_file or []
    check_sinks([service], uri_files)
    stored = Repository(repository, service.metadata.namespace, service.metadata.name)
    if (updates := updates_of(service, stored, postgres_uri_file)) is None:
        raise InputError("spec.updates", "is not set", "name a log, as in examples/digits-updates.yaml")
    generated = generating_visibly(service, stored, device, partial(fold, service, stored, updates, retrain=retrain))
    published = generated.published
    keep_models(service, stored, published)
    if retrain:
        advise(generated, stored)
    # Before the result is shown: it is of a revision that answers whatever the one before it did.
    is_written = publish_visibly(service, stored, published, uri_files)
    made_of = stored.made_of(published)
    offset = 0 if made_of is None else made_of.offset
    if as_json:
        print_json({"revision": published.revision, "graph": published.graph, "offset": offset})
    else:
        facts = [("revision", published.revision), ("graph", published.graph), ("offset", f"{offset:,}")]
        put(output(), facts_table(facts))
    if not is_written:
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
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.local_log import check_address, forget_uid, updates_of  # noqa: PLC0415
    from gnnserve_worker.changes.options import SqliteFile  # noqa: PLC0415
    from gnnserve_worker.changes.registry import opened_log  # noqa: PLC0415
    from gnnserve_worker.repository.paths import ServicePaths  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    service = load_manifest(manifest)
    check_address(service, postgres_uri_file)
    stored = Repository(repository, service.metadata.namespace, service.metadata.name)
    if (updates := updates_of(service, stored, postgres_uri_file)) is None:
        raise InputError("spec.updates", "is not set", "name a log, as in examples/digits-updates.yaml")
    if uid is not None:
        in_file = isinstance(updates.log, SqliteFile)
        log = SqliteFile(ServicePaths(stored.folder).log(uid)) if in_file else updates.log
        updates = replace(updates, uid=uid, log=log)
    if isinstance(updates.log, SqliteFile) and not updates.log.path.exists():
        raise InputError(f"{updates.log.path}", "there is no such log", "see --uid and --repository")
    with opened_log(updates.log, updates.uid) as opened:
        at = opened.position()
        batches = f"{at.last:,} {'batch' if at.last == 1 else 'batches'}"
        said = f"the log of {updates.uid}: {batches}, {count(at.total_changes, 'change')}"
        if not yes and not _confirmed(f"Remove {said}, for good?"):
            typer.echo("nothing was removed", err=True)
            return
        opened.drop()
    with stored.locked():
        versions = [one.digest for one in stored.graph_versions(updates.uid)]
        stored.remove_versions(versions)
    if uid is None and service.spec.updates is not None and service.spec.updates.adopt is None:
        forget_uid(stored)
    if as_json:
        print_json({"uid": updates.uid, "batches": at.last, "changes": at.total_changes, "graphs": len(versions)})
    else:
        typer.echo(f"removed {said}; {count(len(versions), 'graph')} that it was part of")


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
        "lastOffset": sent.last_offset,
    }


def _facts(sent: Applied, name: str) -> list[tuple[str, str]]:
    batches = f"{sent.batches:,} {'batch' if sent.batches == 1 else 'batches'}"
    repeated = f"; {sent.repeated:,} of them from an earlier run" if sent.repeated else ""
    unchanged = f"; {count(sent.unchanged, 'edge')} changed nothing" if sent.unchanged else ""
    # A file without changes tells no offset.
    offset = [("offset", f"{sent.last_offset:,}")] if sent.batches else []
    return [
        ("applied", f"{count(sent.changes, 'change')} in {batches}{repeated}{unchanged}"),
        *offset,
        ("client", name),
    ]


def _note(words: str) -> None:
    print(f"note: {words}", file=sys.stderr)
