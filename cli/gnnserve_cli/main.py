"""The program `gnnserve`: its commands, and what happens when one of them fails.

One file per command in `commands/`. Each imports what it computes with only when it runs, so that `--help`,
`validate` and everything that talks to a running server start without numpy, numba or torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from gnnserve_cli.commands import changes, embeddings
from gnnserve_cli.commands.cache import simulate
from gnnserve_cli.commands.export import export
from gnnserve_cli.commands.generate import generate
from gnnserve_cli.commands.graph import inspect
from gnnserve_cli.commands.load import load
from gnnserve_cli.commands.model import describe
from gnnserve_cli.commands.plan import plan
from gnnserve_cli.commands.predict import predict
from gnnserve_cli.commands.recommend import recommend
from gnnserve_cli.commands.report import report
from gnnserve_cli.commands.rollback import rollback
from gnnserve_cli.commands.run import run
from gnnserve_cli.commands.serve import serve
from gnnserve_cli.commands.validate import validate
from gnnserve_cli.commands.variants import variants
from gnnserve_cli.exits import MEANINGS, errors_as_exit_codes, exit_in_order, leave


class Commands(TyperGroup):
    """Runs a command and turns its errors into one line and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with errors_as_exit_codes():  # `--version` and `--help` print here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            return super().invoke(ctx)

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


class Command(TyperCommand):
    """Names the value that is no number, or no word that is known. Shows `--help` without `<bool>`, as the flags of
    every command are shown."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = _with_value(error.__cause__)
            raise

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


_NO_NUMBER = {"int_parsing": "is no whole number", "float_parsing": "is no number"}
"""By pydantic's kind of error: what a value is not."""


def _with_value(error: ValidationError) -> str:
    """The first error of an option's value, with the value."""
    first = error.errors()[0]
    if first["type"] in _NO_NUMBER:
        return f"{first['input']!r} {_NO_NUMBER[first['type']]}."
    return first["msg"].removeprefix("Value error, ")


def _without_type(flag: Any) -> Any:
    if flag is not None:
        flag.metavar = ""
    return flag


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gnnserve {importlib.metadata.version('gnnserve')}")
        raise typer.Exit


_EPILOG = "\n".join(
    [
        "Example: gnnserve run examples/digits.yaml",
        "",
        "Exit codes:",
        *(f"{int(code):>3}  {meaning}" for code, meaning in MEANINGS.items()),
    ]
)

app = typer.Typer(
    name="gnnserve",
    cls=Commands,
    no_args_is_help=True,
    epilog=_EPILOG,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _gnnserve(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Serve one graph neural network as several variants, at the highest accuracy the objective allows."""


for command, example in (
    (run, "gnnserve run examples/digits.yaml --port 8080"),
    (plan, "gnnserve plan examples/digits.yaml"),
    (generate, "gnnserve generate examples/digits.yaml --repository .gnnserve"),
    (serve, "gnnserve serve examples/digits.yaml --repository .gnnserve --port 8080"),
    (rollback, "gnnserve rollback examples/digits.yaml --repository .gnnserve"),
    (predict, "gnnserve predict http://127.0.0.1:8080 --nodes 1,2,3 --latency-ms 5"),
    (recommend, "gnnserve recommend http://127.0.0.1:8080 17 --count 5"),
    (variants, "gnnserve variants http://127.0.0.1:8080"),
    (report, "gnnserve report .gnnserve --out report.html"),
    (export, "gnnserve export 4d4396dec1c5 x1 --repository .gnnserve --out x1"),
    (load, "gnnserve load http://127.0.0.1:8080 --rate 200 --duration 10"),
    (validate, "gnnserve validate examples/*.yaml"),
):
    app.command(cls=Command, epilog=f"Example: {example}")(command)

graph = typer.Typer(cls=TyperGroup, no_args_is_help=True, help="Look at a graph before anything is trained on it.")
graph.command(cls=Command, epilog="Example: gnnserve graph inspect examples/digits.yaml")(inspect)
app.add_typer(graph, name="graph")

model = typer.Typer(cls=TyperGroup, no_args_is_help=True, help="Bring models of your own.")
_DESCRIBE = "gnnserve model describe train.py:model --graph train.py:data --out described"
model.command(cls=Command, epilog=f"Example: {_DESCRIBE}")(describe)
app.add_typer(model, name="model")

vectors = typer.Typer(cls=TyperGroup, no_args_is_help=True, help="Take embeddings of nodes to other programs.")
_EMBEDDINGS = "gnnserve embeddings export 4d4396dec1c5 x1 --out embeddings.parquet"
vectors.command(cls=Command, epilog=f"Example: {_EMBEDDINGS}")(embeddings.export)
app.add_typer(vectors, name="embeddings")

cache = typer.Typer(cls=TyperGroup, no_args_is_help=True, help="Choose what a GPU worker keeps in its cache.")
cache.command(cls=Command, epilog="Example: gnnserve cache simulate flickr --trace zipf --out cache.html")(simulate)
app.add_typer(cache, name="cache")

log = typer.Typer(
    cls=TyperGroup, no_args_is_help=True, help="Change the graph of a running server, or watch its changes."
)
_APPLY = "gnnserve changes apply new.csv http://127.0.0.1:8080 --token-file write-token"
log.command(cls=Command, epilog=f"Example: {_APPLY}")(changes.apply)
log.command(cls=Command, epilog="Example: gnnserve changes tail http://127.0.0.1:8080 --after 120")(changes.tail)
log.command(cls=Command, epilog="Example: gnnserve changes compact service.yaml")(changes.compact)
log.command(cls=Command, epilog="Example: gnnserve changes purge service.yaml")(changes.purge)
app.add_typer(log, name="changes")


def _open_closed_streams() -> None:
    """`>&-` leaves no stream at all. Opened first, the null device also takes the number that a socket would get."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - until the interpreter exits
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def main() -> None:
    _open_closed_streams()
    # A server that is up has a handler of its own, and drains.
    signal.signal(signal.SIGTERM, exit_in_order)
    leave(_run())


def _run() -> str | int | None:
    try:
        app()
    except SystemExit as end:
        return 0 if end.code is None else end.code
    return 0
