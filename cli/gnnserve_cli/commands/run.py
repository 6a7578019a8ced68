"""`gnnserve run`: from a manifest to a server that answers, generating only what is missing."""

from __future__ import annotations

from contextlib import closing

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


def run(
    manifest: Manifest,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
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
    """Train, profile and serve a manifest; a second start serves what is already there."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_api.manifest import load_manifest  # noqa: PLC0415
    from gnnserve_cli.serving import farewell, read_options, serve_published  # noqa: PLC0415
    from gnnserve_worker.pods.device import require_device  # noqa: PLC0415
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
    # A busy port or a missing GPU must be reported before training, which takes minutes.
    require_device(options.device)
    with closing(bind(host, port)) as sock:
        from gnnserve_cli.generating import generate_visibly  # noqa: PLC0415
        from gnnserve_cli.updates import log_uid  # noqa: PLC0415

        stored = Repository(repository, service.metadata.namespace, service.metadata.name)
        published = generate_visibly(service, stored, device, log_uid(service, stored))
        serve_published(stored, published, service, sock, options)
    farewell()
