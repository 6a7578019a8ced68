"""`gnnserve rollback`: write into a manifest which published revision to go back to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gnnserve_api.errors import InputError
from gnnserve_api.manifest import STANDARD_INPUT, load_manifest
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, Json, ManifestFile, RepositoryRoot
from gnnserve_cli.render import print_json

if TYPE_CHECKING:
    from gnnserve_api.spec.service import GNNService
    from gnnserve_worker.repository.repository import Repository

_NAME = re.compile(r"[0-9a-f]{12}")


def rollback(
    manifest: ManifestFile,
    revision: Annotated[
        str | None,
        typer.Argument(
            metavar="REVISION",
            help="Name of the revision. Unset: that of the model before the one that the manifest has.",
            show_default=False,
        ),
    ] = None,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    *,
    undo: Annotated[
        bool, typer.Option("--undo", metavar="", help="Take the revision away: the manifest's own model counts again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Set spec.revision of a manifest, so that `run`, `serve` or `kubectl apply` go back to that revision."""
    # Imported here: they bring numpy, which the other commands start without.
    from gnnserve_cli.manifest_edit import write_revision  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    if undo and revision is not None:
        raise InputError("--undo", f"takes no revision, and {revision} is given", "give one of the two")
    if revision is not None and not _NAME.fullmatch(revision):
        remedy = "give 12 hexadecimal digits, as `gnnserve variants DIR` lists them"
        raise InputError("REVISION", f"{revision!r} is no revision's name", remedy)
    if manifest == STANDARD_INPUT:
        raise InputError("MANIFEST", "is standard input, and a file is to be changed", "name the file")
    service = load_manifest(manifest)
    stored = Repository(repository, service.metadata.namespace, service.metadata.name)
    chosen = None if undo else _choose(service, revision, stored)
    write_revision(manifest, chosen)
    if as_json:
        print_json({"revision": chosen, "before": service.spec.revision})
        return
    typer.echo(f"{manifest}: {'no spec.revision' if chosen is None else f'spec.revision {chosen}'}")
    typer.echo(f"Serve it by `gnnserve run {manifest}`, or in a cluster by `kubectl apply -f {manifest}`.")


def _choose(service: GNNService, revision: str | None, stored: Repository) -> str:
    """The revision to go back to; raises InputError where there is none of that name, or none before."""
    from gnnserve_worker.compaction.answering import require_named  # noqa: PLC0415

    if not stored.revisions():
        if revision is None:
            remedy = "name one: the events of the service in the cluster tell them, or choose another --repository"
            raise InputError("REVISION", f"is not given, and {stored.folder} holds no revisions", remedy)
        typer.echo(f"note: {stored.folder} holds no revisions, so the name is not checked here", err=True)
        return revision
    return require_named(revision, stored).revision if revision is not None else _one_before(service, stored)


def _one_before(service: GNNService, stored: Repository) -> str:
    from gnnserve_worker.repository.history import models_of  # noqa: PLC0415

    spec = service.spec
    models = sorted(models_of(stored).values(), key=lambda one: one[-1].created_at, reverse=True)
    own = [
        place
        for place, revisions in enumerate(models)
        if any(one.revision == spec.revision if spec.revision else one.recipe == spec.recipe() for one in revisions)
    ]
    before = models[own[0] + 1 :] if own else models
    if not before:
        names = ", ".join(revisions[0].revision for revisions in models)
        raise InputError(
            "REVISION", f"is not given, and no model is older; there are, newest first: {names}", "name one"
        )
    return before[0][0].revision
