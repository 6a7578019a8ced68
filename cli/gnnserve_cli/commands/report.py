"""`gnnserve report`: what a profile means, as one page, in the terminal, or as JSON."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gnnserve_api.errors import InputError
from gnnserve_api.extras import PICTURES
from gnnserve_cli.client import read_access
from gnnserve_cli.commands.options import CaFile, Json, OfService, TokenFile, between
from gnnserve_cli.render import output, print_json, put


def _each_between(low: float, high: float) -> object:
    check = between(low, high)
    return lambda values: [check(value) for value in values or []]


def report(
    place: Annotated[
        str, typer.Argument(metavar="URL|DIR", help="A server or a repository folder.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page to this .html file; an existing one is replaced."),
    ] = None,
    as_json: Json = False,
    service: OfService = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="NAME", help="Revision in a folder. Unset: the newest.")
    ] = None,
    with_updates: Annotated[
        bool,
        typer.Option(
            "--with-updates",
            metavar="",
            help="Leave out variants in a folder that do not follow changes of the graph, as workers do with "
            "spec.updates. A server says it itself.",
        ),
    ] = False,
    latency_ms: Annotated[
        list[float] | None,
        typer.Option(
            "--latency-ms",
            callback=_each_between(0.001, 3_600_000),
            help="Say what meets this latency; may be repeated.",
        ),
    ] = None,
    tolerance_permille: Annotated[
        list[float] | None,
        typer.Option(
            "--accuracy-tolerance-permille",
            callback=_each_between(0, 1000),
            help="Say what this tolerance buys; may be repeated. 10 is one point. Unset: 0, 10, 20, 50 and 100.",
        ),
    ] = None,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", help="Batch size of the latencies, one that was measured. Unset: the largest."),
    ] = None,
) -> None:
    """Explain accuracy, latency and cost of the variants."""
    from gnnserve_cli.report.build import build_report  # noqa: PLC0415 - other commands start without it
    from gnnserve_cli.report.subject import fetch_subject, load_subject  # noqa: PLC0415

    if out is not None:
        check_page(out)
    if "://" in place:
        for option, given in (("--service", service), ("--revision", revision)):
            if given is not None:
                raise InputError(
                    option, "selects within a folder, and this is a server with one revision", "leave it out"
                )
        if with_updates:
            raise InputError("--with-updates", "is about a folder, and a server says it itself", "leave it out")
        subject = fetch_subject(place, read_access(token_file, ca_file))
    else:
        subject = load_subject(Path(place), service, revision, graph_changes=with_updates)
    made = build_report(
        subject,
        f"gnnserve {importlib.metadata.version('gnnserve')}",
        seeds,
        latency_ms or (),
        tolerance_permille or (),
    )
    if out is not None:
        from gnnserve_cli.report.html import build_page  # noqa: PLC0415

        write_page(out, build_page(made))
    if as_json:
        print_json(made)
    elif out is None:
        from gnnserve_cli.report.terminal import render_report  # noqa: PLC0415

        put(output(), *render_report(made))
    else:
        put(output(), Text(f"{out}: report of {made.service}, revision {made.revision}"))


def check_page(path: Path) -> None:
    """Check the path of the page before a server is asked."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError("--out", f"{str(path)!r} does not end in .html", "give the file that ending")
    if path.is_dir():
        raise InputError("--out", f"{str(path)!r} is a folder", "name a file")
    if not path.parent.is_dir():
        raise InputError("--out", f"{str(path.parent)!r} is no folder", "make it, or name a file in another one")
    PICTURES.require("--out")


def write_page(path: Path, page: str) -> None:
    """Write the page whole or not at all: an existing page stays until the new one is complete."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        try:
            unfinished.write_text(page, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            "--out", f"{str(path)!r} cannot be written: {error.strerror}", "name a file in a folder that can"
        ) from error
