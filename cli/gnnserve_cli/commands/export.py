"""`gnnserve export`: a variant as a program that runs without gnnserve."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gnnserve_api.errors import InputError
from gnnserve_api.extras import EXPORT, GENERATE
from gnnserve_api.files.export import ExportFormat, ExportManifest
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, OfService, RepositoryRoot, Revision
from gnnserve_cli.out_files import writing
from gnnserve_cli.render import count, output, print_json, put
from gnnserve_cli.revisions import find_revision


def export(
    revision: Revision,
    variant: Annotated[
        str, typer.Argument(metavar="VARIANT", help="Variant of the revision, but no cascade.", show_default=False)
    ],
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    service: OfService = None,
    formats: Annotated[
        list[ExportFormat] | None,
        typer.Option(
            "--format",
            help="A program of torch.export, or ONNX; may be repeated. Unset: torch. ONNX needs the extra `export`.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write to this folder, which must not exist. Unset: VARIANT-REVISION.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a variant as a program that runs elsewhere, with an example of its inputs and scores."""
    # Imported here: they bring numpy, numba and torch.

    chosen = list(dict.fromkeys(formats or [ExportFormat.TORCH]))
    folder = out or Path(f"{variant}-{revision}")
    if ExportFormat.ONNX in chosen:
        EXPORT.require("--format onnx")
    GENERATE.require("export", "torch")
    found = find_revision(repository, service, revision)
    from gnnserve_worker.export.write import check_variant, export_variant  # noqa: PLC0415
    from gnnserve_worker.opening.revision import build_exact, load_revision  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    check_variant(found.revisions[0], variant)
    _check_folder(folder)
    loaded = load_revision(Repository(repository, found.namespace, found.service), revision, build=build_exact)
    written_by = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("gnnserve", "torch"))
    with writing(folder):
        made = export_variant(loaded, f"{found.namespace}/{found.service}", variant, chosen, folder, written_by)
    if as_json:
        print_json(made)
    else:
        _print(made, folder)


def _check_folder(folder: Path) -> None:
    """Check the folder before anything is made."""
    if folder.exists():
        raise InputError("--out", f"{str(folder)!r} exists", "name a new folder, or remove it")
    if not folder.parent.is_dir():
        raise InputError("--out", f"{str(folder.parent)!r} is no folder", "make it, or name a folder in another one")


def _print(made: ExportManifest, folder: Path) -> None:
    lines = [f"{folder}: {made.variant} of {made.service}, revision {made.revision}"]
    for chosen, file in made.programs.items():
        checks = [check for check in made.checks if check.format == chosen]
        largest = max(check.largest_difference for check in checks)
        few = " and ".join(count(check.nodes, "node") for check in checks if check.batches == 1)
        many = " and ".join(
            f"{check.batches} batches of up to {check.rows:,} rows" for check in checks if check.batches > 1
        )
        lines.append(f"{file}: scores of {few}, and of {many}, are gnnserve's own within {largest:.1g}")
    lines.append("README.md shows how to run it, example.safetensors has inputs and scores")
    put(output(), *map(Text, lines))
