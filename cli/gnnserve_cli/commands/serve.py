"""`gnnserve serve`: answer from a revision that is already published; never trains."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from gnnserve_api.errors import RepositoryError
from gnnserve_cli.commands.options import (
    DEFAULT_REPOSITORY,
    AcceptedTokens,
    CacheName,
    DeviceName,
    GpuMemory,
    Host,
    Manifest,
    Port,
    PostgresUri,
    Prometheus,
    RepositoryRoot,
    TlsCertificate,
    TlsKey,
    WriteTokens,
)

if TYPE_CHECKING:
    from gnnserve_api.spec.service import GNNServiceSpec


def serve(
    manifest: Manifest,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    prometheus: Prometheus = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: AcceptedTokens = None,
    write_token_file: WriteTokens = None,
    postgres_uri_file: PostgresUri = None,
    device: DeviceName = None,
    cache: CacheName = None,
    gpu_memory: GpuMemory = None,
) -> None:
    """Serve the published revision of a manifest."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.serving import farewell, read_options, serve_published  # noqa: PLC0415
    from gnnserve_cli.updates import log_uid  # noqa: PLC0415
    from gnnserve_worker.compaction.answering import find_answering  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import bind  # noqa: PLC0415

    service = load_manifest(manifest)
    options = read_options(
        service,
        prometheus,
        tls_cert,
        tls_key,
        token_file,
        write_token_file,
        postgres_uri_file,
        device,
        cache,
        gpu_memory,
    )
    with closing(bind(host, port)) as sock:
        stored = Repository(repository, service.metadata.namespace, service.metadata.name)
        published = find_answering(service.spec, stored, log_uid(service, stored))
        if published is None:
            name = f"{service.metadata.namespace}/{service.metadata.name}"
            raise RepositoryError(
                repository,
                f"holds no published revision of {name} {_wanted(service.spec)}",
                f"make one with `gnnserve generate {manifest} --repository {repository}`",
            )
        serve_published(stored, published, service, sock, options)
    farewell()


def _wanted(spec: GNNServiceSpec) -> str:
    if spec.revision is None:
        return f"with recipe {spec.recipe()}"
    return f"with the model of {spec.revision} (spec.revision) over the graph as it was compacted"
