"""`gnnserve serve`: answer from a revision that is already published; never trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnserve_api.errors import RepositoryError
from gnnserve_api.manifest import load_manifest
from gnnserve_cli.commands.options import (
    DEFAULT_REPOSITORY,
    AcceptedTokens,
    CacheName,
    DeviceName,
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

if TYPE_CHECKING:
    from pathlib import Path

    from gnnserve_api.spec.service import GNNService, GNNServiceSpec


def serve(
    manifests: ServedManifests,
    repository: RepositoryRoot = DEFAULT_REPOSITORY,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    grpc_port: GrpcPort = None,
    prometheus: Prometheus = None,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: AcceptedTokens = None,
    write_token_file: WriteTokens = None,
    postgres_uri_file: PostgresUri = None,
    device: DeviceName = None,
    cache: CacheName = None,
    gpu_memory: GpuMemory = None,
    share: Shares = None,
    otlp_endpoint: OtlpEndpoint = None,
    trace_permille: TracePermille = None,
) -> None:
    """Serve the published revisions of manifests."""
    # Imported here: they bring numpy and numba, which the other commands start without.
    from gnnserve_cli.local_log import log_uid  # noqa: PLC0415
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
    from gnnserve_worker.compaction.answering import find_answering  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    services = [load_manifest(manifest) for manifest in manifests]
    require_names(services)
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
    with bound(host, port, grpc_port, len(services)) as listening:
        published: list[PublishedService | UnpublishedService] = []
        for manifest, service, sockets, of_service in zip(manifests, services, listening, options, strict=True):
            stored = Repository(repository, service.metadata.namespace, service.metadata.name)
            try:
                revision = find_answering(service.spec, stored, log_uid(service, stored))
                if revision is None:
                    raise _missing(manifest, repository, service)
                published.append(PublishedService(service, stored, revision, sockets, of_service))
            except RepositoryError as error:
                published.append(unpublished(service, sockets, of_service, error, len(services)))
        serve_published(published, shares)
    farewell()


def _missing(manifest: Path, repository: Path, service: GNNService) -> RepositoryError:
    name = f"{service.metadata.namespace}/{service.metadata.name}"
    return RepositoryError(
        repository,
        f"holds no published revision of {name} {_wanted(service.spec)}",
        f"make one with `gnnserve generate {manifest} --repository {repository}`",
    )


def _wanted(spec: GNNServiceSpec) -> str:
    if spec.revision is None:
        return f"with recipe {spec.recipe()}"
    return f"with the model of {spec.revision} (spec.revision) over the graph as it was compacted"
