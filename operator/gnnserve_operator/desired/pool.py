"""Children that a GNNWorkerPool has in place of a GNNService's: pods that answer for several services, and the list of
these.

The pod template depends on the pool's spec, and on which of its services have Secrets, which only a template can mount.
So a service without Secrets joins and leaves by the list alone, and no pod is replaced for it. Workers may read the
list and the services' routing tables, and no Secret: rights to these would be wider than mounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnserve_api.device import size_bytes
from gnnserve_api.pods import interface as pods
from gnnserve_api.pods.change_log import URI_KEY
from gnnserve_api.pods.pool import SERVICES_KEY, PoolService, PoolServices, encode_services
from gnnserve_api.pods.routing import CredentialKind
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.desired.access import port_of_receiver
from gnnserve_operator.desired.deployment import MountedClaim, WorkerProgram, pool_pods, template_of
from gnnserve_operator.desired.metadata import (
    DIGEST_ANNOTATION,
    Component,
    Parent,
    child_metadata,
    digest_of,
    pool_claim_name,
    pool_services_name,
    routing_name,
)
from gnnserve_operator.desired.pod import secret_volume
from gnnserve_operator.desired.storage import WantedClaim, log_secret, log_uid_of
from gnnserve_operator.kinds import Manifest
from gnnserve_operator.settings import Settings

_SERVICES_VOLUME = "services"


def claim_of(pool: str, spec: GNNWorkerPoolSpec) -> str:
    """Name of the claim with the repository of all services of a pool."""
    return spec.repository.claim_name or pool_claim_name(pool)


def secrets_of(spec: GNNServiceSpec) -> dict[CredentialKind, str]:
    """Names of the Secrets of a service, by what is in them."""
    endpoint = spec.endpoint
    named = {
        CredentialKind.TLS: endpoint.tls,
        CredentialKind.TOKENS: endpoint.tokens,
        CredentialKind.WRITE_TOKENS: endpoint.write_tokens,
    }
    found = {kind: section.secret_name for kind, section in named.items() if section is not None}
    log = log_secret(spec)
    return found if log is None else found | {CredentialKind.LOG: log}


def entry_of(name: str, uid: str, spec: GNNServiceSpec, port: int) -> PoolService:
    """The entry of a service in the list of its pool. `uid`: of the GNNService."""
    secrets, updates, tracing = secrets_of(spec), spec.updates, spec.worker.tracing
    return PoolService(
        name,
        port,
        routing_name(name),
        share=spec.worker.share,
        tls=CredentialKind.TLS in secrets,
        tokens=CredentialKind.TOKENS in secrets,
        write_tokens=CredentialKind.WRITE_TOKENS in secrets,
        log_uid=log_uid_of(uid, updates),
        max_delta_bytes=max_delta_of(spec),
        grpc=spec.endpoint.grpc,
        tracing="" if tracing is None else tracing.endpoint,
        sampled_permille=0 if tracing is None else tracing.sampled_permille,
    )


def max_delta_of(spec: GNNServiceSpec) -> int:
    """Memory that changes may take; 0: there is no log."""
    return 0 if spec.updates is None else size_bytes(spec.updates.max_delta)


@dataclass(frozen=True, slots=True)
class PoolInputs:
    """The inputs from which a pool's children are built."""

    parent: Parent
    spec: GNNWorkerPoolSpec
    settings: Settings
    services: PoolServices
    secrets: Mapping[str, Mapping[CredentialKind, str]]
    """Names of the Secrets that pods mount, by service."""
    mounted: MountedClaim
    claim: WantedClaim
    pod_monitor_available: bool
    intervals_s: tuple[int, ...]
    """Intervals in which the slow loops of its services look at the load."""

    @property
    def followed(self) -> list[str]:
        """Names of the ConfigMaps that workers follow."""
        return [pool_services_name(self.parent.name), *sorted(service.routing for service in self.services.services)]

    @property
    def with_database(self) -> bool:
        """Whether one of the services has its log of changes in a database."""
        return any(CredentialKind.LOG in of_service for of_service in self.secrets.values())

    @property
    def receivers(self) -> list[int]:
        """Ports of what takes the services' traces."""
        return sorted({port for found in self.services.services for port in port_of_receiver(found.tracing)})


def build_services(parent: Parent, services: PoolServices) -> Manifest:
    """The ConfigMap that every worker follows; also the operator's memory of ports. It is sealed by a digest."""
    data = {SERVICES_KEY: encode_services(services)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(
            parent,
            pool_services_name(parent.name),
            Component.WORKER,
            annotations={DIGEST_ANNOTATION: digest_of(data)},
        ),
        "data": data,
    }


def build_pool_template(given: PoolInputs) -> Manifest:
    """The pod template of the workers of a pool."""
    mounted = [
        (f"{kind.lower()}-{number}", service, kind, secret)
        for number, (service, secrets) in enumerate(sorted(given.secrets.items()))
        for kind, secret in sorted(secrets.items())
    ]
    program = WorkerProgram(
        pods.SERVE_POOL_COMMAND,
        pods.POOL_VARIABLE,
        pods.SERVICES_VARIABLE,
        pool_services_name(given.parent.name),
        _SERVICES_VOLUME,
        pods.SERVICES_PATH,
        mounts=[
            {"name": name, "mountPath": pods.service_secret_path(service, kind), "readOnly": True}
            for name, service, kind, _ in mounted
        ],
        volumes=[
            secret_volume(name, secret, *([URI_KEY] if kind is CredentialKind.LOG else []))
            for name, _, kind, secret in mounted
        ],
    )
    return template_of(given.parent, pool_pods(given.parent.name, given.spec), given.settings, given.mounted, program)
