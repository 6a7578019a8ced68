"""The children of a GNNWorkerPool: pods that answer for several services, and the list of these.

The pod template depends on the pool's spec, and on which of its services have Secrets, which only a template can mount.
So a service without Secrets joins and leaves by the list alone, and no pod is replaced for it. Workers may read the
list and the services' routing tables, and no Secret: rights to these would be wider than mounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnserve_api import pods
from gnnserve_api.device import size_bytes
from gnnserve_api.pool import SERVICES_KEY, PoolService, PoolServices, encode_services
from gnnserve_api.routing import CredentialKind
from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.worker import PoolRef
from gnnserve_api.updates import URI_KEY
from gnnserve_operator.desired.access import (
    build_pool_network_policy,
    build_role,
    build_role_binding,
    build_service_account,
)
from gnnserve_operator.desired.deployment import (
    MountedClaim,
    build_disruption_budget,
    deployment_of,
    placed_with_account,
    ports_and_probes,
)
from gnnserve_operator.desired.labels import DIGEST_ANNOTATION, Component, pool_labels
from gnnserve_operator.desired.metadata import Manifest, Parent, child_metadata, digest_of
from gnnserve_operator.desired.names import pool_claim_name, pool_services_name, routing_name
from gnnserve_operator.desired.pod import (
    REPOSITORY_VOLUME,
    WORKER_CONTAINER,
    build_container,
    build_pod_metadata,
    build_pod_spec,
    build_resources,
    claim_volume,
    secret_volume,
)
from gnnserve_operator.desired.service import build_pod_monitor
from gnnserve_operator.desired.tracing import port_of_receiver
from gnnserve_operator.desired.updates import log_secret, log_uid_of
from gnnserve_operator.desired.volume_claim import WantedClaim, build_volume_claim
from gnnserve_operator.settings import Settings

_SERVICES_VOLUME = "services"
_A_SERVICE = GNNServiceSpec.model_validate({"graph": {"source": {"builtin": "Digits"}}})


def claim_of(pool: str, spec: GNNWorkerPoolSpec) -> str:
    """Name of the claim with the repository of all services of a pool."""
    return spec.repository.claim_name or pool_claim_name(pool)


def as_service(pool: str, spec: GNNWorkerPoolSpec) -> GNNServiceSpec:
    """A service's spec with the pool's pods, for what is asked and built of pods alone. Its graph is no one's."""
    lent = spec.lend(_A_SERVICE, claim_of(pool, spec))
    # With the pool's own claim, whose access mode says where pods may be.
    repository = lent.repository.model_copy(update=_place_of(spec))
    # Messages then name fields of the pool.
    worker = lent.worker.model_copy(update={"pool_ref": PoolRef(name=pool)})
    return lent.model_copy(update={"repository": repository, "worker": worker})


def _place_of(spec: GNNWorkerPoolSpec) -> dict[str, object]:
    return {name: getattr(spec.repository, name) for name in type(spec.repository).model_fields}


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
    claim: MountedClaim
    wanted_claim: WantedClaim
    pod_monitor_available: bool
    scrape_interval_s: int
    """The shortest interval in which the slow loop of one of the services looks at the load."""


def build_pool_children(given: PoolInputs) -> tuple[Manifest, ...]:
    """All children of a pool that should exist, in the order in which they are applied."""
    parent, spec, settings = given.parent, given.spec, given.settings
    like = as_service(parent.name, spec)
    followed = [pool_services_name(parent.name), *sorted(service.routing for service in given.services.services)]
    template = build_pool_template(given)
    found = (
        build_service_account(parent),
        build_role(parent, followed),
        build_role_binding(parent),
        build_pool_network_policy(
            parent,
            settings,
            with_database=any(CredentialKind.LOG in of for of in given.secrets.values()),
            receivers=sorted({port for of in given.services.services for port in port_of_receiver(of.tracing)}),
        ),
        build_volume_claim(parent, spec.repository, given.wanted_claim),
        build_services(parent, given.services),
        deployment_of(parent, like, given.claim, template),
        build_disruption_budget(parent),
        build_pod_monitor(
            parent,
            like.model_copy(
                update={"routing": like.routing.model_copy(update={"interval_seconds": given.scrape_interval_s})}
            ),
            given.pod_monitor_available,
        ),
    )
    return tuple(manifest for manifest in found if manifest is not None)


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
    """The pods. What is in their annotations has Prometheus scrape the port that has all services' metrics."""
    parent, settings = given.parent, given.settings
    like = as_service(parent.name, given.spec)
    mounted = [
        (f"{kind.lower()}-{number}", service, kind, secret)
        for number, (service, secrets) in enumerate(sorted(given.secrets.items()))
        for kind, secret in sorted(secrets.items())
    ]
    container = build_container(
        WORKER_CONTAINER,
        pods.SERVE_POOL_COMMAND,
        like,
        settings,
        env={
            pods.POOL_VARIABLE: parent.name,
            pods.NAMESPACE_VARIABLE: parent.namespace,
            pods.SERVICES_VARIABLE: pool_services_name(parent.name),
            pods.REPOSITORY_VARIABLE: pods.REPOSITORY_PATH,
            pods.LAME_DUCK_VARIABLE: str(pods.LAME_DUCK_S),
        },
        mounts=[
            {"name": REPOSITORY_VOLUME, "mountPath": pods.REPOSITORY_PATH, "readOnly": True},
            {"name": _SERVICES_VOLUME, "mountPath": pods.SERVICES_PATH, "readOnly": True},
            *(
                {"name": name, "mountPath": pods.service_secret_path(service, kind), "readOnly": True}
                for name, service, kind, _ in mounted
            ),
        ],
        resources=build_resources(given.spec),
    )
    pod = build_pod_spec(
        like,
        like.worker,
        settings,
        container=container | ports_and_probes(like),
        volumes=[
            claim_volume(REPOSITORY_VOLUME, given.claim.name),
            # Optional, so that a pod starts and reports what is missing instead of waiting for its volume.
            {
                "name": _SERVICES_VOLUME,
                "configMap": {"name": pool_services_name(parent.name), "optional": True},
            },
            *(
                secret_volume(name, secret, *([URI_KEY] if kind is CredentialKind.LOG else []))
                for name, _, kind, secret in mounted
            ),
        ],
    )
    return {
        "metadata": build_pod_metadata(
            given.spec,
            pool_labels(parent.name),
            {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(pods.HTTP_PORT),
                "prometheus.io/path": "/metrics",
            },
        ),
        "spec": pod | placed_with_account(parent, like),
    }
