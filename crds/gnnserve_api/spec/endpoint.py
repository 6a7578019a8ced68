"""How clients reach the workers, and which of them get answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.limits import OverlayLimits
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, ObjectName, with_defaults
from gnnserve_api.spec.labels import ANNOTATIONS_ARE_RESERVED, OWN_PREFIX, Annotations, none_is_reserved
from gnnserve_api.spec.rules import rule


class EndpointTls(ApiModel):
    secret_name: ObjectName
    """Name of a Secret of type kubernetes.io/tls in the namespace of the service. A renewed certificate is followed
    without a restart."""


class EndpointTokens(ApiModel):
    secret_name: ObjectName
    """Name of a Secret with tokens, in the namespace of the service. Each of its values is an accepted token: 16 to
    4096 letters, digits and -._~+/ with = at the end. Several make rotation possible; changes are followed without a
    restart."""


class EndpointWriteTokens(ApiModel):
    secret_name: ObjectName
    """Name of a Secret with tokens that may write, in the namespace of the service. Each of its values is one, and does
    nothing else: as those of `tokens`, and followed as they are."""


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    """Reached from inside of the cluster, or through an Ingress or Gateway."""
    NODE_PORT = "NodePort"
    """Also at a port of every node, which Kubernetes chooses."""
    LOAD_BALANCER = "LoadBalancer"
    """Also at an address that the cluster's load balancer gives it."""


class EndpointService(ApiModel):
    """Service of Kubernetes that clients use."""

    type: ServiceType = ServiceType.CLUSTER_IP
    """Type of the Service, from which follows where clients reach the workers. Without `tokens` anyone who does is
    answered."""
    annotations: Annotations = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Service, for load balancers, meshes and DNS controllers. Absent: none."""

    _annotations_are_free = none_is_reserved("annotations", ANNOTATIONS_ARE_RESERVED, [OWN_PREFIX])


class EndpointOverlay(ApiModel):
    """Limits of what one request may bring: new nodes, edges, and new features of stored nodes."""

    max_nodes: Annotated[int, Field(ge=0, le=65_536)] = 1024
    """Largest number of new nodes and overrides of one request; one with more is refused with 413. 0: no request may
    have an overlay."""
    max_edges: Annotated[int, Field(ge=0, le=1_048_576)] = 16_384
    """Largest number of edges of one request; one with more is refused with 413."""

    def to_limits(self) -> OverlayLimits:
        return OverlayLimits(max_nodes=self.max_nodes, max_edges=self.max_edges)


class EndpointSpec(ApiModel):
    """How clients reach the workers, and which of them get answers. But for `overlay`, in a cluster only; `gnnserve
    run` has `--tls-cert`, `--tls-key`, `--token-file`, `--write-token-file` and `--grpc-port`."""

    tls: Annotated[EndpointTls | None, Audience.PODS] = None
    """HTTPS, on port 443 of the Service. Absent: HTTP, on port 80."""
    tokens: Annotated[EndpointTokens | None, Audience.PODS] = None
    """Tokens of which every request must send one, as `Authorization: Bearer`. Absent: anyone who reaches a worker is
    answered."""
    write_tokens: Annotated[EndpointWriteTokens | None, Audience.PODS] = None
    """Tokens of which `POST /v1/labels` and `POST /v1/changes` must send one, as `Authorization: Bearer`; one of
    `tokens` never writes. Absent: no request may write."""
    grpc: Annotated[bool, Audience.PODS] = False
    """Answer the Open Inference Protocol over gRPC too, on port 8001 of the Service, with the certificate and tokens of
    HTTP."""
    service: Annotated[EndpointService, Audience.OPERATOR] = with_defaults(EndpointService)
    """Service of Kubernetes that clients use."""
    overlay: Annotated[EndpointOverlay, Audience.WORKERS] = with_defaults(EndpointOverlay)
    """Limits of what a request may bring that the graph does not have: new nodes, edges and features."""

    _secrets_differ = rule(
        "!has(self.tls) || !has(self.tokens) || self.tls.secretName != self.tokens.secretName",
        "tls and tokens must name two Secrets[, and both name {self.tls.secretName}]: every value of the second is an "
        "accepted token",
    )

    _write_tokens_are_apart = rule(
        "!has(self.writeTokens) || ((!has(self.tls) || self.tls.secretName != self.writeTokens.secretName) && "
        "(!has(self.tokens) || self.tokens.secretName != self.writeTokens.secretName))",
        "writeTokens must name a Secret of its own[, and {self.writeTokens.secretName} is that of tls or tokens]: "
        "every value of it is a token that may write",
    )


def is_no_secret_of_endpoint(name: str) -> str:
    """CEL over a GNNServiceSpec: the Secret of that name, CEL too, is none that clients' connections are secured by."""
    return " && ".join(
        f"(!has(self.endpoint.{other}) || self.endpoint.{other}.secretName != {name})"
        for other in ("tls", "tokens", "writeTokens")
    )
