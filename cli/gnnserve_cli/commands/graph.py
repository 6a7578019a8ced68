"""`gnnserve graph inspect`: what was understood of a graph, before anything is trained on it."""

from __future__ import annotations

from typing import Annotated

import typer

from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, RepositoryRoot

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
    # Imported here: it brings numpy and numba.
    from gnnserve_cli.graph_inspection import print_inspection  # noqa: PLC0415

    print_inspection(source, repository, as_json=as_json, try_out=try_out)
