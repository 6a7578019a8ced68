"""`gnnserve embeddings export`: the vectors that a variant computes of nodes, as a file for other programs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET
from rich.text import Text

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.files.embeddings import EmbeddingsManifest, Neighbours
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import MAX_SEED
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, OfService, RepositoryRoot, Revision, between
from gnnserve_cli.commands.predict import as_integers, parse_nodes
from gnnserve_cli.out_files import writing
from gnnserve_cli.progress import showing_progress
from gnnserve_cli.render import count, output, print_json, put
from gnnserve_cli.revisions import find_revision

if TYPE_CHECKING:
    import numpy as np

    from gnnserve_worker.generation.embeddings.nodes import EmbeddedNodes


def export(
    revision: Revision,
    variant: Annotated[
        str, typer.Argument(metavar="VARIANT", help="Variant of the revision, with a hidden layer.", show_default=False)
    ],
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    service: OfService = None,
    neighbours: Annotated[
        Neighbours,
        typer.Option(
            "--neighbours",
            help="Compute over all neighbours, or over as many as the variant draws when it serves.",
        ),
    ] = Neighbours.ALL,
    seed: Annotated[
        int, typer.Option(callback=between(0, MAX_SEED), help="Draw neighbours by this number, if they are sampled.")
    ] = 0,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="IDS", help="Nodes, as for `gnnserve predict`. Unset: all.", show_default=False),
    ] = None,
    nodes_file: Annotated[
        Path | None,
        typer.Option("--nodes-file", metavar="FILE", help="Nodes, an id on each line. Unset: all.", show_default=False),
    ] = None,
    node_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Nodes of this type, in a graph of several. Unset: of the type that is classified; where links are "
            "scored, of all.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write to this file, which must not exist, and NAME.json beside it. It ends in .parquet or .npy. "
            "Unset: VARIANT-REVISION.parquet.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the embeddings of nodes by a variant of a published revision to a file."""
    # Imported here: they bring numpy, numba and pyarrow.

    listed = _listed(nodes, nodes_file)
    path = out or Path(f"{variant}-{revision}.parquet")
    found = find_revision(repository, service, revision)
    from gnnserve_worker.generation.embeddings.compute import check_embeddings  # noqa: PLC0415
    from gnnserve_worker.generation.embeddings.files import EmbeddingsRequest, export_embeddings, files_of  # noqa: PLC0415
    from gnnserve_worker.generation.embeddings.nodes import nodes_to_embed  # noqa: PLC0415
    from gnnserve_worker.models.registry import build_network  # noqa: PLC0415
    from gnnserve_worker.opening.revision import build_exact, load_revision  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    check_embeddings(found.revisions[0], variant)
    _check_files(files_of(path)[1])
    build = build_exact if neighbours is Neighbours.ALL else build_network
    loaded = load_revision(Repository(repository, found.namespace, found.service), revision, build=build)
    of = nodes_to_embed(loaded, node_type)
    option = "--nodes" if nodes_file is None else "--nodes-file"
    wanted = EmbeddingsRequest(
        variant, of, None if listed is None else _places_of(listed, of, option), neighbours, seed
    )
    written_by = f"gnnserve {importlib.metadata.version('gnnserve')}"
    with writing(path), showing_progress() as on_progress:
        made = export_embeddings(loaded, f"{found.namespace}/{found.service}", wanted, path, written_by, on_progress)
    if as_json:
        print_json(made)
    else:
        _print(made, path)


def _check_files(paths: Sequence[Path]) -> None:
    """Check all files before anything is computed."""
    for path in paths:
        if path.exists():
            raise InputError("--out", f"{str(path)!r} exists", "name another file, or remove it")
    folder = paths[0].parent
    if not folder.is_dir():
        raise InputError("--out", f"{str(folder)!r} is no folder", "make it, or name a file in another one")


def _listed(nodes: str | None, nodes_file: Path | None) -> tuple[int | str, ...] | list[str] | None:
    """What `parse_nodes` gives; None: all nodes."""
    if nodes is not None and nodes_file is not None:
        raise InputError("--nodes-file", "is given beside --nodes", "give one of them")
    if nodes_file is None:
        return None if nodes is None else parse_nodes(nodes)
    try:
        lines = nodes_file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(
            "--nodes-file", f"{str(nodes_file)!r} cannot be read: {error.strerror}", remedy_of(error, "check the path")
        ) from None
    except UnicodeDecodeError:
        raise InputError("--nodes-file", f"{str(nodes_file)!r} is not UTF-8", "write an id on each line") from None
    if not any(lines):
        raise InputError("--nodes-file", f"{str(nodes_file)!r} is empty", "write an id on each line")
    return [line for line in lines if line]


def _places_of(listed: tuple[int | str, ...] | list[str], of: EmbeddedNodes, option: str) -> np.ndarray:
    """Places of the nodes, int64. Raises InputError that names the first id that there is no node of. `option`: the one
    that lists them."""
    try:
        if isinstance(listed, tuple):
            return of.find(listed)
        if of.id_kind is NodeIdKind.STRINGS:
            return of.find(tuple(listed))
        return of.find(as_integers([part.strip() for part in listed], option))
    except InputError as error:
        raise InputError(option, error.problem, error.remedy) from None


def _print(made: EmbeddingsManifest, path: Path) -> None:
    over = "all neighbours" if made.neighbours is Neighbours.ALL else f"sampled neighbours, seed {made.seed}"
    nodes = count(made.nodes, "node" if made.type is UNSET else f"{made.type} node")
    put(
        output(),
        Text(f"{path}: {nodes}, {count(made.columns, 'column')}, by {made.variant} over {over}"),
        Text(f"{made.service}, revision {made.revision}; {path.with_suffix('.json')} has checksums"),
    )
