"""`gnnserve generate`: train, rank and profile into a repository, without serving."""

from __future__ import annotations

import typer

from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.options import DEFAULT_REPOSITORY, EmbeddingsUris, Json, Manifest, RepositoryRoot
from gnnserve_cli.exits import ExitCode
from gnnserve_cli.render import print_json, print_profile


def generate(
    manifest: Manifest,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    embeddings_uri_file: EmbeddingsUris = None,
    as_json: Json = False,
) -> None:
    """Train, profile and publish a manifest's variants; nothing is done when they are published already."""
    # They bring numpy and numba, which the other commands start without.
    from gnnserve_cli.embedding import check_sinks  # noqa: PLC0415
    from gnnserve_cli.generating import publish  # noqa: PLC0415

    service, uri_files = load_manifest(manifest), embeddings_uri_file or []
    check_sinks([service], uri_files)
    published, is_written = publish(service, repository, uri_files)
    if as_json:
        print_json(published)
    else:
        print_profile(published.profile)
    if not is_written:
        raise typer.Exit(ExitCode.RESOURCE)
