"""The program `gnnserve`: its commands, and what happens when one of them fails.

One file per command in `commands/`, which is imported when its command is asked for. Each imports what it computes with
only when it runs, so that `--help`, `validate` and everything that talks to a running server start without numpy, numba
or torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import signal
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from gnnserve_api.errors import ResourceError
from gnnserve_api.extras import CLI, GENERATE, SERVE, Extra, lack_of_package
from gnnserve_cli.exits import MEANINGS, errors_as_exit_codes, exit_in_order, leave


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


_COMMANDS: Mapping[str, tuple[Extra, str]] = {
    "run": (GENERATE, "examples/digits.yaml --port 8080"),
    "plan": (GENERATE, "examples/digits.yaml"),
    "generate": (GENERATE, "examples/digits.yaml --repository .gnnserve"),
    "serve": (SERVE, "examples/digits.yaml --repository .gnnserve --port 8080"),
    "rollback": (SERVE, "examples/digits.yaml --repository .gnnserve"),
    "predict": (CLI, "http://127.0.0.1:8080 --nodes 1,2,3 --latency-ms 5"),
    "recommend": (CLI, "http://127.0.0.1:8080 17 --count 5"),
    "variants": (CLI, "http://127.0.0.1:8080"),
    "report": (SERVE, ".gnnserve --out report.html"),
    "export": (GENERATE, "4d4396dec1c5 x1 --repository .gnnserve --out x1"),
    "load": (SERVE, "http://127.0.0.1:8080 --rate 200 --duration 10"),
    "validate": (CLI, "examples/*.yaml"),
    "graph inspect": (GENERATE, "examples/digits.yaml"),
    "model describe": (GENERATE, "train.py:model --graph train.py:data --out described"),
    "model inspect": (SERVE, "model.safetensors"),
    "embeddings export": (GENERATE, "4d4396dec1c5 x1 --out embeddings.parquet"),
    "changes apply": (SERVE, "new.csv http://127.0.0.1:8080 --token-file write-token"),
    "changes tail": (CLI, "http://127.0.0.1:8080 --after 120"),
    "changes compact": (GENERATE, "service.yaml"),
    "changes purge": (SERVE, "service.yaml"),
}
"""The extra that brings all that a command may need, and arguments of an example. The first word of a command names its
module in `commands/`, the last one its function."""
_GROUPS = {
    "graph": "Look at a graph before anything is trained on it.",
    "model": "Bring models of your own.",
    "embeddings": "Take embeddings of nodes to other programs.",
    "changes": "Change the graph of a running server, or watch its changes.",
}
"""Help of each group of commands."""


@cache
def _build(name: str) -> Any:
    """Build the command of that name, or the group with its commands."""
    module = importlib.import_module(f"gnnserve_cli.commands.{name}")
    built = typer.Typer(name=name, cls=TyperGroup, no_args_is_help=True, help=_GROUPS.get(name), add_completion=False)
    for command, (extra, arguments) in _COMMANDS.items():
        words = command.split()
        if words[0] == name:
            example = f"Example: gnnserve {command} {arguments}"
            built.command(words[-1], cls=Command, epilog=example)(_telling(extra, getattr(module, words[-1])))
    return get_group(built) if name in _GROUPS else get_command(built)


def _telling(extra: Extra, command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says that the extra brings a package where an import of it fails."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except ModuleNotFoundError as error:
            if (package := lack_of_package(error, extra)) is None:
                raise
            raise ResourceError(f"this needs {package}") from error

    return run


class _OnDemand(UserDict[str, Any]):
    """Commands and groups by name, each imported and built when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _build(self.data[name])


class Commands(TyperGroup):
    """Runs a command and turns its errors into one line and an exit code."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _OnDemand({word: word for word in (command.partition(" ")[0] for command in _COMMANDS)})

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with errors_as_exit_codes():  # `--version` and `--help` print here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with errors_as_exit_codes():
            return super().invoke(ctx)

    def get_help_option(self, ctx: Any) -> Any:
        return _without_type(super().get_help_option(ctx))


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
