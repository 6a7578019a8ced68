"""`gnnserve run`: from a manifest to a server that answers, generating only what is missing."""

from __future__ import annotations

from gnnserve_api.errors import RepositoryError
from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.options import (
    DEFAULT_REPOSITORY,
    AcceptedTokens,
    CacheName,
    DeviceName,
    EmbeddingsUris,
    GpuMemory,
    GrpcPort,
    Host,
    OtlpEndpoint,
    Port,
    PostgresUri,
    Prometheus,
    RepositoryRoot,
    ServedManifests,
    Shares,
    TlsCertificate,
    TlsKey,
    TracePermille,
    WriteTokens,
    read_shares,
)


def run(
    manifests: ServedManifests,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    grpc_port: GrpcPort = None,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    prometheus: Prometheus = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: AcceptedTokens = None,
    write_token_file: WriteTokens = None,
    postgres_uri_file: PostgresUri = None,
    embeddings_uri_file: EmbeddingsUris = None,
    device: DeviceName = None,
    cache: CacheName = None,
    gpu_memory: GpuMemory = None,
    share: Shares = None,
    otlp_endpoint: OtlpEndpoint = None,
    trace_permille: TracePermille = None,
) -> None:
    """Train, profile and serve manifests; a second start serves what is already there."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_cli.embedding import check_sinks  # noqa: PLC0415
    from gnnserve_cli.generation_process import WantedRevision, published_revisions  # noqa: PLC0415
    from gnnserve_cli.server_options import read_options  # noqa: PLC0415
    from gnnserve_cli.serving import (  # noqa: PLC0415
        PublishedService,
        UnpublishedService,
        bound,
        farewell,
        require_names,
        serve_published,
        unpublished,
    )
    from gnnserve_worker.pods.device import require_device  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    services = [load_manifest(manifest) for manifest in manifests]
    require_names(services)
    uri_files = embeddings_uri_file or []
    check_sinks(services, uri_files)
    shares = read_shares(share, [service.metadata.name for service in services])
    options = [
        read_options(
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
            otlp_endpoint,
            trace_permille,
        )
        for service in services
    ]
    # A busy port or a GPU that cannot serve must be reported before training, which takes minutes.
    for service, of_service in zip(services, options, strict=True):
        require_device(of_service.device, service.spec)
    with bound(host, port, grpc_port, len(services)) as listening:
        wanted: list[WantedRevision] = []
        for manifest, service in zip(manifests, services, strict=True):
            stored = Repository(repository, service.metadata.namespace, service.metadata.name)
            sinks = 0 if service.spec.embeddings is None else len(service.spec.embeddings.sinks)
            own_files, uri_files = uri_files[:sinks], uri_files[sinks:]
            wanted.append(WantedRevision(manifest, service, stored, own_files))
        published: list[PublishedService | UnpublishedService] = []
        found = published_revisions(wanted, repository, device)
        for of, revision, sockets, of_service in zip(wanted, found, listening, options, strict=True):
            if isinstance(revision, RepositoryError):
                published.append(unpublished(of.service, sockets, of_service, revision, len(services)))
            else:
                published.append(PublishedService(of.service, of.stored, revision, sockets, of_service))
        serve_published(published, shares)
    farewell()
