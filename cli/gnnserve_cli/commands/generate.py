"""`gnnserve generate`: train, rank and profile into a repository, without serving."""

from __future__ import annotations

import typer

from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, EmbeddingsUris, Json, Manifest, RepositoryRoot
from gnnserve_cli.exits import ExitCode


def generate(
    manifest: Manifest,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    embeddings_uri_file: EmbeddingsUris = None,
    as_json: Json = False,
) -> None:
    """Train, profile and publish a manifest's variants; nothing is done when they are published already."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.embedding import check_sinks, publish_visibly  # noqa: PLC0415
    from gnnserve_cli.generating import generate_visibly  # noqa: PLC0415
    from gnnserve_cli.local_log import log_uid  # noqa: PLC0415
    from gnnserve_cli.render import print_json  # noqa: PLC0415
    from gnnserve_cli.serving import print_profile  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    service = load_manifest(manifest)
    uri_files = embeddings_uri_file or []
    check_sinks([service], uri_files)
    stored = Repository(repository, service.metadata.namespace, service.metadata.name)
    published = generate_visibly(service, stored, log=log_uid(service, stored))
    is_written = publish_visibly(service, stored, published, uri_files)
    if as_json:
        print_json(published)
    else:
        print_profile(published)
    if not is_written:
        raise typer.Exit(ExitCode.RESOURCE)
