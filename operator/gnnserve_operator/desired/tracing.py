"""The effect of spec.worker.tracing on worker pods: OpenTelemetry's variables, and the port that they must reach."""

from __future__ import annotations

from urllib.parse import urlsplit

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.tracing import ENDPOINT_VARIABLE, SAMPLER_ARGUMENT_VARIABLE, SAMPLER_VARIABLE, Sampler

_PORTS = {"http": 80, "https": 443}


def build_environment(spec: GNNServiceSpec) -> dict[str, str]:
    tracing = spec.worker.tracing
    if tracing is None:
        return {}
    return {
        ENDPOINT_VARIABLE: tracing.endpoint,
        SAMPLER_VARIABLE: Sampler.SHARE.value,
        SAMPLER_ARGUMENT_VARIABLE: str(tracing.sampled_permille / 1000),
    }


def receiver_ports(spec: GNNServiceSpec) -> tuple[int, ...]:
    """The port of the receiver. A policy cannot name its host."""
    return () if spec.worker.tracing is None else port_of_receiver(spec.worker.tracing.endpoint)


def port_of_receiver(endpoint: str) -> tuple[int, ...]:
    """The port of this URL; empty, where it has none."""
    try:
        found = urlsplit(endpoint)
        port = found.port or _PORTS.get(found.scheme)
    except ValueError:  # not a valid port: workers report it
        return ()
    return () if port is None else (port,)
